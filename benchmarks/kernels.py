"""How fast the packed products are, beside what the memory can deliver. Knows the shapes of the default model only.

    python benchmarks/kernels.py [--isa avx2] [--rows 1 32] [--threads 1 2] [--repeats 20]

All matrices of a step, one after the other, from memory (101 MB are more than most caches hold), with random weights:
the layers as U4 with minima (Q4_1), the output matrix as U8 (Q8_0), and both. Best of the repetitions. Bandwidth is
what the same threads read from the same bytes at best; few rows are limited by it, many rows by arithmetic.
"""

from __future__ import annotations

import argparse
from importlib import import_module
from typing import Any

import numpy as np

kernels = import_module("octavo._kernels")
ops = kernels.ops

LAYERS, HIDDEN, FFN, KV, VOCAB = 30, 576, 1536, 192, 49_152
LAYER = [(HIDDEN + 2 * KV, HIDDEN), (HIDDEN, HIDDEN), (FFN, HIDDEN), (FFN, HIDDEN), (HIDDEN, FFN)]
ROWS = [1, 4, 8, 16, 32, 64, 128, 512]
Q4_1, Q8_0 = 3, 8


def matrix(rng: np.random.Generator, ggml_type: int, rows: int, cols: int) -> tuple[Any, Any, int]:
    """A random one: bound, as packed bytes, and how many weights it has."""
    blocks = rng.integers(0, 256, (rows, cols // 32, {Q4_1: 20, Q8_0: 34}[ggml_type]), dtype=np.uint8)
    blocks[..., :2] = np.float16(0.01).reshape(1).view(np.uint8)
    if ggml_type == Q4_1:
        blocks[..., 2:4] = np.float16(-0.07).reshape(1).view(np.uint8)
    container, zero_point, has_min, packed = kernels.pack_matrix(blocks.reshape(-1), ggml_type, rows, cols)
    return ops.Matrix(packed, container, rows, cols, zero_point, has_min), packed, rows * cols


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--isa", default="", help="scalar, avx2 or avx512; default: the best")
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=20)
    args = parser.parse_args()

    rng = np.random.default_rng(0)
    layers = [matrix(rng, Q4_1, *shape) for _ in range(LAYERS) for shape in LAYER]
    head = [matrix(rng, Q8_0, VOCAB, HIDDEN)]
    everything = np.concatenate([packed for _, packed, _ in layers + head])
    bandwidth = {
        t: everything.size / min(ops.time_read(everything, threads=t, repeats=9)) for t in args.threads
    }
    reads = (f"{t} threads read {b / 1e9:.1f} GB/s" for t, b in bandwidth.items())
    print("; ".join([args.isa or kernels.isa(), *reads]))

    print(
        f"{'':12}{'threads':>8}{'rows':>6}{'ms':>9}{'tokens/s':>10}{'GMAC/s':>9}{'GB/s':>7}{'of memory':>11}"
    )
    for name, parts in (("layers U4", layers), ("head U8", head), ("both", layers + head)):
        bound = [each for each, _, _ in parts]
        size = sum(packed.size for _, packed, _ in parts)
        macs = sum(weights for _, _, weights in parts)
        for threads in args.threads:
            for rows in args.rows:
                repeats = max(2, args.repeats * 8 // (rows + 7))
                s = min(ops.time_linear(bound, rows, threads=threads, repeats=repeats, isa=args.isa))
                rates = f"{rows / s:10.0f}{macs * rows / s / 1e9:9.1f}{size / s / 1e9:7.1f}"
                print(
                    f"{name:12}{threads:8}{rows:6}{s * 1e3:9.2f}{rates}{size / s / bandwidth[threads]:11.0%}"
                )


if __name__ == "__main__":
    main()
