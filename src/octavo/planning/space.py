"""What a search may choose from, and what of it can be left out without a simulation. Knows rooflines and rents."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from octavo.bench.slo import Slo
from octavo.config import PolicyName
from octavo.errors import CapacityError, InvalidParameter
from octavo.planning.bounds import Mean, highest_rate, mean_of, most_at_once, step_bound_s
from octavo.planning.prices import Prices
from octavo.simulation.catalogue import hardware_names
from octavo.simulation.deployment import Deployment
from octavo.simulation.roofline import EFFICIENCIES
from octavo.workload.summary import Summary

__all__ = ["Base", "Space", "bases"]


class Space(msgspec.Struct, frozen=True, kw_only=True):
    """The knobs, each with what it may be; the first of each is where a search begins."""

    model: str
    hardware: tuple[str, ...] = ()
    """() for all of the catalogue whose rent is known."""
    weight_bits: tuple[float, ...] = (16, 8, 4)
    tensor_parallel: tuple[int, ...] = (1, 2, 4, 8)
    policies: tuple[PolicyName, ...] = ("stall-free", "prefill-first", "continuous")
    budgets: tuple[int, ...] = (2048, 512, 8192)
    utilizations: tuple[float, ...] = (0.9, 0.8, 0.95)
    prefix_caches: tuple[bool, ...] = (True, False)
    max_running: tuple[int, ...] = (256, 64)
    speculations: tuple[str, ...] = ("off",)
    """`off`, and how often guesses are right: see `Guessing.parse`."""
    draft_model: str | None = None
    """Who guesses, where anybody does; None: nobody that takes time."""
    max_accelerators: int = 64
    kernels: Literal["low", "typical", "high"] = "typical"
    """What part of a machine's peaks is taken for reached, where nothing was measured."""

    def start(
        self, hardware: str, weight_bits: float, tensor_parallel: int, speculation: str | None = None
    ) -> Deployment:
        """With the first of every knob. Raises InvalidParameter and SettingsError for a speculation that is none."""
        guesses = self.speculations[0] if speculation is None else speculation
        return Deployment(
            model=self.model,
            hardware=hardware,
            weight_bits=weight_bits,
            tensor_parallel=tensor_parallel,
            policy=self.policies[0],
            max_step_tokens=self.budgets[0],
            memory_utilization=self.utilizations[0],
            prefix_cache=self.prefix_caches[0],
            max_running=self.max_running[0],
            speculation=guesses,
            draft_model=self._drafter(guesses),
            efficiency=EFFICIENCIES[self.kernels],
        )

    def variations(self, one: Deployment) -> Iterator[tuple[str, str, Deployment]]:
        """What differs from it by one knob: the knob, its value, and the deployment."""
        knobs: dict[str, Iterable[object]] = {
            "policy": self.policies,
            "max_step_tokens": self.budgets,
            "memory_utilization": self.utilizations,
            "prefix_cache": self.prefix_caches,
            "max_running": self.max_running,
        }
        for name, values in knobs.items():
            for value in values:
                if getattr(one, name) != value:
                    yield name, _said(value), msgspec.structs.replace(one, **{name: value})
        for value in self.speculations:
            if one.speculation != value:
                changed = msgspec.structs.replace(one, speculation=value, draft_model=self._drafter(value))
                yield "speculation", value, changed

    def _drafter(self, speculation: str) -> str | None:
        return None if speculation == "off" else self.draft_model


class Base(msgspec.Struct, frozen=True, kw_only=True):
    """A machine with a precision: what a plan is built of."""

    deployment: Deployment
    per_hour: float | None
    """Of one replica. None: no rent is known."""
    bound: float = 0.0
    """Requests a second that one replica cannot exceed, with the best kernels."""
    expected: float = 0.0
    """The same with typical kernels: where a search begins."""
    at_once: int = 0
    """Requests whose K and V fit beside each other."""
    why_not: str | None = None

    @property
    def name(self) -> str:
        one = self.deployment
        many = f"{one.tensor_parallel} × " if one.tensor_parallel > 1 else ""
        guesses = "" if one.speculation == "off" else f", speculation {one.speculation}"
        return f"{many}{one.hardware}, {one.weight_bits:g} bits{guesses}"

    def least(self, rate: float | None) -> int:
        """Replicas below which it cannot be."""
        return 1 if rate is None else max(math.ceil(rate / self.bound - 1e-9), 1)

    def lowest_per_hour(self, rate: float | None) -> float:
        """What it costs at least."""
        assert self.per_hour is not None
        return self.per_hour * self.least(rate)


def bases(space: Space, summary: Summary, slo: Slo, prices: Prices, rate: float | None) -> list[Base]:
    """All machines with all precisions, those that may do it first and by what they cost at least. `rate`: requests a
    second that are asked for."""
    mean = mean_of(summary, prefix_cache=True in space.prefix_caches)
    step_s = step_bound_s(slo)
    names = space.hardware or tuple(name for name in hardware_names() if name in prices.rents)
    found = [
        _base(space.start(name, bits, parallel, guesses), mean, step_s, prices, space, rate)
        for name in names
        for bits in space.weight_bits
        for parallel in space.tensor_parallel
        for guesses in space.speculations
    ]
    return sorted(
        found,
        key=lambda one: (one.why_not is not None, math.inf if one.why_not else one.lowest_per_hour(rate)),
    )


def _base(
    one: Deployment, mean: Mean, step_s: float, prices: Prices, space: Space, rate: float | None
) -> Base:
    # With guesses a step brings a stream so many tokens at the most, and costs no less.
    more = 1.0 if one.guessing is None else one.guessing.most_tokens
    try:
        at_once = most_at_once(one, mean)
        best = more * highest_rate(one, one.pace_with(EFFICIENCIES["high"]), mean, more * step_s)
        typical = highest_rate(one, one.pace, mean, more * step_s)
        per_hour = prices.rent(one.hardware).per_hour * one.tensor_parallel
    except CapacityError:
        reason = (
            f"The model's weights take {one.pace.weight_bytes / 1e9:.1f} GB with {one.weight_bits:g} bits, and that is "
            f"more than {one.memory_utilization:.0%} of its memory."
        )
        return Base(deployment=one, per_hour=None, why_not=reason)
    except InvalidParameter as error:
        return Base(deployment=one, per_hour=None, why_not=str(error))
    why_not = None
    if at_once < 1:
        why_not = "Not even one request's K and V fit beside the weights."
    elif not best:
        why_not = (
            f"Infeasible even for one request at a time: a step of one token takes longer than the {1e3 * step_s:g} ms "
            "that the SLO allows, with the best kernels."
        )
    elif rate is not None and math.ceil(rate / best - 1e-9) * one.tensor_parallel > space.max_accelerators:
        why_not = f"More than {space.max_accelerators} accelerators would be needed."
    return Base(
        deployment=one, per_hour=per_hour, bound=best, expected=typical, at_once=at_once, why_not=why_not
    )


def _said(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)
