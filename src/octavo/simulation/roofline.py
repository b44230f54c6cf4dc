"""How long a step takes by what a machine can do at most: the roofline of Williams, Waterman and Patterson (2009).

Knows hardware and models as numbers; no plan, no clock. Nothing here was measured: see `Efficiency`.
"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Literal

import msgspec

from octavo.errors import CapacityError, InvalidParameter
from octavo.simulation.catalogue import Hardware, Shape
from octavo.timing.step_time import StepLoad

__all__ = ["EFFICIENCIES", "Efficiency", "Roofline"]

_Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
Arithmetic = Literal["bf16", "int8", "fp8"]
_ACTIVATION_BYTES = 2
"""Of what accelerators send each other: bf16."""


class Efficiency(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What part of the peaks is reached, and what a step costs besides."""

    compute: _Share = 0.55
    bandwidth: _Share = 0.75
    link: _Share = 0.7
    per_step_s: Annotated[float, msgspec.Meta(ge=0)] = 0.001
    """Launching kernels, choosing tokens, the scheduler."""
    per_exchange_s: Annotated[float, msgspec.Meta(ge=0)] = 10e-6
    """Until accelerators begin to hear from each other: two such exchanges a layer."""


EFFICIENCIES = {
    "low": Efficiency(compute=0.35, bandwidth=0.6, link=0.5, per_step_s=0.003, per_exchange_s=20e-6),
    "typical": Efficiency(),
    "high": Efficiency(compute=0.75, bandwidth=0.9, link=0.9, per_step_s=0.0, per_exchange_s=5e-6),
}
"""Uncalibrated: assumptions of ours, wide enough for good and for plain kernels. What is measured takes their place."""


class Roofline(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A model on `tensor_parallel` accelerators of one kind, each with its share of every matrix (Megatron-LM, Shoeybi
    et al. 2019): all work together on each step, and exchange sums twice a layer."""

    hardware: Hardware
    shape: Shape
    weight_bits: float = 16
    """4 bits with their scales are nearer to 4.5."""
    kv_bits: float = 16
    arithmetic: Arithmetic = "bf16"
    """In which the matrices are multiplied: weights of 4 bits are mostly widened to bf16 first."""
    tensor_parallel: int = 1
    efficiency: Efficiency = Efficiency()

    def __post_init__(self) -> None:
        if self.tensor_parallel < 1 or self.shape.heads % self.tensor_parallel:
            raise InvalidParameter(
                f"tensor_parallel is {self.tensor_parallel}; it must divide the model's {self.shape.heads} heads."
            )
        if self.tensor_parallel > 1 and not self.hardware.link_gb_s:
            raise InvalidParameter(
                f"tensor_parallel is {self.tensor_parallel}, and {self.hardware.name} is alone; take 1."
            )
        if self.arithmetic == "fp8" and self.hardware.fp8_tflops is None:
            raise InvalidParameter(f"{self.hardware.name} has no fp8; take bf16 or int8.")

    @cached_property
    def _flops_s(self) -> float:
        tera = {
            "bf16": self.hardware.bf16_tflops,
            "int8": self.hardware.int8_tops,
            "fp8": self.hardware.fp8_tflops or 0.0,
        }[self.arithmetic]
        return tera * 1e12 * self.tensor_parallel * self.efficiency.compute

    @cached_property
    def _bf16_flops_s(self) -> float:
        return self.hardware.bf16_tflops * 1e12 * self.tensor_parallel * self.efficiency.compute

    @cached_property
    def _bytes_s(self) -> float:
        return self.hardware.bandwidth_gb_s * 1e9 * self.tensor_parallel * self.efficiency.bandwidth

    @cached_property
    def _head(self) -> int:
        """Parameters of the head: only rows that are sampled are multiplied by it."""
        return self.shape.vocabulary * self.shape.hidden

    @cached_property
    def _body(self) -> int:
        return self.shape.parameters - self.shape.embedding - self._head

    @cached_property
    def _attention_flops(self) -> int:
        """Of one token with one before it: q·k and its share of v, in all heads and layers."""
        return 4 * self.shape.layers * self.shape.heads * self.shape.head_dim

    @property
    def weight_bytes(self) -> float:
        return self.shape.parameters * self.weight_bits / 8

    @property
    def kv_bytes_per_token(self) -> float:
        """On all accelerators together. Each has the K and V of its query heads: where these are fewer than a KV head
        serves, several accelerators keep the same."""
        each = -(-self.shape.kv_heads // self.tensor_parallel)
        copies = each * self.tensor_parallel / self.shape.kv_heads
        return copies * self.shape.kv_bytes_per_token(self.kv_bits)

    @property
    def critical_batch(self) -> float:
        """B*: tokens a step at which multiplying takes as long as reading the weights. Below it memory binds, and a
        token more is nearly free; above it arithmetic does. With the efficiencies as they are."""
        return self._flops_s / self._bytes_s * (self.weight_bits / 8) / 2

    @property
    def critical_sum(self) -> str:
        """How the critical batch was reckoned."""
        part, tera = self.efficiency, self._flops_s / self.efficiency.compute / self.tensor_parallel / 1e12
        return (
            f"B* = {100 * part.compute:g} % of {tera:,g} TFLOP/s ÷ {100 * part.bandwidth:g} % of "
            f"{self.hardware.bandwidth_gb_s:,g} GB/s × {self.weight_bits / 8:g} bytes a weight ÷ 2 = "
            f"{self.critical_batch:.0f} tokens a step"
        )

    def kv_tokens(
        self, utilization: float = 0.9, *, beside_bytes: float = 0.0, beside_token_bytes: float = 0.0
    ) -> int:
        """Tokens whose K and V fit beside the weights, of `utilization` of the memory. `beside_bytes`,
        `beside_token_bytes`: what another model takes of it, and with each of these tokens.

        Raises CapacityError where the weights alone do not fit.
        """
        memory = self.hardware.memory_gb * 1e9 * self.tensor_parallel * utilization
        weights = self.weight_bytes + beside_bytes
        left, token = memory - weights, self.kv_bytes_per_token + beside_token_bytes
        if left < token:
            raise CapacityError(
                f"The model's weights take {weights / 1e9:.1f} GB with {self.weight_bits:g} bits, and "
                f"{utilization:.0%} of {self.tensor_parallel} × {self.hardware.name} are {memory / 1e9:.1f} GB; take "
                "fewer bits, more accelerators or others."
            )
        return int(left / token)

    def seconds(self, load: StepLoad) -> float:
        """Of a step: matrices, attention and exchanges after each other, each bound by arithmetic or by memory."""
        return (
            self._matrices_s(load.tokens, load.samples)
            + self._attention_s(load)
            + self._exchanges_s(load.tokens)
        )

    def decodes_s(self, sequences: int, kv_tokens: int, steps: int) -> list[float]:
        """Of steps in which so many sequences decode, as `seconds` has each: the first reads `kv_tokens` stored tokens,
        and every other one a token more of each sequence."""
        matrices_s, exchanges_s = self._matrices_s(sequences, sequences), self._exchanges_s(sequences)
        reading_s = self._reading_s
        last = kv_tokens + steps * sequences
        return [matrices_s + read * reading_s + exchanges_s for read in range(kv_tokens, last, sequences)]

    @cached_property
    def _fixed_s(self) -> dict[tuple[int, int], float]:
        """Of loads that were seen, by tokens and samples: all but attention and exchanges."""
        return {}

    def _matrices_s(self, tokens: int, samples: int) -> float:
        """With what a step costs besides."""
        known = self._fixed_s.get((tokens, samples))
        if known is not None:
            return known
        body, head = self._body, self._head
        seconds = self.efficiency.per_step_s + max(
            2 * body * tokens / self._flops_s, body * self.weight_bits / 8 / self._bytes_s
        )
        if samples:
            seconds += max(2 * head * samples / self._flops_s, head * self.weight_bits / 8 / self._bytes_s)
        self._fixed_s[tokens, samples] = seconds
        return seconds

    @cached_property
    def _reading_s(self) -> float:
        """For each stored token that a decode reads: its K and V, or its arithmetic."""
        return max(self.kv_bytes_per_token / self._bytes_s, self._attention_flops / self._bf16_flops_s)

    @cached_property
    def _pair_s(self) -> float:
        return self._attention_flops / self._bf16_flops_s

    def _attention_s(self, load: StepLoad) -> float:
        """Decodes read all that is stored of them; prompts are computed in tiles (Dao 2022): arithmetic binds."""
        return load.kv_tokens * self._reading_s + load.pairs * self._pair_s

    def _exchanges_s(self, tokens: int) -> float:
        """Two all-reduces a layer; in a ring each sends 2 (n − 1) / n of what is summed."""
        others = self.tensor_parallel - 1
        if not others:
            return 0.0
        sent = 2 * others / self.tensor_parallel * tokens * self.shape.hidden * _ACTIVATION_BYTES
        link = self.hardware.link_gb_s * 1e9 * self.efficiency.link
        return 2 * self.shape.layers * (sent / link + self.efficiency.per_exchange_s)
