"""What one side's flood costs the other: by priority, between two tenants, and batch work beside chats.

    python -m benchmarks.fairness [--requests 200] [--prompt 128] [--outputs 64] [--tbt-target 100ms]

Everything runs through the real engine in this process, which is measured alone first:
  - a flood of low priority, then one request of high priority: its first token, alone and behind the flood
  - a tenant with a flood, then another one: its first token, and its part of the tokens while both have work waiting
  - chats that decode, with batch work beside them: the gaps between the chats' tokens, and what batch gets of the time
    that they leave
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.engine import add, processor
from octavo.cli.options import parse_duration
from octavo.config import EngineConfig
from octavo.engine.build import build_engine
from octavo.engine.engine import Engine
from octavo.models.store import open_model
from octavo.scheduling.inputs import Service

FLOODED_S = 3.0
"""How long a flood has run when the other side comes."""
BESIDE_S = 20.0
"""How long chats and batch are watched."""


class Watched:
    """An engine, and when each request's tokens came, in seconds of this machine."""

    def __init__(self, engine: Engine, vocabulary: int) -> None:
        self.engine, self._vocabulary = engine, vocabulary
        self.times: dict[str, list[float]] = {}
        self.arrived: dict[str, float] = {}
        self.prompts: dict[str, int] = {}
        self.steps: list[float] = []

    def add(self, name: str, prompt: int, outputs: int, **service: Any) -> None:
        asked = add(name, prompt, outputs, self._vocabulary)
        self.arrived[name], self.prompts[name] = time.perf_counter(), prompt
        self.engine.add(
            msgspec.structs.replace(asked, service=Service(**service), arrival_s=self.engine.clock.now_s())
        )

    def run(self, done: Callable[[], bool]) -> None:
        while not self.engine.idle and not done():
            began = time.perf_counter()
            outputs = self.engine.step()
            now = time.perf_counter()
            self.steps.append(now - began)
            for item in outputs.items:
                self.times.setdefault(item.request_id, []).extend([now] * len(item.samples))

    def run_for(self, seconds: float) -> None:
        end = time.perf_counter() + seconds
        self.run(lambda: time.perf_counter() > end)

    def first_token_s(self, name: str) -> float:
        return self.times[name][0] - self.arrived[name]

    def served(self, kind: str, since: float, until: float) -> int:
        """Tokens computed for the requests of a kind; a prompt counts when its first token comes."""
        count = 0
        for name, times in self.times.items():
            if name.startswith(kind) and times:
                count += sum(since < at <= until for at in times)
                count += self.prompts[name] * (since < times[0] <= until)
        return count

    def clear(self) -> None:
        for name in self.arrived:
            self.engine.abort(name)
        while not self.engine.idle:
            self.engine.step()
        for kept in (self.times, self.arrived, self.prompts, self.steps):
            kept.clear()


def alone_s(watched: Watched, prompt: int) -> float:
    """The first token of a request that has the machine to itself, the median of five."""
    seconds = []
    for number in range(5):
        watched.add(f"alone{number}", prompt, 1)
        watched.run(lambda name=f"alone{number}": name in watched.times)  # type: ignore[misc]
        seconds.append(watched.first_token_s(f"alone{number}"))
        watched.clear()
    return statistics.median(seconds)


def priority(watched: Watched, options: Any) -> list[tuple[str, str]]:
    alone = alone_s(watched, options.prompt)
    for number in range(options.requests):
        watched.add(f"low{number}", options.prompt, options.outputs)
    watched.run_for(FLOODED_S)
    before = len(watched.steps)
    watched.add("high", options.prompt, 4, priority=-1)
    watched.run(lambda: "high" in watched.times)
    behind, steps = watched.first_token_s("high"), watched.steps[before:]
    waiting = watched.engine.stats().waiting
    watched.clear()
    return [
        ("a request of high priority: its first token alone", f"{1e3 * alone:.0f} ms"),
        (f"the same behind a flood of {options.requests} low ones", f"{1e3 * behind:.0f} ms"),
        (
            "steps until then, and the longest",
            f"{len(steps)}, {1e3 * max(steps):.0f} ms",
        ),
        ("requests of the flood that still wait", f"{waiting}"),
    ]


def tenants(watched: Watched, options: Any) -> list[tuple[str, str]]:
    alone = alone_s(watched, options.prompt)
    for number in range(options.requests):
        watched.add(f"a{number}", options.prompt, options.outputs, tenant="a")
    watched.run_for(FLOODED_S)
    since, last = time.perf_counter(), options.requests // 3 - 1
    for number in range(last + 1):
        watched.add(f"b{number}", options.prompt, options.outputs, tenant="b")
    watched.run(lambda: f"b{last}" in watched.times)
    until = time.perf_counter()
    a, b = watched.served("a", since, until), watched.served("b", since, until)
    first, begun = watched.first_token_s("b0"), sum(name.startswith("a") for name in watched.times)
    watched.clear()
    return [
        ("a second tenant: the first token of its first request, alone", f"{1e3 * alone:.0f} ms"),
        (f"the same behind another's {options.requests} requests", f"{1e3 * first:.0f} ms"),
        (
            "its part of the tokens while both have work waiting",
            f"{100 * b / (a + b):.0f} % of {a + b}; {options.requests - begun} of the others still wait",
        ),
    ]


def batch(watched: Watched, options: Any) -> list[tuple[str, str]]:
    def run(chats: int, batches: int) -> tuple[list[float], float]:
        """The gaps of the chats, and the tokens a second computed for the batch."""
        for number in range(chats):
            watched.add(f"chat{number}", options.prompt, 4000, profile="chat")
        watched.run(lambda: sum(name in watched.times for name in watched.arrived) == chats)
        for number in range(batches):
            watched.add(f"batch{number}", options.prompt, options.outputs, profile="batch")
        since = time.perf_counter()
        watched.run_for(BESIDE_S)
        until = time.perf_counter()
        gaps = [
            later - earlier
            for name, times in watched.times.items()
            if name.startswith("chat")
            for earlier, later in pairwise(times)
            if earlier > since
        ]
        done = watched.served("batch", since, until) / (until - since)
        watched.clear()
        return gaps, done

    bare, _ = run(options.chats, 0)
    _, alone = run(0, 3 * options.requests)
    gaps, beside = run(options.chats, 3 * options.requests)
    # What the chats leave: of each step as long as the target, all but the time that they need by themselves.
    rest = alone * (1 - statistics.median(bare) / options.tbt_target)
    ranked = sorted(gaps)
    gap = ", ".join(f"{1e3 * ranked[int(part * (len(ranked) - 1))]:.0f}" for part in (0.5, 0.99, 1.0))
    return [
        (
            f"{options.chats} chats: the median gap of their tokens, no batch",
            f"{1e3 * statistics.median(bare):.0f} ms",
        ),
        ("the same beside a batch: median, 99 of 100, worst", f"{gap} ms"),
        ("batch alone, tokens/s", f"{alone:.0f}"),
        ("batch beside them, tokens/s, and of what they leave", f"{beside:.0f}, {100 * beside / rest:.0f} %"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="smollm2", help="alias, path or hf: reference")
    parser.add_argument("--requests", type=int, default=200, help="of a flood")
    parser.add_argument("--prompt", type=int, default=128, help="tokens of each prompt")
    parser.add_argument("--outputs", type=int, default=64, help="tokens of each answer of a flood")
    parser.add_argument("--chats", type=int, default=4)
    parser.add_argument("--tbt-target", type=parse_duration, default=0.1, metavar="TIME")
    options: Any = parser.parse_args()
    model = open_model(options.model)
    config = EngineConfig(
        speculation="off",  # one token of each stream a step
        model_dir=str(model.dir),
        max_model_len=min(8192, model.spec.context_tokens),
        kv_memory_bytes=1 << 30,
        prefix_cache=False,
        tbt_target_s=options.tbt_target,
    )
    engine = build_engine(config)
    watched = Watched(engine, model.spec.vocab_size)
    table = Table("what", "measured", title=processor())
    for rows in (priority(watched, options), tenants(watched, options), batch(watched, options)):
        for row in rows:
            table.add_row(*row)
        table.add_section()
    engine.close()
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
