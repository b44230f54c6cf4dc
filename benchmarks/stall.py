"""What a long prompt does to streams that run: the worst gap between two of their tokens, under each policy.

    python -m benchmarks.stall [--streams 8] [--prompt 3000] [--tbt-target 100ms]

Everything runs through the real engine in this process. Streams decode; then a prompt comes. Beside the worst gap
stands the time to the prompt's first token, also against a run in which nothing else was going on.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.engine import add, processor
from octavo.cli.options import parse_duration
from octavo.config import EngineConfig
from octavo.engine.build import build_engine
from octavo.engine.engine import Engine
from octavo.models.store import open_model

RUNS: tuple[tuple[str, bool], ...] = (
    ("stall-free", True),
    ("stall-free", False),
    ("continuous", False),
    ("prefill-first", False),
    ("static", False),
)
"""Policy, and whether with the target."""
SETTLED = 40
"""Steps in which only the streams run, before the prompt."""
AFTER = 10


def first_token_s(engine: Engine, name: str) -> float:
    """Step until `name` has its first token; seconds from now."""
    began = time.perf_counter()
    while True:
        if any(item.request_id == name and item.samples for item in engine.step().items):
            return time.perf_counter() - began


def run(engine: Engine, streams: int, prompt: int, vocabulary: int) -> tuple[float, float, float, float]:
    """Seconds: the usual gap of a stream, the worst one after the prompt came, its first token then, and alone."""
    engine.add(add("alone", prompt, 1, vocabulary))
    alone = first_token_s(engine, "alone")
    for number in range(streams):
        engine.add(add(f"s{number}", 128, 4096, vocabulary))
    while not engine.idle and engine.stats().running < streams:
        engine.step()
    for _ in range(streams):
        engine.step()
    gaps: list[float] = []
    for _ in range(SETTLED):
        began = time.perf_counter()
        engine.step()
        gaps.append(time.perf_counter() - began)
    usual = statistics.median(gaps)
    engine.add(add("prompt", prompt, 1, vocabulary))
    began = last = time.perf_counter()
    first, worst, after = 0.0, 0.0, 0
    while after < AFTER:
        outputs = engine.step()
        now = time.perf_counter()
        if any(item.request_id == "s0" and item.samples for item in outputs.items):
            worst, last = max(worst, now - last), now
        if any(item.request_id == "prompt" and item.samples for item in outputs.items):
            first = now - began
        after += bool(first)
        if now - began > 20 * alone:  # static: the prompt waits for the streams' end
            first = float("inf")
    for number in range(streams):
        engine.abort(f"s{number}")
    engine.abort("prompt")
    while not engine.idle:
        engine.step()
    return usual, worst, first, alone


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="smollm2", help="alias, path or hf: reference")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=3000, help="its tokens")
    parser.add_argument("--tbt-target", type=parse_duration, default=0.1, metavar="TIME")
    options: Any = parser.parse_args()
    model = open_model(options.model)
    target = f"{1e3 * options.tbt_target:g} ms"
    table = Table("policy", "usual gap", "worst gap", "first token of the prompt", "alone", title=processor())
    for policy, targeted in track(RUNS, "policies", transient=True):
        config = EngineConfig(
            speculation="off",  # one token of each stream a step
            model_dir=str(model.dir),
            policy=policy,  # type: ignore[arg-type]
            max_model_len=min(8192, model.spec.context_tokens),
            kv_memory_bytes=1 << 30,
            prefix_cache=False,
            tbt_target_s=options.tbt_target if targeted else None,
        )
        engine = build_engine(config)
        usual, worst, first, alone = run(engine, options.streams, options.prompt, model.spec.vocab_size)
        engine.close()
        late = "after the streams" if first == float("inf") else f"{first:.2f} s ({first / alone:.1f} ×)"
        name = f"{policy}, {target}" if targeted else policy
        table.add_row(name, f"{1e3 * usual:.0f} ms", f"{1e3 * worst:.0f} ms", late, f"{alone:.2f} s")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
