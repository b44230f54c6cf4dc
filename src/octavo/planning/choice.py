"""One way to serve: a deployment, so many times, behind a router. Knows its command line and what it costs an hour."""

from __future__ import annotations

import hashlib
from typing import Annotated

import msgspec

from octavo.config import RouterName
from octavo.planning.prices import Prices
from octavo.simulation.deployment import Deployment

__all__ = ["Choice"]


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan chooses between."""

    deployment: Deployment
    replicas: Annotated[int, msgspec.Meta(ge=1)] = 1
    router: RouterName = "least-loaded"

    @property
    def accelerators(self) -> int:
        return self.replicas * self.deployment.tensor_parallel

    def per_hour(self, prices: Prices) -> float:
        """Money. Raises InvalidParameter where no rent is known."""
        return prices.rent(self.deployment.hardware).per_hour * self.accelerators

    def key(self) -> str:
        """The same for equal choices, here and in another process."""
        return hashlib.blake2b(msgspec.json.encode(self), digest_size=12).hexdigest()

    @property
    def machines(self) -> str:
        """In words: `2 × 4 h100`."""
        one = self.deployment
        many = f"{one.tensor_parallel} {one.hardware}" if one.tensor_parallel > 1 else one.hardware
        return f"{self.replicas} × {many}"

    @property
    def knobs(self) -> str:
        """In words, those of the server."""
        one = self.deployment
        words = [f"{one.weight_bits:g}-bit weights", one.policy, f"{one.max_step_tokens} tokens a step"]
        words += [f"{one.max_running} at once", f"{100 * one.memory_utilization:g} % of the memory"]
        return ", ".join([*words, "prefix cache" if one.prefix_cache else "no prefix cache"])

    def serve_command(self) -> str:
        """What each server of this plan is started with."""
        one = self.deployment
        words = [
            "octavo serve",
            one.model,
            f"--policy {one.policy}",
            f"--max-step-tokens {one.max_step_tokens}",
            f"--max-running {one.max_running}",
            f"--memory-utilization {one.memory_utilization:g}",
            f"--block-size {one.block_size}",
        ]
        if one.max_model_len is not None:
            words.append(f"--max-model-len {one.max_model_len}")
        if not one.prefix_cache:
            words.append("--no-prefix-cache")
        return " ".join(words)
