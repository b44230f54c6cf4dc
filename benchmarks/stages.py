"""Where a step's time goes on this machine, stage by stage, beside what memory and multipliers can do.

    python -m benchmarks.stages [--model smollm2] [--contexts 128 1024 4096] [--rows 1 8 32]

For a prompt of 512 and for streams that decode at several contexts: the milliseconds of each stage, its share of the
step, and for products the bytes of weights read and the 4-bit products made per second by all threads. The last line
has the machine's own rates, measured right after. Stages are timed on one worker; the others do the same kind of work.
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.engine import add, processor, products_of
from octavo.backends.native import NativeBackend, load_kernels
from octavo.config import EngineConfig
from octavo.engine.build import build_engine
from octavo.engine.engine import Engine
from octavo.models.store import StoredModel, open_model

PROMPT = 512
STEPS = 20
BLOCK_ROWS, HEAD_ROWS = 64, 32  # that meet a matrix's weights together, and the output matrix's
STAGE_OF = {
    "attn_q": "qkv",
    "attn_k": "qkv",
    "attn_v": "qkv",
    "attn_output": "out",
    "ffn_gate": "gated",
    "ffn_up": "gated",
    "ffn_down": "down",
}
"""By the middle of a tensor's name; the matrix with a row for each token of the vocabulary is the head's."""


@dataclass
class Work:
    """What one token asks of a stage's matrices."""

    nbytes: int = 0
    products: int = 0


def works(model: StoredModel, isa: str) -> dict[str, Work]:
    """By stage."""
    found: dict[str, Work] = defaultdict(Work)
    for tensor in model.tensors.values():
        if tensor.kind == "vector":
            continue
        parts = tensor.name.split(".")
        stage = "head" if tensor.rows == model.spec.vocab_size else STAGE_OF[parts[-2]]
        found[stage].nbytes += tensor.nbytes
        found[stage].products += tensor.rows * tensor.cols * products_of(tensor.container, isa)
    return found


class Breakdown:
    """Prints one table for each piece of work."""

    def __init__(self, engine: Engine, model: StoredModel, console: Console) -> None:
        backend = engine.backend
        assert isinstance(backend, NativeBackend)
        self._engine, self._backend, self._console = engine, backend, console
        self._kernels = load_kernels()
        self._works = works(model, self._kernels.isa())
        self._weights = model.weights()
        self._vocabulary = model.spec.vocab_size

    def prompt(self, tokens: int) -> None:
        """One prompt, alone."""
        self._engine.add(add(f"p{tokens}", tokens, 1, self._vocabulary))
        self._backend.measure(True)
        self._backend.times()
        while not self._engine.idle:
            self._engine.step()
        self._print(f"prefill of {tokens}", self._backend.times(), 1, tokens, 1)

    def streams(self, rows: int, context: int) -> None:
        """`rows` sequences that decode behind `context` tokens."""
        names = [f"d{number}" for number in range(rows)]
        for name in names:
            self._engine.add(add(name, context, 4 * STEPS + rows + context, self._vocabulary))
        together = 0
        while together < 2:
            outputs = self._engine.step()
            together = together + 1 if sum(len(item.samples) for item in outputs.items) == rows else 0
        self._backend.measure(True)
        self._backend.times()
        for _ in range(STEPS):
            self._engine.step()
        self._print(f"{rows} streams at {context}", self._backend.times(), STEPS, rows, rows)
        for name in names:
            self._engine.abort(name)
        while not self._engine.idle:
            self._engine.step()

    def _print(self, title: str, times: dict[str, float], steps: int, tokens: int, samples: int) -> None:
        self._backend.measure(False)
        whole = sum(times.values())
        table = Table("stage", "ms a step", "share", "weights, GB/s", "G products/s", title=title)
        for stage, seconds in times.items():
            cells = [stage, f"{1e3 * seconds / steps:.2f}", f"{100 * seconds / whole:.1f} %"]
            if stage in self._works and seconds > 1e-4:
                work = self._works[stage]
                count = samples if stage == "head" else tokens
                reads = -(-count // (HEAD_ROWS if stage == "head" else BLOCK_ROWS))
                cells.append(f"{steps * work.nbytes * reads / seconds / 1e9:.1f}")
                cells.append(f"{steps * work.products * count / seconds / 1e9:.1f}")
            table.add_row(*cells)
        table.add_section()
        threads = self._engine.info.threads
        read = self._kernels.ops.time_read(self._weights, threads=threads, repeats=5)
        rates = self._kernels.ops.time_products(threads=threads, repeats=20)
        bandwidth = self._weights.nbytes / statistics.median(read)
        table.add_row("machine", "", "", f"{bandwidth / 1e9:.1f}", f"{statistics.median(rates) / 1e9:.1f}")
        self._console.print(table)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2", help="alias, path or hf: reference")
    parser.add_argument("--contexts", type=int, nargs="+", default=[128, 1024, 4096], metavar="TOKENS")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32], metavar="STREAMS")
    parser.add_argument("--kv-dtype", default="bf16", choices=("bf16", "fp32", "int8"))
    options: Any = parser.parse_args(arguments)
    model = open_model(options.model)
    longest = max([PROMPT, *options.contexts]) + 256
    blocks = max(options.rows) * -(-(longest + 256) // 16)
    config = EngineConfig(
        speculation="off",  # one token of each stream a step
        prefix_cache=False,
        model_dir=str(model.dir),
        num_blocks=blocks,
        max_model_len=longest + 256,
        kv_dtype=options.kv_dtype,
    )
    engine = build_engine(config)
    console = Console()
    console.print(f"{model.spec.name}, {processor()}, {load_kernels().isa()}, {engine.info.threads} threads")
    breakdown = Breakdown(engine, model, console)
    breakdown.prompt(PROMPT)
    for context in options.contexts:
        for rows in options.rows:
            breakdown.streams(rows, context)
    engine.close()


if __name__ == "__main__":
    main()
