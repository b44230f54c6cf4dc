"""Everything the scheduler learns from outside: it enters at a step boundary and goes to the step log."""

from __future__ import annotations

import msgspec

from octavo.config import Pooling, ProfileName
from octavo.sampling.params import SamplingParams

__all__ = ["ORDINARY", "Abort", "Add", "DiskNews", "Draft", "Inputs", "Service"]


class Service(msgspec.Struct, frozen=True, array_like=True):
    """For whom a request is, and how soon, and what its client knows of it; nothing of this changes the answer."""

    priority: int = 0
    """A lower number runs earlier."""
    tenant: str = ""
    """Tenants (API keys) with work waiting get equal shares."""
    user: str = ""
    """Of a tenant: its users divide its share, and add none."""
    profile: ProfileName | None = None
    """The targets it is to meet; None: the server's own."""
    prediction: tuple[int, ...] = ()
    """What the answer will most likely be: a guess, which is verified."""
    ttft_s: float | None = None
    tbt_s: float | None = None
    """Targets of its own, to its first token and between two: they win over the profile's."""


ORDINARY = Service()


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
    service: Service = ORDINARY
    pooling: Pooling | None = None
    """Not None: no token is chosen, and the answer is the prompt's vector; `params.max_tokens` is 0."""


class Abort(msgspec.Struct, frozen=True, tag="abort", array_like=True):
    """The client left. Unknown ids are ignored (the request may just have finished)."""

    request_id: str


class DiskNews(msgspec.Struct, frozen=True, array_like=True):
    """What became known of the disk cache. Keys are those of `backends.base.DiskBlock`."""

    known: tuple[bytes, ...] = ()
    """Can be fetched: earlier processes left them."""
    fetched: tuple[bytes, ...] = ()
    """Their bytes are here, and only for the plan that comes out of this step."""
    gone: tuple[bytes, ...] = ()
    """Cannot be fetched (any more)."""


class Draft(msgspec.Struct, frozen=True, array_like=True):
    """Tokens that a sequence may go on with: guesses, which the step verifies. Wrong ones cost time and change nothing.

    One that does not fit (the sequence does not decode in this step, or has gone; no budget, no memory) is not used.
    """

    request_id: str
    child: int
    tokens: tuple[int, ...]


class Inputs(msgspec.Struct, frozen=True, array_like=True):
    """What enters at one step boundary."""

    now_s: float
    messages: tuple[Add | Abort, ...] = ()
    last_duration_s: float = 0.0
    """How long the step before took, seconds."""
    disk: DiskNews | None = None
    drafts: tuple[Draft, ...] = ()
    """For sequences whose newest token is known; they are for this step only."""
    drafting_s: float = 0.0
    """How much of this step was over by then: the time that these took, seconds."""
