"""How fast attention is beside the memory and the multipliers it lives from. Knows kernels, no model.

    python benchmarks/attention.py [--isa avx2] [--threads 2]

Prefill: one layer over a whole prompt, in tiles of queries. Decode: one query each of many sequences whose KV is
larger than the caches, blocks scattered as after hours of serving; "in order" is what the same threads read from the
same memory at best.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
kernels = import_module("octavo._kernels")
ops = kernels.ops
TILE = 32
SEQUENCES = 16
LAYERS = 12


@dataclass(frozen=True)
class Case:
    """A shape of attention, and who computes it."""

    heads: int
    kv_heads: int
    head_dim: int
    kv: str
    isa: str
    pool: ThreadPoolExecutor
    threads: int

    def memory(self, tokens: int, sequences: int, layers: int) -> NDArray[np.uint8]:
        """Random K and V, [blocks, layers, bytes]; no value is large."""
        blocks, random = sequences * -(-tokens // 16), np.random.default_rng(0)
        if self.kv == "int8":
            size = (blocks, layers, 2 * self.kv_heads, 16 * (self.head_dim + 4))
            data = random.integers(0, 256, size, np.uint8)
            data[..., 16 * self.head_dim :] = np.full(16, 1 / 127, np.float32).view(np.uint8)
            return data.reshape(blocks, layers, -1)
        values = 2 * 16 * self.kv_heads * self.head_dim
        kind = np.uint16 if self.kv == "bf16" else np.uint32
        bits = random.integers(0x3F00, 0x3F80, (blocks, layers, values), kind)
        return (bits if self.kv == "bf16" else bits << kind(16)).view(np.uint8)

    def queries(self, tokens: int) -> NDArray[np.float32]:
        return np.random.default_rng(1).standard_normal((tokens, self.heads, self.head_dim), np.float32)

    def attend(
        self, memory: NDArray[np.uint8], layer: int, table: NDArray[np.int32], at: int, q: Floats
    ) -> None:
        scale = self.head_dim**-0.5
        ops.attention(
            memory,
            layer,
            table,
            at,
            q,
            kv_heads=self.kv_heads,
            scale=scale,
            kv=self.kv,
            isa=self.isa,
        )

    def seconds(self, work: Callable[[int], None], items: Iterable[int], times: int) -> float:
        """Of the fastest of `times` runs: the others were disturbed."""
        best, items = float("inf"), list(items)
        for _ in range(times):
            start = time.perf_counter()
            list(self.pool.map(work, items))
            best = min(best, time.perf_counter() - start)
        return best

    def __str__(self) -> str:
        return f"{self.heads:2}/{self.kv_heads} heads of {self.head_dim:3}, {self.kv}"


def prefill(case: Case, tokens: int) -> None:
    memory, q = case.memory(tokens, 1, 1), case.queries(tokens)
    table = np.arange(len(memory), dtype=np.int32)

    def tile(first: int) -> None:
        case.attend(memory, 0, table, first, q[first : first + TILE])

    seconds = case.seconds(tile, range(tokens - TILE, -1, -TILE), 9)  # the longest first
    rate = tokens * (tokens + 1) * case.heads * case.head_dim / seconds / 1e9
    print(f"prefill {tokens:5} tokens  {case}  {seconds * 1e3:7.2f} ms a layer  {rate:6.1f} GMAC/s")


def decode(case: Case, tokens: int) -> None:
    memory, q = case.memory(tokens, SEQUENCES, LAYERS), case.queries(1)
    tables = np.random.default_rng(2).permutation(len(memory)).astype(np.int32).reshape(SEQUENCES, -1)

    def sequence(s: int) -> None:
        for layer in range(LAYERS):
            case.attend(memory, layer, tables[s], tokens - 1, q)

    seconds = case.seconds(sequence, range(SEQUENCES), 7)
    read = min(ops.time_read(memory.reshape(-1), threads=case.threads, repeats=5))
    rate = 2 * tokens * case.heads * case.head_dim * SEQUENCES * LAYERS / seconds / 1e9
    print(
        f"decode  {tokens:5} tokens  {case}  {memory.nbytes / seconds / 1e9:7.1f} GB/s of "
        f"{memory.nbytes / read / 1e9:.1f} in order  {rate:6.1f} GMAC/s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--isa", default="", help="as OCTAVO_ISA; the best by default")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    isa, threads = arguments.isa or kernels.isa(), arguments.threads
    print(f"{isa}, {threads} threads")
    with ThreadPoolExecutor(threads) as pool:
        for shape in ((9, 3, 64), (8, 8, 64), (32, 8, 128)):
            for kv in ("bf16", "fp32", "int8"):
                case = Case(*shape, kv, isa, pool, threads)
                prefill(case, 512)
                decode(case, 1000)


if __name__ == "__main__":
    main()
