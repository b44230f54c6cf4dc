"""What it is worth to read a prefix that many sequences share once a step: the same blocks for all, or a copy for each.

    python -m benchmarks.cascade [--streams 32] [--prefix 2048] [--kv-dtype bf16] [--steps 40]

One native backend decodes two sets of streams in turns, so that both meet the same machine. All begin with the same
prompt; in the first set they share its blocks (what the prefix cache gives), in the second each has a copy. The bytes
are those of K and V that attention read, counted.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time

from rich.console import Console
from rich.table import Table

from octavo.backends.base import BlockCopy, ChoiceRule, Limits, Plan, PlanRow, SampleRow, SlotOpen
from octavo.backends.native import BLOCK_SIZE, NativeBackend
from octavo.models.store import open_model

CHUNK = 512
WARM = 4


class Streams:
    """Sequences that decode behind a prompt of whole blocks."""

    def __init__(
        self, backend: NativeBackend, slots: range, prompt: list[int], tables: list[list[int]]
    ) -> None:
        self._backend, self._slots, self._tables = backend, slots, tables
        # Each goes its own way from the first token on.
        self._ids = [[*prompt, 100 + slot] for slot in slots]
        self._opened = False

    def step(self, copies: tuple[BlockCopy, ...] = ()) -> float:
        """Seconds that a token for each of them took."""
        rule = ChoiceRule(prompt_tokens=1)
        opens = [
            SlotOpen(slot, tuple(ids), (tuple(table),), rule)
            for slot, ids, table in zip(self._slots, self._ids, self._tables, strict=True)
        ]
        rows = [
            PlanRow(slot, len(ids) - 1, 1, (ids[-1],))
            for slot, ids in zip(self._slots, self._ids, strict=True)
        ]
        samples = [SampleRow(row, 0, slot) for row, slot in enumerate(self._slots)]
        plan = Plan(0, () if self._opened else tuple(opens), copies, tuple(rows), tuple(samples))
        self._opened = True
        began = time.perf_counter()
        handle = self._backend.launch(plan)
        self._backend.sample(handle)
        seconds = time.perf_counter() - began
        for ids, sample in zip(self._ids, self._backend.collect(handle), strict=True):
            ids.append(sample.token)
        return seconds


def prefill(backend: NativeBackend, prompt: list[int], table: list[int]) -> None:
    """Write the prompt's K and V to the blocks of `table`."""
    rule = ChoiceRule(prompt_tokens=len(prompt))
    opens: tuple[SlotOpen, ...] = (SlotOpen(0, tuple(prompt), (tuple(table),), rule),)
    for start in range(0, len(prompt), CHUNK):
        row = PlanRow(0, start, min(CHUNK, len(prompt) - start), ())
        handle = backend.launch(Plan(0, opens, (), (row,), ()))
        backend.sample(handle)
        backend.collect(handle)
        opens = ()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="smollm2", help="alias, path or hf: reference")
    parser.add_argument("--streams", type=int, default=32, help="sequences that decode")
    parser.add_argument("--prefix", type=int, default=2048, help="tokens that all begin with: whole blocks")
    parser.add_argument("--kv-dtype", default="bf16", choices=("bf16", "fp32", "int8"))
    parser.add_argument("--threads", type=int, help="worker threads (default: all cores)")
    parser.add_argument("--steps", type=int, default=40, help="measured steps of each set")
    options = parser.parse_args()
    if options.prefix % BLOCK_SIZE:
        parser.error(f"--prefix is {options.prefix}; it must be a multiple of {BLOCK_SIZE}")

    model = open_model(options.model)
    streams, blocks = options.streams, options.prefix // BLOCK_SIZE
    own = -(-(options.steps + WARM + 1) // BLOCK_SIZE)
    free = iter(range(blocks + streams * (blocks + 2 * own)))

    def take(count: int) -> list[int]:
        return [next(free) for _ in range(count)]

    prefix = take(blocks)
    shared = [prefix + take(own) for _ in range(streams)]
    copied = [take(blocks + own) for _ in range(streams)]
    copies = [
        BlockCopy(0, source, target)
        for table in copied
        for source, target in zip(prefix, table, strict=False)
    ]
    longest = (blocks + own) * BLOCK_SIZE
    limits = Limits(
        blocks + streams * (blocks + 2 * own), BLOCK_SIZE, 2 * streams, max(CHUNK, streams), longest
    )
    backend = NativeBackend(model, limits, kv_dtype=options.kv_dtype, threads=options.threads)
    prompt = random.Random(0).choices(range(1000, model.spec.vocab_size), k=options.prefix)
    prefill(backend, prompt, prefix)
    sets = [
        Streams(backend, range(streams), prompt, shared),
        Streams(backend, range(streams, 2 * streams), prompt, copied),
    ]
    sets[1].step(tuple(copies))
    seconds: list[list[float]] = [[], []]
    nbytes = [0, 0]
    for step in range(WARM + options.steps):
        for which in (0, 1) if step % 2 else (1, 0):
            seconds[which].append(sets[which].step())
            nbytes[which] = backend.counters()["kv_bytes"]
    backend.close()

    title = f"{streams} streams behind {options.prefix} tokens, {backend.threads} threads, {options.kv_dtype} K and V"
    table = Table(
        "the prefix", "best, ms a step", "median, ms a step", "K and V read, MB a step", title=title
    )
    for name, runs, read in zip(("shared", "a copy for each"), seconds, nbytes, strict=True):
        best, usual = 1e3 * min(runs[WARM:]), 1e3 * statistics.median(runs[WARM:])
        table.add_row(name, f"{best:.1f}", f"{usual:.1f}", f"{read / 1e6:.1f}")
    Console().print(table)
    ratios = [apart / together for together, apart in zip(*(runs[WARM:] for runs in seconds), strict=True)]
    print(f"{statistics.median(ratios):.2f} times as fast, the median over pairs of steps")


if __name__ == "__main__":
    main()
