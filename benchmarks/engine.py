"""How fast the engine steps on this machine: prompts, one stream, many streams, with the machine's limits beside them.

    python benchmarks/engine.py [--model smollm2] [--threads N] [--weights copy|map] [--repeats 3]

Everything runs through the real engine (scheduler, plans, native backend) in this process. Compare figures of one run
only: machines are noisy, and the limits in the last rows were measured in the same minute.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import numpy as np
from rich.console import Console
from rich.table import Table

from octavo.backends.native import load_kernels
from octavo.config import EngineConfig
from octavo.engine.build import build_engine
from octavo.engine.engine import Engine
from octavo.models.store import open_model
from octavo.sampling.params import SamplingParams
from octavo.scheduling.inputs import Add

PREFILL = (128, 512, 2048)
STREAMS = (1, 4, 8, 16, 32, 64)
CONTEXT = 128
"""Tokens before the decoded ones."""
DECODED = 64
READ_BYTES = 96 << 20
"""About what a decode step of the default model reads."""


def add(name: str, tokens: int, outputs: int, vocabulary: int) -> Add:
    ids = tuple(random.Random(name).choices(range(vocabulary), k=tokens))
    params = SamplingParams(temperature=0.0, max_tokens=outputs, ignore_eos=True, seed=0)
    return Add(name, ids, params, 0.0)


def prefill(engine: Engine, tokens: int, vocabulary: int) -> float:
    """Prompt tokens per second of one prompt, its first token chosen."""
    engine.add(add(f"p{tokens}", tokens, 1, vocabulary))
    began = time.perf_counter()
    while not engine.idle:
        engine.step()
    return tokens / (time.perf_counter() - began)


def decode(engine: Engine, streams: int, vocabulary: int) -> float:
    """Output tokens per second of `streams` sequences that all decode."""
    for number in range(streams):
        engine.add(add(f"d{number}", CONTEXT, DECODED + 1, vocabulary))
    chosen = 0
    while chosen < streams:  # until each has its first token
        chosen += sum(len(item.samples) for item in engine.step().items)
    began, before = time.perf_counter(), chosen
    while not engine.idle:
        chosen += sum(len(item.samples) for item in engine.step().items)
    return (chosen - before) / (time.perf_counter() - began)


def best(repeats: int, measure: Callable[[], float]) -> tuple[float, float]:
    """Best and median: the best is what the machine can do, the median what it did."""
    runs = [measure() for _ in range(repeats)]
    return max(runs), statistics.median(runs)


def read_bandwidth(threads: int) -> float:
    """Bytes per second that `threads` read from memory together, each its part of READ_BYTES."""
    parts = np.array_split(np.ones(READ_BYTES // 8, np.uint64), threads)

    def read(part: np.ndarray) -> None:
        for _ in range(8):
            part.max()

    workers = [Thread(target=read, args=(part,)) for part in parts]
    began = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return 8 * READ_BYTES / (time.perf_counter() - began)


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown processor"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2", help="alias, path or hf: reference")
    parser.add_argument("--threads", type=int, help="worker threads (default: all cores)")
    parser.add_argument("--weights", default="auto", choices=("auto", "copy", "map"), help="where they lie")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each row")
    arguments = parser.parse_args()
    model = open_model(arguments.model)
    config = EngineConfig(
        model_dir=str(model.dir),
        num_blocks=2000,
        max_model_len=4096,
        threads=arguments.threads,
        weights=arguments.weights,
    )
    engine = build_engine(config)
    vocabulary, threads = model.spec.vocab_size, engine.info.threads
    title = f"{model.spec.name}, {processor()}, {load_kernels().isa()}, {threads} threads"
    table = Table("work", "best, tokens/s", "median, tokens/s", title=title)
    prefill(engine, 512, vocabulary)  # touches weights and memory once
    for tokens in PREFILL:
        fast, usual = best(arguments.repeats, lambda n=tokens: prefill(engine, n, vocabulary))  # type: ignore[misc]
        table.add_row(f"prefill of {tokens}", f"{fast:.0f}", f"{usual:.0f}")
    for streams in STREAMS:
        fast, usual = best(arguments.repeats, lambda n=streams: decode(engine, n, vocabulary))  # type: ignore[misc]
        table.add_row(f"{streams} streams, {CONTEXT} tokens before", f"{fast:.0f}", f"{usual:.0f}")
    engine.close()
    weights = model.weights().nbytes
    table.add_section()
    for count in (1, threads):
        fast, usual = best(arguments.repeats, lambda n=count: read_bandwidth(n))  # type: ignore[misc]
        table.add_row(
            f"limit of one stream: {weights / 1e6:.0f} MB of weights a token, read by {count} threads",
            f"{fast / weights:.0f} ({fast / 1e9:.1f} GB/s)",
            f"{usual / weights:.0f} ({usual / 1e9:.1f} GB/s)",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
