"""What a grammar costs: the same prompts with a JSON schema and without, a step of each in turns.

    python -m benchmarks.structured [--pairs 5] [--streams 1 8 32] [--outputs 160] [--masks]

Engines in this process answer the same prompts: one freely, two by a schema whose answers do not end before all are
counted, with speculation off and on (which guesses what the schema forces). Counted is the time while all of them
decode. --masks tells beside that how long the masks of a step take by themselves.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.engine import processor
from benchmarks.speculation import T95, Asked
from octavo.config import EngineConfig
from octavo.engine.build import build_engine
from octavo.engine.engine import Engine
from octavo.models.store import StoredModel, open_model
from octavo.sampling.grammar import Grammar
from octavo.sampling.params import SamplingParams
from octavo.scheduling.inputs import Add
from octavo.text.chat import ChatTemplate
from octavo.text.conversation import encode_conversation

PERSON = {
    "type": "object",
    "properties": {
        "full_name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "occupation": {"enum": ["farmer", "teacher", "physician", "engineer", "unknown"]},
        "email_address": {"type": "string", "pattern": "^[a-z]{2,12}@[a-z]{2,12}\\.(com|org)$"},
        "remarks": {
            "type": "array",
            "items": {"type": "string", "maxLength": 60},
            "minItems": 1,
            "maxItems": 3,
        },
        "partner": {"anyOf": [{"type": "null"}, {"type": "string", "maxLength": 40}]},
    },
    "required": ["full_name", "age", "occupation", "email_address", "remarks", "partner"],
    "additionalProperties": False,
}
PEOPLE = {"type": "array", "items": PERSON, "minItems": 50}
"""Nested, with enums, unions, patterns and free text; longer than what is counted."""
COLUMNS = ("free", "schema", "schema, guesses")


class Bench:
    """Engines over one model, and prompts for them."""

    def __init__(self, model: StoredModel, streams: int, outputs: int) -> None:
        self._tokenizer, self._template = model.tokenizer(), ChatTemplate(model.spec.chat_template)
        self._streams, self._outputs = streams, outputs
        self._shared: dict[str, Any] = {
            "model_dir": str(model.dir),
            "num_blocks": streams * 32,
            "max_running": streams,
            "max_model_len": 512,
            "prefix_cache": False,
        }
        self.engines = [self._engine("off"), self._engine("off"), self._engine("auto")]

    def pair(self, number: int) -> list[Asked]:
        """All engines, with prompts of this number."""
        free, guided = (self._adds(number, grammar) for grammar in (None, Grammar.json(PEOPLE)))
        asked = [
            Asked(engine, adds) for engine, adds in zip(self.engines, (free, guided, guided), strict=True)
        ]
        while not all(one.engine.idle for one in asked):
            for one in asked:
                if not one.engine.idle:
                    one.step()
        assert asked[1].answers == asked[2].answers, "guesses changed an answer"
        return asked

    def close(self) -> None:
        for engine in self.engines:
            engine.close()

    def _engine(self, speculation: str) -> Engine:
        engine = build_engine(EngineConfig(speculation=speculation, **self._shared))
        engine.guides.check(Grammar.json(PEOPLE))
        return engine

    def _adds(self, number: int, grammar: Grammar | None) -> list[Add]:
        adds = []
        for stream in range(self._streams):
            turn = {"role": "user", "content": f"Invent a list of people, number {number}.{stream}, as JSON."}
            prompt = encode_conversation(self._tokenizer, self._template, [turn])
            params = SamplingParams(
                seed=number * 1000 + stream,
                max_tokens=self._outputs,
                grammar=grammar,
                ignore_eos=grammar is None,
            )
            adds.append(Add(f"{number}.{stream}", tuple(prompt), params, time.time()))
        return adds


def timed_masks(engine: Engine) -> list[float]:
    """Seconds that each step's masks take, from now on."""
    masks: Callable[..., Any] = engine.guides.masks
    seconds: list[float] = []

    def timed(owners: Any) -> Any:
        began = time.perf_counter()
        result = masks(owners)
        seconds.append(time.perf_counter() - began)
        return result

    engine.guides.masks = timed  # type: ignore[method-assign]
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--outputs", type=int, default=160)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--masks", action="store_true")
    arguments = parser.parse_args()
    console = Console()
    model = open_model(arguments.model)
    table = Table(title=f"output tokens/s, {processor()}")
    for name in ("streams", *COLUMNS, "schema ÷ free", "with guesses ÷ free"):
        table.add_column(name, justify="right")
    for streams in arguments.streams:
        bench = Bench(model, streams, arguments.outputs)
        seconds = timed_masks(bench.engines[1]) if arguments.masks else []
        bench.pair(-1)  # warm
        seconds.clear()
        pairs = [
            bench.pair(number)
            for number in track(range(arguments.pairs), f"{streams} streams", console=console)
        ]
        bench.close()
        rates = [statistics.fmean([pair[column].rate for pair in pairs]) for column in range(3)]
        ratios = [ratio([pair[column].rate / pair[0].rate for pair in pairs]) for column in (1, 2)]
        table.add_row(str(streams), *(f"{rate:,.0f}" for rate in rates), *ratios)
        if seconds:
            ordered = sorted(seconds)
            console.print(
                f"{streams} streams: the masks of a step take {1e3 * statistics.median(ordered):.2f} ms, "
                f"{1e3 * ordered[int(0.99 * len(ordered))]:.2f} ms at the 99th percentile"
            )
    console.print(table)


def ratio(values: list[float]) -> str:
    """The mean and its 95 % interval."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return f"{mean:.2f}"
    half = T95.get(len(values) - 1, 1.96) * statistics.stdev(values) / len(values) ** 0.5
    return f"{mean:.2f} ± {half:.2f}"


if __name__ == "__main__":
    main()
