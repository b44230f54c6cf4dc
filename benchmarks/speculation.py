"""What guessed tokens are worth: the same requests with and without, in turns, and how often guesses are right.

    python -m benchmarks.speculation [--pairs 10] [--outputs 240] [--streams 1 8 32] [--speculation auto] [--json FILE]
    python -m benchmarks.speculation --forced 4 --streams 1 2 4 8 16 32 64 --works code
    python -m benchmarks.speculation --model big.gguf --speculation draft:smollm2 --works prose

Engines in this process answer the same prompts, one without guesses and one or two with, a step of each in turns; the
answers must be equal, token for token. Work that copies (benchmarks.works) stands beside free prose. With one stream,
what loops at its end is left out (small models loop, and a loop guesses itself), and what should copy and does not.
--forced tries so many tokens in every step, beside what the control does. --json writes the acceptance profile
(docs/speculation-profile.md), for simulations.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.engine import processor
from benchmarks.works import COPIED, COPYING, LOOP, WORKS, Work, copied, loops
from octavo.config import EngineConfig
from octavo.engine.build import build_engine
from octavo.engine.engine import Engine
from octavo.models.store import StoredModel, open_model
from octavo.sampling.params import SamplingParams
from octavo.scheduling.inputs import Add
from octavo.speculation.profile import Acceptance, Profile
from octavo.speculation.registry import DRAFTERS, with_draft_folder
from octavo.text.chat import ChatTemplate
from octavo.text.conversation import encode_conversation

T95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
"""Student's t for a 95 % interval, by degrees of freedom."""


class Asked:
    """Requests on one engine, all at once. Seconds and tokens are of the time while all of them decode: from the last
    first token on until the first one has ended, as on a server where others take the place of those that end."""

    def __init__(self, engine: Engine, adds: Sequence[Add]) -> None:
        self.engine = engine
        self.answers: dict[str, list[int]] = {add.request_id: [] for add in adds}
        self.seconds = 0.0
        self.tokens = 0
        self._ended = False
        for add in adds:
            engine.add(add)

    def step(self) -> None:
        decoding = all(self.answers.values()) and not self._ended
        began = time.perf_counter()
        items = self.engine.step().items
        taken = time.perf_counter() - began
        told = 0
        for item in items:
            told += len(item.samples)
            self.answers[item.request_id].extend(sample.token for sample in item.samples)
            self._ended |= item.finish_reason is not None
        if decoding:
            self.seconds += taken
            self.tokens += told

    @property
    def rate(self) -> float:
        """Tokens a second."""
        if not self.seconds:
            raise SystemExit(
                "some answers ended before all had begun: give more --outputs, or fewer --streams"
            )
        return self.tokens / self.seconds


def ask(engines: Sequence[Engine], adds: Sequence[Add]) -> list[Asked]:
    """The same of all, a step of each in turns: so the machine is as fast for one as for the other."""
    asked = [Asked(engine, adds) for engine in engines]
    while not all(one.engine.idle for one in asked):
        for one in asked:
            if not one.engine.idle:
                one.step()
    return asked


class Bench:
    """Engines over one model."""

    def __init__(self, model: StoredModel, streams: int, outputs: int) -> None:
        self._outputs = outputs
        self._tokenizer, self._template = model.tokenizer(), ChatTemplate(model.spec.chat_template)
        self._shared: dict[str, Any] = {
            "model_dir": str(model.dir),
            "num_blocks": streams * 64,
            "max_running": streams,
            "max_model_len": min(1024, model.spec.context_tokens),
            "prefix_cache": False,
        }

    def engine(self, speculation: str, tokens: int | None = None) -> Engine:
        return build_engine(EngineConfig(speculation=speculation, speculation_tokens=tokens, **self._shared))

    def add(self, name: str, work: Work, temperature: float = 0.0, *, ignore_eos: bool = False) -> Add:
        ids = (
            self._tokenizer.encode(work.text)
            if work.raw
            else encode_conversation(
                self._tokenizer, self._template, [{"role": "user", "content": work.text}]
            )
        )
        params = SamplingParams(
            temperature=temperature, max_tokens=self._outputs, seed=1, ignore_eos=ignore_eos
        )
        return Add(name, tuple(ids), params, 0.0)


def interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Mean of the logarithms and its 95 % interval, as ratios."""
    logs = [math.log(ratio) for ratio in ratios]
    middle = statistics.fmean(logs)
    wide = T95.get(len(logs) - 1, 2.0) * statistics.stdev(logs) / len(logs) ** 0.5 if len(logs) > 1 else 0.0
    return math.exp(middle - wide), math.exp(middle), math.exp(middle + wide)


def shown(ratios: Sequence[float]) -> str:
    low, middle, high = interval(ratios)
    return f"{middle:.2f} ({low:.2f} to {high:.2f})" if len(ratios) > 1 else f"{middle:.2f}"


class Guesses:
    """What an engine guessed since this was made, and how much of its steps went into that."""

    def __init__(self, engine: Engine) -> None:
        speculator = engine._speculator
        assert speculator is not None
        self._engine, self._speculator = engine, speculator
        self._before = engine.stats()
        self._reached, self._accepted = list(speculator.reached_at), list(speculator.accepted_at)
        self._guessing_s = self._steps_s = 0.0
        propose, step = type(speculator).propose, type(engine).step

        def timed_propose() -> Any:
            began = time.perf_counter()
            drafts = propose(speculator)
            self._guessing_s += time.perf_counter() - began
            return drafts

        def timed_step() -> Any:
            began = time.perf_counter()
            outputs = step(engine)
            self._steps_s += time.perf_counter() - began
            return outputs

        speculator.propose = timed_propose  # type: ignore[method-assign]
        engine.step = timed_step  # type: ignore[method-assign]

    @property
    def share(self) -> float:
        """Of the engine's time, that guessing took."""
        return self._guessing_s / self._steps_s

    def acceptance(self, work: str, streams: int, ratio: float) -> Acceptance:
        after, before, speculator = self._engine.stats(), self._before, self._speculator
        reached = zip(speculator.reached_at, self._reached, strict=True)
        accepted = zip(speculator.accepted_at, self._accepted, strict=True)
        return Acceptance(
            work=work,
            streams=streams,
            tokens=after.generation_tokens - before.generation_tokens,
            drafts=after.drafts - before.drafts,
            draft_tokens=after.draft_tokens - before.draft_tokens,
            reached_at=tuple(now - then for now, then in reached),
            accepted_at=tuple(now - then for now, then in accepted),
            times_as_fast=ratio,
        )


def compare(
    engines: Sequence[Engine], groups: Sequence[Sequence[Add]], pairs: int, streams: int
) -> tuple[list[list[float]], list[list[float]], int]:
    """Each engine's speed beside the first one's, by pair and by group; and how many answers count. With one stream,
    those that loop do not, nor those that should copy and do not."""
    by_pair: list[list[list[float]]] = [[[] for _ in engines[1:]] for _ in range(pairs)]
    by_group: list[list[float]] = [[] for _ in engines[1:]]
    counted = 0
    for adds in groups:
        ratios: list[list[float]] = [[] for _ in engines[1:]]
        left_out = False
        for number in range(pairs):
            order = engines if number % 2 else [*reversed(engines)]
            # Of a scope of its own: what was answered in the turn before is no guess.
            own_adds = [msgspec.structs.replace(add, cache_salt=f"{add.request_id} {number}") for add in adds]
            asked = {id(one.engine): one for one in ask(order, own_adds)}
            plain = asked[id(engines[0])]
            for place, engine in enumerate(engines[1:]):
                other = asked[id(engine)]
                assert other.answers == plain.answers, "an answer changed"
                ratios[place].append(other.rate / plain.rate)
            [(name, answer), *_] = plain.answers.items()
            left_out = streams == 1 and (loops(answer) or len(answer) < LOOP)
            if streams == 1 and name.startswith(COPYING):
                left_out |= copied(adds[0].prompt, answer) < COPIED
            if left_out:
                break
        if left_out:
            continue
        counted += len(adds)
        for place, own in enumerate(ratios):
            by_group[place].append(statistics.fmean(own))
            for number, ratio in enumerate(own):
                by_pair[number][place].append(ratio)
    means = [
        [statistics.fmean(pair[place]) for pair in by_pair if pair[place]]
        for place in range(len(engines) - 1)
    ]
    return means, by_group, counted


def groups_of(bench: Bench, work: str, streams: int, temperature: float) -> list[list[Add]]:
    """One stream: each request alone. More: all at once, as often as needed."""
    works = WORKS[work]
    if streams == 1:
        return [[bench.add(f"{work}{n}", one, temperature)] for n, one in enumerate(works)]
    repeated = islice(cycle(works), streams)
    return [[bench.add(f"{work}{n}", one, temperature, ignore_eos=True) for n, one in enumerate(repeated)]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2", help="alias, path or hf: reference")
    parser.add_argument("--pairs", type=int, default=10, help="turns of each comparison")
    parser.add_argument("--outputs", type=int, default=240, help="tokens of each answer, at most")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--forced", type=int, metavar="TOKENS", help="one more engine that guesses so many")
    parser.add_argument(
        "--speculation",
        default="auto",
        help=f"{', '.join(DRAFTERS)} or draft:MODEL; each turn has a scope of its own, so suffix finds nothing here",
    )
    parser.add_argument("--works", nargs="+", choices=WORKS, default=list(WORKS))
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the acceptance profile there")
    options = parser.parse_args()
    model = open_model(options.model)
    speculation, draft = with_draft_folder(options.speculation, open_model)
    columns = ["work", "streams", f"{options.speculation}: times as fast (95 %)", "guessed, right", "looking"]
    if options.forced:
        columns.append(f"{options.forced} tokens in every step")
    table = Table(*columns, "answers", title=f"{model.spec.name}, {processor()}")
    found: list[Acceptance] = []
    copying: list[float] = []
    for streams in options.streams:
        bench = Bench(model, streams, options.outputs)
        engines = [bench.engine("off"), bench.engine(speculation)]
        if options.forced:
            engines.append(bench.engine(speculation, options.forced))
        for work in track(options.works, f"{streams} streams", transient=True):
            guesses = Guesses(engines[1])
            groups = groups_of(bench, work, streams, options.temperature)
            by_pair, by_group, counted = compare(engines, groups, options.pairs, streams)
            if not counted:
                table.add_row(work, str(streams), "every answer loops")
                continue
            if streams == 1 and work in COPYING:
                copying += by_group[0]
            one = guesses.acceptance(work, streams, interval(by_pair[0])[1])
            found.append(one)
            share = f"{one.draft_tokens}, {100 * one.right:.0f} %" if one.drafts else "none"
            more = [shown(by_pair[1])] if options.forced else []
            table.add_row(
                work,
                str(streams),
                shown(by_pair[0]),
                share,
                f"{100 * guesses.share:.1f} %",
                *more,
                str(counted),
            )
        for engine in engines:
            engine.close()
    console = Console(width=150)
    console.print(table)
    if copying:
        console.print(
            f"all {len(copying)} answers that copy, one stream: {statistics.geometric_mean(copying):.2f} times as fast"
        )
    if options.json:
        Profile(
            model=model.spec.name,
            draft_model=draft.spec.name if draft else None,
            drafter=options.speculation,
            temperature=options.temperature,
            works=tuple(found),
        ).write(options.json)


if __name__ == "__main__":
    main()
