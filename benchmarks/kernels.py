"""How near the matrix products come to what the multipliers can do, by weight format and number of rows.

    python -m benchmarks.kernels [--shape 1536 512] [--rows 1 8 32 64] [--isa avx2] [--threads 2] [--repeats 30]

Random matrices of one shape, enough of them that no cache holds them, are multiplied in turn, as a step does it. Each
rate stands beside the share that it has of the rate at which registers alone multiply, measured in the same second:
an 8-bit weight counts as two products where the instruction set makes two of it. What is missing to 100 % is the
conversion of sums, the scales, unpacking and reading; at one row it is memory that limits.
"""

from __future__ import annotations

import argparse
import statistics

import numpy as np
from gguf import GGMLQuantizationType
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.engine import processor, products_of
from benchmarks.shapes import FORMATS, random_blocks
from octavo.backends.native import load_kernels

ALL_BYTES = 100e6
"""Of the matrices that are multiplied in turn."""


def main() -> None:
    kernels = load_kernels()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", type=int, nargs=2, default=[1536, 512], metavar=("OUTPUTS", "INPUTS"))
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS))
    parser.add_argument("--isa", choices=kernels.ops.isas(), default=kernels.isa())
    parser.add_argument("--threads", type=int, default=kernels.default_threads())
    parser.add_argument("--repeats", type=int, default=30)
    options = parser.parse_args()
    outputs, inputs = options.shape
    title = f"{processor()}, {options.isa}, {options.threads} threads, {outputs} × {inputs}"
    table = Table(
        "format", "container", *(f"{rows} rows, G products/s" for rows in options.rows), title=title
    )
    random = np.random.default_rng(0)
    for form in track(options.formats, "formats", transient=True):
        kind = GGMLQuantizationType[form.upper()]
        raw = random_blocks(random, form, outputs, inputs, inputs**-0.5).reshape(-1)
        container, zero_point, has_min, packed = kernels.pack_matrix(raw, int(kind), outputs, inputs)
        matrices = [
            kernels.ops.Matrix(packed.copy(), container, outputs, inputs, zero_point, has_min)
            for _ in range(max(1, int(ALL_BYTES / packed.nbytes)))
        ]
        cells = []
        for rows in options.rows:
            shares, rates = [], []
            for _ in range(options.repeats):
                seconds = kernels.ops.time_linear(
                    matrices, rows, threads=options.threads, repeats=1, isa=options.isa
                )
                limit = kernels.ops.time_products(threads=options.threads, repeats=1, isa=options.isa)
                made = rows * outputs * inputs * len(matrices) * products_of(container, options.isa)
                rates.append(made / seconds[0])
                shares.append(rates[-1] / limit[0])
            cells.append(f"{max(rates) / 1e9:.0f} ({100 * statistics.median(shares):.0f} %)")
        table.add_row(form, container, *cells)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
