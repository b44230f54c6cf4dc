"""What a watched server tells of its work: GET /watch, JSON lines, each with a `type`. Knows shapes, no server.

Requests are told by lengths, times and what their beginnings share, never by what they say: a block's id is a number
that is equal for equal blocks with equal ones before them, within one answer to GET /watch, and of no use beyond it.
Times are seconds from the watch's begin.
"""

from __future__ import annotations

import msgspec

from octavo.config import AllocatorName, PolicyName, ProfileName
from octavo.engine.messages import Stats

__all__ = ["MOST_SECONDS", "PATH", "Answered", "Asked", "Gauges", "Line", "Lost", "Server", "Steps", "Worked"]

PATH = "/watch"
MOST_SECONDS = 86_400


class Server(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="server"):
    """The first line: who serves, and how it was set. Names are those of `octavo serve`."""

    octavo: str
    model: str
    backend: str
    threads: int
    policy: PolicyName
    allocator: AllocatorName
    prefix_cache: bool
    max_running: int
    max_step_tokens: int
    """The budget."""
    max_model_len: int
    num_blocks: int
    block_size: int
    block_bytes: int
    kv_dtype: str
    memory_utilization: float | None
    """None: its memory for K and V has a size of its own."""
    free_memory_bytes: int
    """What the machine, or the process's limit, has left."""
    tbt_target_s: float | None
    ttft_target_s: float | None
    profile: ProfileName | None
    priority_aging_s: float
    speculation: str
    speculation_tokens: int | None
    cache_disk: bool


class Asked(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="asked"):
    """A request begins. With `at_s` below 0 it had begun before the watch did."""

    id: int
    at_s: float
    prompt_tokens: int
    blocks: tuple[int, ...]
    """Ids of the prompt's full blocks."""
    answers: int
    max_tokens: int | None
    had: int = 0
    """Tokens of its first answer that there were already."""
    tenant: int = 0
    priority: int = 0
    pooling: bool = False
    """A vector is asked for, and no text."""


class Answered(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="answered"):
    """A request ended."""

    id: int
    end_s: float
    reason: str
    """`stop`, `length`, `abort` (its reader left) or `error`."""
    output_tokens: int
    """Of all answers, those from before the watch too."""
    cached_tokens: int
    """Of the prompt, found computed."""
    chunks: tuple[tuple[float, int], ...]
    """When tokens came while it was watched, and how many."""
    blocks: tuple[int, ...]
    """Ids of the full blocks of prompt and first answer that follow those of the prompt."""


class Worked(msgspec.Struct, frozen=True, array_like=True):
    """A step: see octavo.timing.step_time.StepLoad."""

    began_s: float
    ended_s: float
    idle: bool
    """Nothing was left to do behind it."""
    tokens: int
    samples: int
    kv_tokens: int
    pairs: int
    sequences: int


class Steps(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="steps"):
    """What was computed since the last such line."""

    steps: tuple[Worked, ...]


class Gauges(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="gauges"):
    """Counters and gauges, four times a second."""

    at_s: float
    stats: Stats


class Lost(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="lost"):
    """So many lines were left out, since their reader took too few."""

    lines: int


Line = Server | Asked | Answered | Steps | Gauges | Lost
