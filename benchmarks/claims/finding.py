"""What a claim came to, and what measuring one needs: the model, engines, rounds in turn. Knows no claim."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Literal

from benchmarks.shapes import Shape, write_shape
from octavo.config import EngineConfig
from octavo.engine.build import build_engine
from octavo.engine.engine import Engine
from octavo.engine.messages import Outputs
from octavo.models.store import StoredModel, open_model

__all__ = [
    "Finding",
    "Setting",
    "Verdict",
    "finish",
    "first_token_s",
    "graded",
    "ratio",
    "rounds",
    "timed_step",
]

Verdict = Literal["holds", "partly", "does not hold here"]


@dataclass(frozen=True)
class Finding:
    """One row of the table."""

    claim: str
    measured: str
    verdict: Verdict
    reason: str
    """Why the verdict is so, with the rule that gave it."""
    figures: dict[str, Any] = field(default_factory=dict)
    """All that was measured, for the JSON file."""


@dataclass(frozen=True)
class Setting:
    """What claims are measured with."""

    model: StoredModel
    quick: bool
    folder: Path
    """For models that are made; it goes at the end."""

    @contextmanager
    def engine(self, **settings: Any) -> Iterator[Engine]:
        """An engine on the model, without prefix cache and speculation unless `settings` say so; closed at the end."""
        config = EngineConfig(
            **{"model_dir": str(self.model.dir), "prefix_cache": False, "speculation": "off", **settings}
        )
        engine = build_engine(config)
        try:
            yield engine
        finally:
            engine.close()

    def random_model(self, name: str, shape: Shape, form: str) -> StoredModel:
        """A model of random weights with this shape and the vocabulary of the real one."""
        path = self.folder / f"{name}.gguf"
        vocabulary = self.model.spec.vocab_size
        if not path.exists():
            write_shape(path, shape, form, vocabulary=vocabulary, embedding="q8_0")
        return open_model(path, cache=self.folder)

    def small_model(self) -> StoredModel:
        """Little arithmetic and much KV memory, for claims about blocks: a step takes a few milliseconds."""
        return self.random_model("small", Shape(128, 4, 8, 8, 128, 256), "q4_1")


def finish(engine: Engine) -> None:
    """Step until nothing is left to do."""
    while not engine.idle:
        engine.step()


def timed_step(engine: Engine) -> tuple[float, Outputs]:
    """One step, and its seconds."""
    began = time.perf_counter()
    outputs = engine.step()
    return time.perf_counter() - began, outputs


def first_token_s(engine: Engine) -> float:
    """Seconds from now to the first token that any request is given."""
    seconds = 0.0
    while True:
        taken, outputs = timed_step(engine)
        seconds += taken
        if any(item.samples for item in outputs.items):
            return seconds


def rounds(most: int, allowed_s: float) -> Iterator[int]:
    """Numbers of rounds: one at least, and another only while it fits into the time if it takes as long as the last."""
    began = time.perf_counter()
    for number in range(most):
        start = time.perf_counter()
        yield number
        now = time.perf_counter()
        if now - began + (now - start) > allowed_s:
            return


def ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """The median of the ratios of neighbours in time: what slowed both down cancels out."""
    return median(a / b for a, b in zip(above, below, strict=True))


def graded(holds: bool, partly: bool) -> Verdict:
    """The verdict that two rules give."""
    return "holds" if holds else "partly" if partly else "does not hold here"
