"""Perplexity of the native backend in every weight format, beside the fp32 arithmetic of the same weights.

    python -m benchmarks.formats [--formats q4_0 q5_k_m …] [--text FILE]

llama.cpp's own quantiser makes the files from SmolLM2's Q4_1 (benchmarks/peers installs it the first time, which takes
a while). What a format itself costs is the difference between rows; what Octavo's int8 activations and its K and V
cost is the difference within a row, in per cent of the fp32 figure. Rows of 576 weights are no multiple of a K-quant's
256: llama.cpp gives those matrices another type, so that these files are mixtures.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.peers.tools import DEFAULT_WORK, FTYPES, Workshop
from benchmarks.perplexity import TEXT, make_backend, perplexity, score_windows, text_ids
from octavo.config import KvDtype
from octavo.models.gguf import GGUFFile
from octavo.models.store import open_model

__all__ = ["measure"]

KINDS: tuple[tuple[str, KvDtype], ...] = (("reference", "fp32"), ("native", "bf16"), ("native", "int8"))


def measure(source: Path, name: str, kv_dtype: KvDtype, text: Path) -> float:
    """Perplexity of `text` with the weights of a GGUF file."""
    model = open_model(str(source), packed=name == "native")
    backend = make_backend(name, model, kv_dtype, None)
    try:
        return perplexity([one for window in score_windows(backend, text_ids(model, text)) for one in window])
    finally:
        backend.close()


def types_of(source: Path) -> str:
    """How many matrices have which type."""
    counted = Counter(
        tensor.type.name for tensor in GGUFFile(source).tensors.values() if len(tensor.shape) > 1
    )
    return ", ".join(f"{count} {name}" for name, count in counted.most_common())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--formats", nargs="+", choices=tuple(FTYPES), default=list(FTYPES), metavar="FORMAT")
    parser.add_argument("--text", type=Path, default=TEXT)
    parser.add_argument(
        "--work", type=Path, default=DEFAULT_WORK, metavar="DIR", help="the peers' tools and files"
    )
    options = parser.parse_args()
    workshop = Workshop(options.work)
    table = Table("format", "matrices", "fp32", "native", "", "int8 K and V", "")
    with Progress(transient=True) as progress:
        task = progress.add_task("formats", total=len(options.formats) * len(KINDS))
        for form in options.formats:
            source = workshop.gguf(form)
            found = []
            for name, kv_dtype in KINDS:
                progress.update(task, description=f"{form}, {name}, {kv_dtype}")
                found.append(measure(source, name, kv_dtype, options.text))
                progress.advance(task)
            exact, *others = found
            cells = [cell for one in others for cell in (f"{one:.3f}", f"{100 * (one / exact - 1):+.2f} %")]
            table.add_row(form, types_of(source), f"{exact:.3f}", *cells)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
