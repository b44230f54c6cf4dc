"""The wire between server and engine: typed messages, msgpack, framed by a 4-byte little-endian length.

Knows no transport and no policy. The scheduler reads `Add` and `Abort` (they enter at a step boundary);
everything else is between the client and the process.
"""

from __future__ import annotations

import msgspec

from octavo.config import EngineConfig
from octavo.memory.accounting import Report
from octavo.scheduling.admission import Capacity
from octavo.scheduling.inputs import Abort, Add
from octavo.scheduling.outputs import SequenceOutput
from octavo.timing.step_time import StepLoad

__all__ = [
    "Abort",
    "Add",
    "EngineInfo",
    "Failed",
    "FromEngine",
    "Init",
    "Outputs",
    "Ready",
    "Shutdown",
    "Stats",
    "StepSeen",
    "ToEngine",
    "Watch",
]


class Init(msgspec.Struct, frozen=True, tag="init", array_like=True):
    """The first message to an engine process: load this."""

    config: EngineConfig


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown", array_like=True):
    """Stop after the current step; running requests are dropped (drain before sending this)."""


class Watch(msgspec.Struct, frozen=True, tag="watch", array_like=True):
    """Tell of each step what it computed and when (`Outputs.step`), or no longer."""

    on: bool


class EngineInfo(msgspec.Struct, frozen=True):
    """What a started engine can do."""

    model: str
    backend: str
    invariant: bool
    arithmetic_id: str
    capacity: Capacity
    """What a request may ask for: check it at the edge with `capacity.check(prompt, params)`."""
    num_blocks: int
    block_size: int
    block_bytes: int
    max_step_tokens: int
    kv_dtype: str
    threads: int
    pid: int


class Ready(msgspec.Struct, frozen=True, tag="ready", array_like=True):
    info: EngineInfo


class Failed(msgspec.Struct, frozen=True, tag="failed", array_like=True):
    """The engine could not start, or cannot go on. `kind` is the name of an exception in octavo.errors."""

    kind: str
    message: str


class Stats(msgspec.Struct, frozen=True, array_like=True):
    """Counters and gauges after a step. Totals count from the engine's start."""

    running: int
    waiting: int
    blocks_total: int
    blocks_used: int
    steps: int
    step_duration_s: float
    step_tokens: int
    preemptions: int
    prompt_tokens: int
    generation_tokens: int
    prefix_queried_tokens: int
    prefix_hit_tokens: int
    disk_bytes: int = 0
    """That the disk cache takes."""
    disk_hit_tokens: int = 0
    """Tokens whose KV came back from disk."""
    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    """Steps of sequences with guessed tokens; those tokens; and those of them that were right."""
    accepted_at: tuple[int, ...] = ()
    """Those that were right by place in the guess, from its first token on."""
    saved_steps: int = 0
    """That no sequence needed, since what was guessed for each that decoded was right."""
    reached_at: tuple[int, ...] = ()
    """Guessed tokens that were verified with all before them right, by place in the guess."""


class StepSeen(msgspec.Struct, frozen=True, array_like=True):
    """A step that somebody watched. Times are of the engine's clock."""

    began_s: float
    ended_s: float
    load: StepLoad
    idle: bool
    """Nothing was left to do: what comes until the next step begins is no work."""


class Outputs(msgspec.Struct, frozen=True, tag="outputs", array_like=True):
    """Everything one step produced, in one message, sent right after its commit."""

    items: tuple[SequenceOutput, ...]
    stats: Stats
    report: Report | None = None
    """Now and then, and when nothing is left to do."""
    step: StepSeen | None = None
    """While somebody watches, of a step that computed something."""


ToEngine = Init | Add | Abort | Shutdown | Watch
FromEngine = Ready | Failed | Outputs
