"""How near a simulation comes to a run: calibrate once, predict workloads that were not measured, measure them.

    python -m benchmarks.fidelity [--model smollm2] [--repeats 3] [--seconds 6] [--only engine|http] [--json FILE]

Calibrated is on probes (see simulation/calibrate_engine.py and calibrate_server.py), before the first measured run,
between its repeats and after the last: a machine whose neighbours come and go drifts by as much as is allowed here
within minutes, and drifts for all of them alike. Three workloads, each at three shares of the rate at which the
simulation says that the machine is full, are measured in turns and simulated by each calibration; what is simulated is
the mean. No calibration sees a measured run. Simulated and measured runs have the same requests. In the engine: the
bench's record of a loop in this process, on the real clock. Over HTTP: `octavo serve` as a process of its own, and the
bench's client in this one.

A figure is inside where simulated and measured differ by no more than 5 % (P99: 12 %), or 1.5 times the spread of the
repeats (largest less smallest, over their median). The exit code is 1 where one is not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.plans import served
from octavo.bench import client
from octavo.bench.measures import measure
from octavo.bench.record import Chunk, Exchange, Kind, Run
from octavo.bench.shown import label_of, show
from octavo.bench.target import Target, discover
from octavo.bench.window import Window
from octavo.config import EngineConfig
from octavo.engine.build import build_engine
from octavo.engine.engine import Engine
from octavo.models.store import open_model
from octavo.sampling.params import SamplingParams
from octavo.scheduling.inputs import Add
from octavo.simulation.calibrate_engine import calibrate_engine
from octavo.simulation.calibrate_server import Knobs, calibrate_server
from octavo.simulation.calibrated import Calibration
from octavo.simulation.measured import Measured
from octavo.simulation.replica import Replica
from octavo.simulation.run import simulate
from octavo.timing.clock import ManualClock, microseconds
from octavo.timing.step_time import StepLoad
from octavo.workload.agenda import Agenda
from octavo.workload.arrivals import Poisson
from octavo.workload.generate import requests_of
from octavo.workload.lengths import Fixed, Uniform
from octavo.workload.request import Request
from octavo.workload.spec import PrefixLevel, Workload

MEDIANS = ("ttft_p50", "tpot_p50", "e2e_p50", "output_rate")
TAILS = ("ttft_p99", "tpot_p99", "e2e_p99")
WITHIN, TAIL_WITHIN, SPREADS = 0.05, 0.12, 1.5
LOADS = (0.3, 0.5, 0.7)
FULL = 80
"""Requests at once, whose simulation tells the rate at which a machine is full."""
LIMITS = {"max_model_len": 2048, "max_running": 64, "max_step_tokens": 512, "block_size": 16}
KV_BYTES = 512 << 20

WORKLOADS = {
    "talk": Workload(
        requests=FULL, arrivals=Poisson(rate=1.0), input=Uniform(min=20, max=120), output=Uniform(min=20, max=60)
    ),
    "read": Workload(
        requests=FULL, arrivals=Poisson(rate=1.0), input=Uniform(min=250, max=700), output=Uniform(min=4, max=16)
    ),
    "shared": Workload(
        requests=FULL,
        arrivals=Poisson(rate=1.0),
        prefix=(PrefixLevel(tokens=160, branches=2),),
        input=Uniform(min=16, max=80),
        output=Fixed(tokens=24),
    ),
}  # fmt: skip
_VOCABULARY = 32_000


class Case(NamedTuple):
    """One workload at one rate."""

    name: str
    load: float
    workload: Workload


def simulated(found: Calibration, workload: Workload) -> Run:
    replica = Replica(Measured(calibration=found).settings, found.pace, ManualClock())
    return simulate(replica, requests_of(workload), host=found.host, seed=workload.seed, rate=workload.rate)


def cases(found: Calibration, seconds: float) -> list[Case]:
    """At rates that this calibration tells."""
    made = []
    for name, workload in WORKLOADS.items():
        at_once = simulated(found, workload.at_rate(1e6))
        full = len(at_once.exchanges) / (at_once.end_us / 1e6)
        for load in LOADS:
            rate = load * full
            one = msgspec.structs.replace(
                workload.at_rate(rate), requests=max(round(rate * seconds), 8), seed=7
            )
            made.append(Case(name, load, one))
    return made


def fresh(workload: Workload, number: int) -> Iterator[Request]:
    """The same requests with other tokens, so that no cache knows them from the run before: lengths, times and what
    prompts have in common stay."""
    return (msgspec.structs.replace(one, seed=1000 + number) for one in requests_of(workload))


def run_engine(engine: Engine, workload: Workload, number: int) -> Run:
    """Serve it in this process: a request enters before the first step that begins at its time or later."""
    agenda = Agenda(fresh(workload, number))
    done: dict[str, Exchange] = {}
    began_s = engine.clock.now_s()

    def now_us() -> int:
        return microseconds(engine.clock.now_s() - began_s)

    while agenda.next_us is not None or not engine.idle:
        for at_us, request in agenda.take(now_us()):
            prompt = tuple(request.token_ids(_VOCABULARY))
            params = SamplingParams(
                max_tokens=request.output_tokens, temperature=0.0, seed=0, ignore_eos=True
            )
            name = str(request.index)
            done[name] = Exchange.of(
                request,
                intended_us=at_us,
                sent_us=at_us,
                end_us=at_us,
                counted="usage",
                input_tokens=len(prompt),
            )
            engine.add(Add(name, prompt, params, began_s + at_us / 1e6))
        if engine.idle:
            if (next_us := agenda.next_us) is not None:
                time.sleep(max(next_us - now_us(), 0) / 1e6)
            continue
        items, at_us = engine.step().items, now_us()
        for item in items:
            one = done[item.request_id]
            if item.samples:
                one.chunks = [
                    *one.chunks,
                    Chunk(at_us, len(item.samples), 4 * len(item.samples), Kind.ANSWER),
                ]
            if item.finish_reason is not None:
                assert item.finish_reason == "length", item
                one.end_us, one.status, one.finish_reason = at_us, 200, "length"
                one.output_tokens = sum(chunk.tokens for chunk in one.chunks)
    exchanges = sorted(done.values(), key=lambda one: one.index)
    return Run(
        seed=workload.seed,
        rate=workload.rate,
        began="",
        end_us=max(one.end_us for one in exchanges),
        exchanges=exchanges,
    )


async def run_http(target: Target, workload: Workload, number: int) -> Run:
    done = await client.run(target, fresh(workload, number), seed=workload.seed, rate=workload.rate)
    failed = [one.message for one in done.exchanges if one.error is not None]
    assert not failed, failed[0]
    return done


def figures(done: Run) -> dict[str, float]:
    """Over the whole run: it is too short to leave a part of it out."""
    found = measure(done, window=Window(start_us=0, end_us=done.end_us, rule="the whole run"))
    values = {name: found.value(name) for name in (*MEDIANS, *TAILS)}
    return {name: value for name, value in values.items() if value is not None}


def rows(
    where: str, case: Case, found: Sequence[Calibration], measured: Sequence[Run]
) -> Iterator[dict[str, object]]:
    ours = [figures(simulated(one, case.workload)) for one in found]
    theirs = [figures(one) for one in measured]
    for name in (*MEDIANS, *TAILS):
        if name not in ours[0]:
            continue
        values = [one[name] for one in theirs]
        middle = statistics.median(values)
        spread = (max(values) - min(values)) / middle
        told = statistics.fmean(one[name] for one in ours)
        ratio = told / middle
        allowed = max(TAIL_WITHIN if name in TAILS else WITHIN, SPREADS * spread)
        yield {
            "where": where, "workload": case.name, "load": case.load, "rate": case.workload.rate, "name": name,
            "measured": middle, "spread": spread, "simulated": told, "ratio": ratio, "allowed": allowed,
            "inside": abs(ratio - 1) <= allowed,
        }  # fmt: skip


def compare(
    where: str,
    calibrate: Callable[[], Calibration],
    serve: Callable[[Workload, int], Run],
    arguments: argparse.Namespace,
    console: Console,
) -> list[dict[str, object]]:
    def calibrated() -> Calibration:
        console.print(f"{where}: calibrating, {len(found) + 1} of {arguments.repeats + 1}")
        one = calibrate()
        console.print(f"{where}: a step of one token takes {1e3 * alone_s(one):.3g} ms", markup=False)
        return one

    found: list[Calibration] = []
    found.append(calibrated())
    tell(found[0], console)
    made = cases(found[0], arguments.seconds)
    measured: dict[int, list[Run]] = {place: [] for place in range(len(made))}
    for repeat in range(arguments.repeats):
        order = range(len(made)) if repeat % 2 == 0 else reversed(range(len(made)))
        for number, place in enumerate(order):
            case = made[place]
            console.print(
                f"{where}: repeat {repeat + 1} of {arguments.repeats}, {number + 1} of {len(made)}: {case.name} at "
                f"{case.workload.rate:.2f}/s",
                markup=False,
            )
            measured[place].append(serve(case.workload, repeat * len(made) + place))
        found.append(calibrated())
    return [row for place, case in enumerate(made) for row in rows(where, case, found, measured[place])]


def in_engine(arguments: argparse.Namespace, console: Console) -> list[dict[str, object]]:
    model = open_model(arguments.model)
    settings = {"model_dir": str(model.dir), "speculation": "off", "kv_memory_bytes": KV_BYTES, **LIMITS}
    engine = build_engine(msgspec.convert(settings, EngineConfig))
    try:
        return compare(
            "engine",
            lambda: calibrate_engine(engine, model=arguments.model, repeats=arguments.calibration_repeats),
            lambda one, number: run_engine(engine, one, number),
            arguments,
            console,
        )
    finally:
        engine.close()


def over_http(arguments: argparse.Namespace, console: Console) -> list[dict[str, object]]:
    command = ["serve", arguments.model, "--speculation", "off", "--kv-memory", str(KV_BYTES)]
    for name, value in LIMITS.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    with served(command, arguments.port) as url, asyncio.Runner() as loop:
        target = loop.run(discover(url))
        knobs = Knobs(**LIMITS)
        return compare(
            "http",
            lambda: loop.run(calibrate_server(target, knobs, repeats=arguments.calibration_repeats)),
            lambda one, number: loop.run(run_http(target, one, number)),
            arguments,
            console,
        )


def alone_s(found: Calibration) -> float:
    return found.pace.seconds(StepLoad(1, 1, 1, 0, 1))


def tell(found: Calibration, console: Console) -> None:
    for name, words in Measured(calibration=found).facts():
        console.print(f"{name:>15}  {words}", markup=False)


def table(found: Sequence[dict[str, object]]) -> Table:
    made = Table(
        "where", "workload", "load", "", "measured", "± spread", "simulated", "ratio", "inside?", box=None
    )
    for row in found:
        name = str(row["name"])
        cells = [str(row["where"]), str(row["workload"]), f"{row['load']:.0%}", label_of(name)]
        cells += [show(name, row["measured"]), f"{row['spread']:.1%}", show(name, row["simulated"])]  # type: ignore[arg-type]
        made.add_row(*cells, f"{row['ratio']:.3f}", "yes" if row["inside"] else f"no ({row['allowed']:.0%})")
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="smollm2", help="alias, path or hf: reference")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each workload at each rate")
    parser.add_argument(
        "--calibration-repeats", type=int, default=1, help="of each probe, in each calibration"
    )
    parser.add_argument("--seconds", type=float, default=6.0, help="for which a run sends requests")
    parser.add_argument("--only", choices=("engine", "http"), help="one of the two")
    parser.add_argument("--port", type=int, default=18119, help="of the server")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    arguments = parser.parse_args()
    console = Console(highlight=False)
    began = time.perf_counter()
    found: list[dict[str, object]] = []
    if arguments.only != "http":
        found += in_engine(arguments, console)
    if arguments.only != "engine":
        found += over_http(arguments, console)
    console.print(table(found))
    inside = sum(bool(row["inside"]) for row in found)
    console.print(f"{inside} of {len(found)} inside, in {time.perf_counter() - began:.0f} s")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found, indent=1))
    return int(inside < len(found))


if __name__ == "__main__":
    sys.exit(main())
