"""What reading a server's metrics costs the bench's loop: the server's text to our readings, once a second in a run.

    python -m benchmarks.scrape                        texts made here, of four sizes
    python -m benchmarks.scrape --file metrics.txt     the text of a server (curl http://127.0.0.1:8000/metrics)

Beside it, what the general parser of prometheus-client takes for the same text.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.table import Table

from benchmarks.engine import processor
from octavo.bench.exposition import samples
from octavo.bench.projects import PROJECTS, project_of
from octavo.telemetry.metrics import Metrics

ROUNDS = 50
WANTED = frozenset(name for project in PROJECTS for name in project.metrics())


def made(histograms: int, engines: int) -> bytes:
    """As a vLLM of several engines shows it: its counters and gauges, and so many histograms of 20 buckets."""
    labels = [f'engine="{engine}",model_name="organisation/a-model-with-a-name"' for engine in range(engines)]
    lines = []
    vllm = next(project for project in PROJECTS if project.name == "vLLM")
    for name in sorted({term.metric for sums in vllm.terms.values() for terms in sums for term in terms}):
        lines += [f"# HELP {name}_total Some words that say what it is.", f"# TYPE {name}_total counter"]
        lines += [f"{name}_total{{{label}}} 1234567.0" for label in labels]
    for number in range(histograms):
        name = f"vllm:histogram_{number}_seconds"
        lines += [f"# HELP {name} Some words that say what it is.", f"# TYPE {name} histogram"]
        for label in labels:
            lines += [f'{name}_bucket{{le="{bucket}.0",{label}}} 1234.0' for bucket in range(20)]
            lines += [f"{name}_sum{{{label}}} 12.5", f"{name}_count{{{label}}} 1234.0"]
    return ("\n".join(lines) + "\n").encode()


def read(text: bytes) -> dict[str, float]:
    """As octavo.bench.scrape does it."""
    found = list(samples(text, WANTED))
    project = project_of(sample.name for sample in found)
    return {} if project is None else project.values(found)


def parsed(text: str) -> int:
    """As prometheus-client does it."""
    return len(list(text_string_to_metric_families(text)))


def quickest_ms(work: Callable[[], object], rounds: int) -> tuple[float, float]:
    """The least and the median of `rounds`, in processor time."""
    times = []
    for _ in range(rounds):
        began = time.thread_time()
        work()
        times.append(1e3 * (time.thread_time() - began))
    return min(times), sorted(times)[len(times) // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--file", type=Path, help="a server's text, instead of made ones")
    options = parser.parse_args()
    texts = {
        "Octavo, fresh": Metrics("a-model").text(),
        "30 histograms, 1 engine": made(30, 1),
        "60 histograms, 1 engine": made(60, 1),
        "60 histograms, 8 engines": made(60, 8),
    }
    if options.file is not None:
        texts = {options.file.name: options.file.read_bytes()}
    table = Table(
        "text", "kB", "lines", "readings", "least ms", "median ms", "general parser, ms", title=processor()
    )
    gc.disable()
    for name, text in texts.items():
        least, median = quickest_ms(partial(read, text), ROUNDS)
        general, _ = quickest_ms(partial(parsed, text.decode()), 3)
        lines, readings = text.count(b"\n"), len(read(text))
        table.add_row(
            name, f"{len(text) / 1e3:,.0f}", f"{lines:,}", str(readings),
            f"{least:.2f}", f"{median:.2f}", f"{general:.0f}",
        )  # fmt: skip
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
