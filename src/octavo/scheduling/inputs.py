"""Everything the scheduler learns from outside: it enters at a step boundary and goes to the step log."""

from __future__ import annotations

import msgspec

from octavo.sampling.params import SamplingParams

__all__ = ["Abort", "Add", "Inputs"]


class Add(msgspec.Struct, frozen=True, tag="add", array_like=True):
    """A new request, or one that goes on after an engine restart.

    `params.seed` is always set (the server chose one where the client did not).
    """

    request_id: str
    prompt: tuple[int, ...]
    params: SamplingParams
    arrival_s: float
    """Unix time at the server's edge, seconds."""
    outputs: tuple[tuple[int, ...], ...] = ()
    """() for a new request; else, per child, the tokens already delivered."""
    finished: tuple[int, ...] = ()
    """Children that had finished before the restart; they are not run again."""
    cache_salt: str = ""
    """Requests with different salts share no computed blocks."""


class Abort(msgspec.Struct, frozen=True, tag="abort", array_like=True):
    """The client left. Unknown ids are ignored (the request may just have finished)."""

    request_id: str


class Inputs(msgspec.Struct, frozen=True, array_like=True):
    """What enters at one step boundary."""

    now_s: float
    messages: tuple[Add | Abort, ...] = ()
    last_duration_s: float = 0.0
    """How long the step before took, seconds."""
