"""What paging, sharing and forking save: memory wasted and requests at once, by allocator, at equal memory.

    python -m benchmarks.memory [--requests 40] [--kv-tokens 12288] [--max-model-len 2048]

Requests with lengths like ShareGPT's (log-normal, the published means of 161 prompt and 338 output tokens, divided by
--shrink) all arrive at once and run on the real engine under each allocator. Below: what parallel sampling and beam
search save by sharing, with lengths like Alpaca's (19 and 58) and ShareGPT's. Published (Kwon et al. 2023,
arXiv:2309.06180): waste of 60 to 80 % where memory is reserved for the longest sequence, under 4 % paged; 2.2 and 4.3
times as many requests as reserved by oracle and for the longest.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
from typing import Any, get_args

from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.engine import processor
from octavo.config import AllocatorName, EngineConfig
from octavo.engine.build import build_engine
from octavo.memory.accounting import Report
from octavo.models.store import StoredModel, open_model
from octavo.sampling.params import SamplingParams
from octavo.scheduling.inputs import Add

SHAREGPT, ALPACA = (161.3, 337.99), (19.31, 58.45)
"""Mean prompt and output tokens (figure 11 of that paper)."""
SIGMA = 1.0
"""Spread of the lengths' logarithms."""


def lengths(
    requests: int, longest: int, means: tuple[float, float], shrink: float = 1.0
) -> list[tuple[int, int]]:
    """(prompt, output) tokens of each request, always the same ones."""
    chance = random.Random(0)
    drawn = []
    for _ in range(requests):
        pair = [
            max(1, round(chance.lognormvariate(math.log(mean / shrink) - SIGMA**2 / 2, SIGMA)))
            for mean in means
        ]
        prompt = min(pair[0], longest - 2)
        drawn.append((prompt, min(pair[1], longest - prompt)))
    return drawn


def serve(
    model: StoredModel, config: EngineConfig, asked: list[tuple[int, SamplingParams]]
) -> tuple[Report, float]:
    """All requests at once, to their end: the report, and how many ran at once while others waited."""
    engine = build_engine(config)
    crowded: list[int] = []
    try:
        for number, (prompt, params) in enumerate(asked):
            ids = tuple(random.Random(number).choices(range(1000, model.spec.vocab_size), k=prompt))
            engine.add(Add(str(number), ids, params, 0.0))
        while not engine.idle:
            stats = engine.step().stats
            if stats.waiting:
                crowded.append(stats.running)
        return engine.report(), statistics.fmean(crowded or [0])
    finally:
        engine.close()


def allocators(model: StoredModel, options: Any) -> Table:
    asked = [
        (prompt, SamplingParams(temperature=0.0, max_tokens=output, ignore_eos=True, seed=0))
        for prompt, output in lengths(options.requests, options.max_model_len, SHAREGPT, options.shrink)
    ]
    reports = {}
    for allocator in track(get_args(AllocatorName), "allocators", transient=True):
        config = EngineConfig(
            speculation="off",  # one token of each stream a step
            model_dir=str(model.dir),
            allocator=allocator,
            num_blocks=options.kv_tokens // 16,
            max_model_len=options.max_model_len,
            max_running=256,
            prefix_cache=False,
        )
        reports[allocator] = serve(model, config, asked)
    table = Table(
        "allocator", "internal waste", "external waste", "at once while others wait", "most", "seconds", "paged has",
        title=f"{options.requests} requests in {options.kv_tokens} tokens of KV memory, {processor()}",
    )  # fmt: skip
    for allocator, (report, crowded) in reports.items():
        table.add_row(
            allocator,
            f"{100 * report.internal_waste:.1f} %",
            f"{100 * report.external_waste:.1f} %",
            f"{crowded:.1f}",
            str(report.most_running),
            f"{report.busy_s:.0f}",
            f"{reports['paged'][1] / crowded:.1f} × as many" if crowded else "",
        )
    return table


KINDS: tuple[tuple[str, dict[str, Any], str, str], ...] = (
    ("parallel sampling, n = 2", {"n": 2}, "6.1 %", "16.2 %"),
    ("parallel sampling, n = 4", {"n": 4}, "8.5 %", "25.2 %"),
    ("parallel sampling, n = 6", {"n": 6}, "9.8 %", "30.5 %"),
    ("beam search, width 2", {"beam_width": 2, "temperature": 0.0}, "37.6 %", "44.3 %"),
    ("beam search, width 4", {"beam_width": 4, "temperature": 0.0}, "53.1 %", "61.7 %"),
    ("beam search, width 6", {"beam_width": 6, "temperature": 0.0}, "55.2 %", "66.3 %"),
)
"""Name, parameters, and what the paper (figure 15 and section 6.3) gives for Alpaca and for ShareGPT."""


def sharing(model: StoredModel, options: Any) -> Table:
    table = Table("requests", "Alpaca", "published", "ShareGPT", "published", title="Blocks saved by sharing")
    config = EngineConfig(
        speculation="off",  # one token of each stream a step
        model_dir=str(model.dir),
        num_blocks=4096,
        max_model_len=options.max_model_len,
        prefix_cache=False,
    )
    for name, params, *published in track(KINDS, "sharing", transient=True):
        saved = []
        for means, shrink in ((ALPACA, 1.0), (SHAREGPT, options.shrink)):
            asked = [
                (prompt, SamplingParams(max_tokens=output, ignore_eos=True, seed=0, **params))
                for prompt, output in lengths(options.searches, options.max_model_len // 4, means, shrink)
            ]
            saved.append(f"{100 * serve(model, config, asked)[0].sharing_saved:.1f} %")
        table.add_row(name, saved[0], published[0], saved[1], published[1])
    return table


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2", help="alias, path or hf: reference")
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--kv-tokens", type=int, default=12288, help="that the KV memory holds")
    parser.add_argument("--max-model-len", type=int, default=2048)
    parser.add_argument("--shrink", type=float, default=1.0, help="divides the lengths: a shorter run")
    parser.add_argument("--searches", type=int, default=6, help="requests of each kind that shares")
    options = parser.parse_args()
    model = open_model(options.model)
    console = Console(width=120)
    console.print(allocators(model, options))
    console.print(sharing(model, options))


if __name__ == "__main__":
    main()
