"""The pieces of work that every side does, and how a worker is asked. Only the standard library, and nothing of
Octavo: the workers import it in each peer's own environment.

A worker is `python -m benchmarks.peers.worker_NAME TASK`, TASK as JSON. It loads the model, does one piece of work a
few times and prints one line of JSON last: {"samples": [tokens/s, …], "note": …} or {"error": reason}.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

__all__ = [
    "DECODED",
    "OUTPUTS",
    "PROMPT",
    "WARM",
    "WORKS",
    "Clock",
    "Kind",
    "Task",
    "Work",
    "answer",
    "decoding",
    "prompt",
    "shape_works",
]

Kind = Literal["prefill", "decode", "http"]

DECODED = 64
"""Steps of a decoding sample, in which all streams decode and nothing else happens."""
WARM = 2
"""Steps before those."""
PROMPT = 128
"""Prompt tokens of a request over HTTP."""
OUTPUTS = 128
"""Output tokens of a request over HTTP."""


@dataclass(frozen=True)
class Work:
    """One row of the table."""

    kind: Kind
    tokens: int
    """Of the prompt; for decoding those before the decoded ones."""
    streams: int = 1

    @property
    def name(self) -> str:
        if self.kind == "prefill":
            return f"prefill of {self.tokens:,}"
        many = "1 stream" if self.streams == 1 else f"{self.streams} streams"
        if self.kind == "http":
            return f"HTTP, {many}, {PROMPT} in, {OUTPUTS} out"
        return f"{many} at {self.tokens:,}"

    @property
    def likeness(self) -> str:
        """Works of one likeness run with the same flags, those that the sweep found best for its first work."""
        if self.kind == "prefill":
            return "prefill"
        return "streams" if self.streams > 1 else "stream" if self.tokens < 1024 else "long stream"


WORKS = (
    Work("prefill", 128),
    Work("prefill", 512),
    Work("prefill", 2048),
    Work("decode", 128),
    Work("decode", 4096),
    Work("decode", 128, 16),
    Work("decode", 128, 32),
    Work("decode", 128, 64),
    Work("http", PROMPT, 1),
    Work("http", PROMPT, 32),
)


def shape_works() -> tuple[Work, ...]:
    """What a model of random weights is measured on."""
    return Work("prefill", 512), Work("decode", 128), Work("decode", 128, 16)


@dataclass(frozen=True)
class Task:
    """What a worker is asked."""

    model: str
    """Path of a file or folder."""
    work: Work
    vocabulary: int
    """Ids of prompts are below it."""
    repeats: int = 2
    """Samples, after one that is not counted."""
    decoded: int = DECODED
    flags: dict[str, Any] = field(default_factory=dict)

    @property
    def longest(self) -> int:
        """Tokens a sequence may get to, prompt and outputs."""
        return self.work.tokens + self.decoded + self.work.streams + 2 * WARM + 2

    def encode(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> Task:
        fields = json.loads(text)
        return cls(**{**fields, "work": Work(**fields["work"])})


def prompt(name: str, tokens: int, vocabulary: int) -> list[int]:
    """Random token ids, the same on every side and for every call with this name."""
    return random.Random(name).choices(range(vocabulary), k=tokens)


class Clock:
    """Seconds of the steps in which all streams decode, and nothing else."""

    def __init__(self, streams: int, decoded: int) -> None:
        self._streams, self._wanted = streams, decoded + WARM
        self._steps: list[float] = []
        self._together = False

    @property
    def done(self) -> bool:
        return len(self._steps) >= self._wanted

    def step(self, step: Callable[[], int]) -> None:
        """Do a step; `step` returns how many tokens came of it."""
        began = time.perf_counter()
        tokens = step()
        taken = time.perf_counter() - began
        if self._together:
            self._steps.append(taken)
        self._together = tokens == self._streams

    def rate(self) -> float:
        """Tokens per second of all streams."""
        counted = self._steps[WARM:]
        return self._streams * len(counted) / sum(counted)


def decoding(task: Task, step: Callable[[], int]) -> float:
    """Tokens per second, for an engine that mixes prompts and streams in its steps as it likes."""
    clock = Clock(task.work.streams, task.decoded)
    idle = 0
    while not clock.done:
        counted = 0

        def counting() -> int:
            nonlocal counted
            counted = step()
            return counted

        clock.step(counting)
        idle = 0 if counted else idle + 1
        if idle > 1000:
            raise RuntimeError("1,000 steps in a row gave no token")
    return clock.rate()


def answer(measure: Callable[[Task], Sequence[float]]) -> None:
    """A worker's `main`: measure what the argument asks for and print the line."""
    try:
        samples = measure(Task.decode(sys.argv[1]))
        line = {"samples": [round(sample, 2) for sample in samples]}
    except Exception as error:  # noqa: BLE001 whatever a library raises is the reason to be shown
        line = {"error": f"{type(error).__name__}: {error}"}  # type: ignore[dict-item]
    sys.stdout.flush()
    print(json.dumps(line), flush=True)
