"""What the textbooks say about serving language models, measured on the real engine: claim, measured, verdict, reason.

    python -m benchmarks.claims [--only prefill kv-cache …] [--quick] [--json FILE] [--model smollm2|FILE.gguf]

Every verdict follows from the measured numbers by the rule that its reason ends with. What is compared is measured in
turns, and ratios are of neighbours in time: machines are noisy. A run takes some five minutes, --quick about one, with
shorter prompts and fewer rounds.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks.claims import compute, memory, scheduling
from benchmarks.claims.finding import Finding, Setting
from benchmarks.engine import processor
from octavo.backends.native import load_kernels
from octavo.models.store import open_model

CLAIMS: dict[str, Callable[[Setting], Finding]] = {
    "prefill": compute.prefill,
    "kv-cache": compute.kv_cache,
    "levers": compute.levers,
    "kv-bytes": memory.kv_bytes,
    "rows": compute.rows,
    "paging": memory.paging,
    "waste": memory.waste,
    "chunks": scheduling.chunks,
    "prefix": scheduling.prefix,
    "utilization": memory.utilization,
}
COLOURS = {"holds": "green", "partly": "yellow", "does not hold here": "red"}


def table_of(findings: dict[str, Finding], title: str) -> Table:
    table = Table("claim", "measured", "verdict", "reason", title=title, show_lines=True)
    for finding in findings.values():
        verdict = f"[{COLOURS[finding.verdict]}]{finding.verdict}[/]"
        table.add_row(finding.claim, finding.measured, verdict, finding.reason)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2", help="alias, path or hf: reference")
    parser.add_argument("--only", nargs="+", choices=tuple(CLAIMS), default=list(CLAIMS), metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="shorter prompts and fewer rounds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all that was measured there")
    options: Any = parser.parse_args()
    model = open_model(options.model)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    findings: dict[str, Finding] = {}
    took: dict[str, float] = {}
    with (
        tempfile.TemporaryDirectory(prefix="octavo-claims-") as folder,
        Progress(*columns, console=Console(stderr=True), transient=True) as progress,
    ):
        setting = Setting(model, options.quick, Path(folder))
        bar = progress.add_task("claims", total=len(options.only))
        for name in options.only:
            progress.update(bar, description=name)
            began = time.perf_counter()
            findings[name] = CLAIMS[name](setting)
            took[name] = time.perf_counter() - began
            progress.advance(bar)
            progress.console.print(f"{name}: {findings[name].verdict} ({took[name]:.0f} s)")
    machine = f"{model.spec.name}, {processor()}, {load_kernels().isa()}"
    Console(width=160).print(table_of(findings, machine))
    if options.json:
        rows = {name: {**vars(one), "took_s": round(took[name], 1)} for name, one in findings.items()}
        told = {"machine": machine, "quick": options.quick, "claims": rows}
        options.json.write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
