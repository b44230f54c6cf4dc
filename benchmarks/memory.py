"""What paging, sharing and forking save: memory wasted and requests at once, by allocator, at equal memory.

    python -m benchmarks.memory [--requests 60] [--kv-tokens 6144] [--max-model-len 2048]

Requests with lengths like ShareGPT's (log-normal, the published means of 161 prompt and 338 output tokens, divided by
--shrink) all arrive at once and run on the real engine under each allocator. Below: the blocks that parallel sampling
and beam search save by sharing. Published: waste of 60 to 80 % where memory is reserved for the longest sequence and under 4 % paged;
2.2 and 4.3 times as many requests as reserved by oracle and for the longest; 6 to 30 % saved by parallel sampling
and 38 to 66 % by beam search (Kwon et al. 2023, arXiv:2309.06180).
"""

from __future__ import annotations

import argparse
import math
import random
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

PROMPT_MEAN, OUTPUT_MEAN, SIGMA = 161, 338, 1.0
"""Tokens in ShareGPT (vLLM's paper, figure 11), and the spread of the logarithms."""


def lengths(requests: int, shrink: float, longest: int) -> list[tuple[int, int]]:
    """(prompt, output) tokens of each request, always the same ones."""
    chance = random.Random(0)
    drawn = []
    for _ in range(requests):
        pair = [
            max(1, int(chance.lognormvariate(math.log(mean / shrink) - SIGMA**2 / 2, SIGMA)))
            for mean in (PROMPT_MEAN, OUTPUT_MEAN)
        ]
        prompt = min(pair[0], longest - 2)
        drawn.append((prompt, min(pair[1], longest - prompt)))
    return drawn


def serve(model: StoredModel, config: EngineConfig, asked: list[tuple[int, SamplingParams]]) -> Report:
    """All requests at once, to their end."""
    engine = build_engine(config)
    try:
        for number, (prompt, params) in enumerate(asked):
            ids = tuple(random.Random(number).choices(range(1000, model.spec.vocab_size), k=prompt))
            engine.add(Add(str(number), ids, params, 0.0))
        while not engine.idle:
            engine.step()
        return engine.report()
    finally:
        engine.close()


def allocators(model: StoredModel, options: Any) -> Table:
    asked = [
        (prompt, SamplingParams(temperature=0.0, max_tokens=output, ignore_eos=True, seed=0))
        for prompt, output in lengths(options.requests, options.shrink, options.max_model_len)
    ]
    reports = {}
    for allocator in track(get_args(AllocatorName), "allocators", transient=True):
        config = EngineConfig(
            model_dir=str(model.dir),
            allocator=allocator,
            num_blocks=options.kv_tokens // 16,
            max_model_len=options.max_model_len,
            max_running=256,
            prefix_cache=False,
        )
        reports[allocator] = serve(model, config, asked)
    table = Table(
        "allocator", "internal waste", "external waste", "at once, mean", "most", "seconds", "paged has",
        title=f"{options.requests} requests in {options.kv_tokens} tokens of KV memory, {processor()}",
    )  # fmt: skip
    for allocator, report in reports.items():
        table.add_row(
            allocator,
            f"{100 * report.internal_waste:.1f} %",
            f"{100 * report.external_waste:.1f} %",
            f"{report.running:.1f}",
            str(report.most_running),
            f"{report.busy_s:.0f}",
            f"{reports['paged'].running / report.running:.1f} × as many",
        )
    return table


def sharing(model: StoredModel, options: Any) -> Table:
    table = Table("requests", "blocks saved by sharing", "published", title="Copy-on-write")
    for name, params, published in (
        ("parallel sampling, n = 2", {"n": 2}, "6 to 10 %"),
        ("parallel sampling, n = 4", {"n": 4}, "12 to 17 %"),
        ("parallel sampling, n = 6", {"n": 6}, "12 to 30 %"),
        ("beam search, width 2", {"beam_width": 2, "temperature": 0.0}, "38 to 47 %"),
        ("beam search, width 4", {"beam_width": 4, "temperature": 0.0}, "53 to 60 %"),
        ("beam search, width 6", {"beam_width": 6, "temperature": 0.0}, "55 to 66 %"),
    ):
        asked = [
            (prompt, SamplingParams(max_tokens=output, ignore_eos=True, seed=0, **params))
            for prompt, output in lengths(options.requests // 5, options.shrink, options.max_model_len // 2)
        ]
        config = EngineConfig(
            model_dir=str(model.dir),
            num_blocks=4 * options.kv_tokens // 16,
            max_model_len=options.max_model_len,
            prefix_cache=False,
        )
        report = serve(model, config, asked)
        table.add_row(name, f"{100 * report.sharing_saved:.1f} %", published)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2", help="alias, path or hf: reference")
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--kv-tokens", type=int, default=6144, help="that the KV memory holds")
    parser.add_argument("--max-model-len", type=int, default=2048)
    parser.add_argument("--shrink", type=float, default=2.0, help="divides the lengths: a shorter run")
    options = parser.parse_args()
    model = open_model(options.model)
    console = Console(width=120)
    console.print(allocators(model, options))
    console.print(sharing(model, options))


if __name__ == "__main__":
    main()
