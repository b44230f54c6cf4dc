"""What a step is filled with, and from whom that rule is. Data; the scheduler obeys. Knows no sequence."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from octavo.config import PolicyName

__all__ = ["POLICIES", "Policy"]


class Policy(msgspec.Struct, frozen=True):
    """How prompts and decodes share a step."""

    name: PolicyName
    first: Literal["decodes", "prompts"]
    """Who is offered the budget first."""
    mixed: bool
    """Whether both may be in one step."""
    chunked: bool
    """Whether a prompt may be computed in parts: its sequence waits for no empty step, and makes none long."""
    batched: bool = False
    """Whether all wait until all that run have ended, and those that end first keep slot and memory until then."""


POLICIES: dict[PolicyName, Policy] = {
    policy.name: policy
    for policy in (
        # NVIDIA's FasterTransformer behind a batching server.
        Policy("static", first="prompts", mixed=False, chunked=False, batched=True),
        # Orca, Yu et al. 2022 (OSDI): scheduling by iteration.
        Policy("continuous", first="decodes", mixed=True, chunked=False),
        # vLLM before chunked prefill, Kwon et al. 2023, arXiv:2309.06180.
        Policy("prefill-first", first="prompts", mixed=False, chunked=False),
        # Sarathi-Serve, Agrawal et al. 2024, arXiv:2403.02310.
        Policy("stall-free", first="decodes", mixed=True, chunked=True),
    )
}
"""By name."""

assert set(POLICIES) == set(get_args(PolicyName))
