"""Octavo beside other engines on this machine: the same work on each in turn, in one call.

    python -m benchmarks.peers                          everything that can be installed, 3 rounds (an hour or two)
    python -m benchmarks.peers --sides octavo:q4_1 llama:q4_0 --works prefill "1 stream" --rounds 5
    python -m benchmarks.peers --shape 1b --formats q4_0 q4_1
    python -m benchmarks.peers --setup                  only make environments and files

The first call makes an environment for each peer (llama.cpp is compiled for this processor: some 20 minutes on two
cores) and the model in its formats, and finds each side's best flags by a small sweep; all of it is kept in --work.
Flags found while other programs took more than 5 % of the processors are looked for again by the next call.
After that each piece of work runs on all sides in turn, and again in the next round: machines are noisy, and only
neighbours can be compared. Every measurement is a process of its own. Only a quiet machine gives figures worth keeping.

A side is peer:format: octavo:FORMAT, llama:FORMAT, openvino:FORMAT, vllm:f32. q4_1 is SmolLM2's own file, and llama.cpp
makes q4_0, q8_0 and q4_k_m of it. Rows of 576 weights are no multiple of 256, so most of q4_k_m is Q5_0.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.engine import processor
from benchmarks.peers.neighbours import Neighbours
from benchmarks.peers.report import Report
from benchmarks.peers.servers import measure_http
from benchmarks.peers.sides import SHAPE_PEERS, SIDES, Side, parse_sides
from benchmarks.peers.sweep import Sweep
from benchmarks.peers.tools import DEFAULT_WORK, ROOT, Unusable, Workshop, reason_in
from benchmarks.peers.work import WORKS, Task, Work, shape_works
from benchmarks.shapes import SHAPES, VOCABULARY, write_shape

SMOLLM2_VOCABULARY = 49_152
LIMIT_S = 900
"""No measurement takes longer; one that does is given up."""


class Runner:
    """Runs pieces of work on sides and tells the report."""

    def __init__(self, workshop: Workshop, sweep: Sweep, report: Report, progress: Progress) -> None:
        self._workshop, self._sweep, self.report, self._progress = workshop, sweep, report, progress
        self._models: dict[str, str] = {}
        self.quick = False
        self.neighbours = Neighbours()
        self.vocabulary = SMOLLM2_VOCABULARY

    def prepare(self, sources: dict[str, Path] | None = None) -> None:
        """Make environments and files. Sides for which that fails are reported, and out."""
        bar = self._progress.add_task("preparing", total=len(self.report.sides))
        for side in self.report.sides:
            self._progress.update(bar, description=f"preparing {side.name}")
            try:
                self._workshop.python(side.peer.name)
                self._models[side.name] = side.model(self._workshop, (sources or {}).get(side.form))
            except (Unusable, OSError) as reason:
                self.report.fail(side, None, str(reason))
            self._progress.advance(bar)
        self._progress.remove_task(bar)

    @property
    def usable(self) -> list[Side]:
        return [side for side in self.report.sides if side.name in self._models]

    def search(self, again: bool) -> None:
        """Sweep what is not settled yet; `again`: everything. HTTP runs with what the other works found."""
        firsts: dict[str, Work] = {}
        for work in (each for each in self.report.works if each.kind != "http"):
            middle = work.likeness in firsts and work.tokens == 512  # a prefill of 512 stands for all
            if work.likeness not in firsts or middle:
                firsts[work.likeness] = work
        todo = [
            (side, work)
            for side in self.usable
            for work in firsts.values()
            if side.peer.options and (again or not self._sweep.settled(side, work))
        ]
        bar = self._progress.add_task("sweep", total=len(todo))
        for side, work in todo:

            def measure(work: Work, flags: dict[str, Any], side: Side = side) -> float:
                shown = " ".join(f"{key}={value}" for key, value in flags.items())
                self._progress.update(bar, description=f"sweep: {side.name}, {work.name}, {shown}")
                try:
                    return max(self._worker(side, work, flags, repeats=2, decoded=24))
                except Unusable as reason:
                    self._progress.console.print(
                        f"[dim]sweep: {side.name}, {work.name}, {shown}: {reason}[/]"
                    )
                    return 0.0

            self._sweep.search(side, work, measure)
            self._progress.advance(bar)
        self._progress.remove_task(bar)

    def run(self, rounds: int) -> None:
        """Each work on all sides in turn, `rounds` times."""
        direct = [work for work in self.report.works if work.kind != "http"]
        over_http = [work for work in self.report.works if work.kind == "http"]
        servers = self._servers() if over_http else []
        total = rounds * (len(direct) * len(self.usable) + len(servers))
        bar = self._progress.add_task("measuring", total=total)
        for work in direct:
            for number in range(rounds):
                for side in self.usable:
                    about = f"{work.name}: {side.name}, round {number + 1} of {rounds}"
                    self._progress.update(bar, description=about)
                    self._measure(side, work)
                    self._progress.advance(bar)
        for number in range(rounds):
            for side in servers:
                self._progress.update(bar, description=f"HTTP: {side.name}, round {number + 1} of {rounds}")
                self._measure_http(side, over_http)
                self._progress.advance(bar)
        self._progress.remove_task(bar)

    def _servers(self) -> list[Side]:
        """One side of each peer that has a server; of the others it says why not."""
        chosen: dict[str, Side] = {}
        for side in self.usable:
            if not side.peer.serves:
                self.report.reasons[side.name, "HTTP"] = "PyPI has no server for it"
            elif side.peer.name in chosen:
                first = chosen[side.peer.name].name
                self.report.reasons[side.name, "HTTP"] = f"over HTTP only one format of a peer, {first}"
            else:
                chosen[side.peer.name] = side
        return list(chosen.values())

    def _measure(self, side: Side, work: Work) -> None:
        flags = self._sweep.flags(side, work)
        try:
            with self.neighbours.watched():
                samples = self._worker(side, work, flags)
        except Unusable as reason:
            self.report.fail(side, work, str(reason))
            return
        self.report.flags[side.name, work.likeness] = flags
        self.report.add(work, side, samples)

    def _measure_http(self, side: Side, works: list[Work]) -> None:
        # A server has one set of flags: those of a stream, and for what only prompts know those of a prefill.
        flags = {**self._sweep.flags(side, Work("prefill", 512)), **self._known(side, Work("decode", 128))}
        try:
            with self.neighbours.watched():
                loads = measure_http(
                    self._workshop, side, self._models[side.name], flags, works, quick=self.quick
                )
        except Unusable as reason:
            for work in works:
                self.report.fail(side, work, str(reason))
            return
        self.report.flags[side.name, "HTTP"] = flags
        for work, load in loads.items():
            self.report.add_load(work, side, load)

    def _known(self, side: Side, work: Work) -> dict[str, Any]:
        found = self._sweep.flags(side, work)
        return {name: found[name] for name in side.options(work.kind, work.streams)}

    def _worker(
        self, side: Side, work: Work, flags: dict[str, Any], *, repeats: int = 2, decoded: int | None = None
    ) -> list[float]:
        """A measurement in a process of its own. Raises Unusable."""
        settings = {} if decoded is None else {"decoded": decoded}
        if work.kind == "decode" or self.quick:
            repeats = 1
        if self.quick:
            settings = {"decoded": 8}
        task = Task(self._models[side.name], work, self.vocabulary, repeats, flags=flags, **settings)
        module = f"benchmarks.peers.worker_{side.peer.name}"
        command = [str(self._workshop.python(side.peer.name)), "-m", module, task.encode()]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, cwd=ROOT, timeout=LIMIT_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise Unusable(f"gave no figure within {LIMIT_S} s") from None
        last = done.stdout.strip().rpartition("\n")[2]
        try:
            line = json.loads(last)
        except ValueError:
            why = reason_in(done.stderr) or "no output"
            raise Unusable(f"the worker ended with code {done.returncode}: {why}") from None
        if "error" in line:
            raise Unusable(" ".join(str(line["error"]).split())[:300])
        return [float(sample) for sample in line["samples"]]


def chosen_works(words: Sequence[str], works: Sequence[Work]) -> list[Work]:
    """Those whose name has one of the words."""
    return [work for work in works if not words or any(word.lower() in work.name.lower() for word in words)]


def shape_sources(workshop: Workshop, shape: str, formats: Sequence[str], vocabulary: int) -> dict[str, Path]:
    """The random-weight files, written when they are not there."""
    sources = {}
    for form in formats:
        path = workshop.models / f"{shape}-{form}-{vocabulary}.gguf"
        if not path.exists():
            write_shape(path.with_suffix(".draft"), SHAPES[shape], form, vocabulary=vocabulary).rename(path)
        sources[form] = path
    return sources


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--work", type=Path, default=DEFAULT_WORK, metavar="DIR", help="environments, files")
    parser.add_argument(
        "--sides", nargs="+", default=None, metavar="SIDE", help=f"default: {' '.join(SIDES)}"
    )
    parser.add_argument(
        "--works", nargs="+", default=(), metavar="WORD", help="only works whose name has one of these words"
    )
    parser.add_argument("--rounds", type=int, default=3, help="times that each work runs on each side")
    parser.add_argument("--sweep", action="store_true", help="look for the best flags anew")
    parser.add_argument("--no-sweep", action="store_true", help="kept flags, or each peer's starting ones")
    parser.add_argument(
        "--shape", choices=tuple(SHAPES), help="random weights of such a shape instead of SmolLM2"
    )
    parser.add_argument("--formats", nargs="+", default=["q4_0", "q4_1", "q4_k"], help="of --shape")
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY, help="of --shape, tokens")
    parser.add_argument(
        "--quick", action="store_true", help="only to see whether all runs: few steps and requests"
    )
    parser.add_argument("--setup", action="store_true", help="make environments and files, measure nothing")
    options = parser.parse_args(arguments)

    console = Console()
    workshop = Workshop(options.work.absolute())
    shape = options.shape
    default = [f"{peer}:{form}" for form in options.formats for peer in SHAPE_PEERS] if shape else list(SIDES)
    try:
        sides = parse_sides(options.sides or default)
    except ValueError as error:
        parser.error(str(error))
    works = chosen_works(options.works, shape_works() if shape else WORKS)
    report = Report(works, sides)
    columns = TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        name = f"sweep-{shape}.json" if shape else "sweep.json"
        runner = Runner(workshop, Sweep(workshop.folder / name, processor()), report, progress)
        runner.quick = options.quick
        if shape:
            forms = dict.fromkeys(side.form for side in sides)
            runner.prepare(shape_sources(workshop, shape, list(forms), options.vocabulary))
            runner.vocabulary = options.vocabulary
        else:
            runner.prepare()
        if not options.setup:
            if not options.no_sweep:
                runner.search(options.sweep)
            runner.run(options.rounds)
    if options.setup:
        for side in sides:
            console.print(f"{side.name}: {report.reasons.get((side.name, 'all'), 'ready')}")
        return
    model = f"random {shape}, vocabulary {options.vocabulary:,}" if shape else "SmolLM2-135M-Instruct"
    report.print(console, f"{model}, {processor()}")
    console.print(runner.neighbours.verdict())
    results = workshop.folder / f"results-{time.strftime('%Y%m%d-%H%M%S')}.json"
    results.write_text(json.dumps(report.json(), indent=1))
    console.print(f"All rounds: {results}")


if __name__ == "__main__":
    main()
