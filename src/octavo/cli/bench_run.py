"""What `octavo bench` does with its arguments: makes the plan, runs it, and writes what came of it."""

from __future__ import annotations

import asyncio
import itertools
import os
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import orjson
import uvloop
from rich.console import Console

import octavo
from octavo.bench.address import Address
from octavo.bench.campaign import Campaign, Plan, with_clients
from octavo.bench.compat import TOOLS, Tool, recompute
from octavo.bench.cost import Cost
from octavo.bench.page import page
from octavo.bench.plain import plain_report
from octavo.bench.progress import Live
from octavo.bench.prompts import Api, Prompts
from octavo.bench.record import Record
from octavo.bench.report import Report, report
from octavo.bench.scrape import Scraper
from octavo.bench.slo import Slo
from octavo.bench.summary import print_comparison, print_compat, print_summary
from octavo.bench.sweep import Sweep
from octavo.bench.target import PROBE_S, Target, discover
from octavo.bench.words import printable
from octavo.cli.bench_options import header, numbers, share
from octavo.cli.output import give_up_output
from octavo.cli.results import NOT_MET, NOT_VALID, changed_workload, check_outputs, exit_code, key_in
from octavo.cli.signals import Signals
from octavo.errors import BenchError, InvalidParameter
from octavo.workload.generate import requests_of
from octavo.workload.request import Request
from octavo.workload.spec import Workload

__all__ = ["Asked", "compare_records", "measure_server", "report_again"]

REGRESSION = 1

_QUIET_S = 2.0
"""So long nothing is said before the server has answered."""
_LOOKED_AT = 1000
"""Of a workload's first requests, to see what it needs of the API."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The arguments of `octavo bench URL`."""

    url: str
    workload: str
    rate: float | None
    clients: str | None
    requests: int | None
    duration: float | None
    seed: int | None
    sweep: str | None
    repeats: int | None
    max_seconds: float | None
    slo: str | None
    search: bool
    tolerance: str
    max_rate: float | None
    warmup: float | None
    model: str | None
    api: Api | None
    prompts: Prompts | None
    key_env: str | None
    header: Sequence[str] | None
    extra_body: str | None
    exact_output: bool
    timeout: float | None
    max_connections: int | None
    insecure: bool
    metrics: bool
    output: Path | None
    html: Path | None
    json: bool
    compat: Sequence[str] | None
    quiet: bool
    cost: Cost | None
    given: dict[str, Any] = field(default_factory=dict)
    """The options that were given, to be given again."""


def measure_server(asked: Asked) -> int:
    """Measure, write and print; return the exit code. Raises ClientError before anything is sent where it can."""
    with Signals() as signals:
        try:
            return _measured(asked, signals)
        except (KeyboardInterrupt, asyncio.CancelledError):
            if signals.number is None:
                raise
        except OSError:
            if not signals.hung_up:
                raise
            give_up_output()  # what there is to keep is written before what there is to say
    return signals.code


def _measured(asked: Asked, signals: Signals) -> int:
    plan = _plan(asked)
    compat = _tools(asked.compat or ())
    extra = _extra(asked.extra_body)
    headers = [header(text) for text in asked.header or ()]
    key_in(asked.key_env)
    check_outputs(asked.output, asked.html)
    with Live(sys.stderr, quiet=asked.quiet) as live:
        record, problem = uvloop.run(_measure(asked, plan, extra, headers, live, signals))
    if asked.output is not None and record.runs:
        record.write(asked.output)
        live.say(f"The record is {asked.output}.")
    if not any(run.exchanges for run in record.runs):
        if problem is not None:
            raise problem
        return signals.code
    made = report(record, slo=plan.slo, warmup_s=plan.warmup_s, cost=asked.cost)
    _show(made, html=asked.html, json=asked.json, compat=compat, say=live.say)
    if signals.number is not None:
        sys.stdout.flush()
        return signals.code
    if problem is not None:
        print("error:", printable(str(problem)), file=sys.stderr)
        return NOT_MET if made.valid else NOT_VALID
    return exit_code(made)


def report_again(
    file: Path,
    *,
    slo: str | None,
    warmup_s: float | None,
    html: Path | None,
    json: bool,
    compat: Sequence[str],
    cost: Cost | None,
) -> int:
    """Of a record; return the exit code. What is not given is as it was in the run."""
    record = Record.read(file)
    slo = slo if slo is not None else record.options.get("slo")
    if warmup_s is None and (text := record.options.get("warmup")) is not None:
        warmup_s = float(str(text).removesuffix("s"))
    tools = _tools(compat)
    check_outputs(None, html)
    made = report(record, slo=None if slo is None else Slo.parse(slo), warmup_s=warmup_s, cost=cost)
    _show(made, html=html, json=json, compat=tools, say=lambda text: print(text, file=sys.stderr))
    return exit_code(made)


def compare_records(
    base: Path, other: Path, *, threshold: str, slo: str | None, anyway: bool, html: Path | None, json: bool
) -> int:
    """Of two records; return the exit code."""
    from octavo.bench.compare import compare
    from octavo.bench.compare_page import compare_page, plain_comparison

    least = share("--threshold", threshold)
    bounds = None if slo is None else Slo.parse(slo)
    a, b = Record.read(base), Record.read(other)
    check_outputs(None, html)
    comparison = compare(a, b, threshold=least, slo=bounds, anyway=anyway)
    names = (str(base), str(other))
    if html is not None:
        html.write_text(compare_page(comparison, a, b, names).html(), encoding="utf-8")
    if json:
        _print_json(plain_comparison(comparison))
    else:
        _print(lambda console: print_comparison(comparison, names, console))
    return REGRESSION if comparison.regression else 0


def _plan(asked: Asked) -> Plan:
    """Raises ClientError for options that do not go together, before anything is sent."""
    loads = [name for name in ("rate", "clients", "sweep") if getattr(asked, name) is not None]
    if len(loads) > 1:
        raise InvalidParameter(f"--{loads[0]} and --{loads[1]} both say what the load is; leave one out.")
    slo = None if asked.slo is None else Slo.parse(asked.slo)
    workload = _workload(asked)
    sweep = None if asked.sweep is None else Sweep.parse(asked.sweep)
    clients = _counts(asked.clients) if asked.clients is not None else ()
    tolerance = share("--tolerance", asked.tolerance)
    if asked.search:
        if slo is None:
            raise InvalidParameter("--search needs an --slo: what should the highest rate meet?")
        if loads:
            raise InvalidParameter(f"--search tries rates of its own; leave out --{loads[0]}.")
        if workload.rate is None:
            raise InvalidParameter(
                f"--search tries rates, and the arrivals of {asked.workload} have none that can be changed; only "
                "poisson, gamma and constant do."
            )
    elif asked.max_rate is not None:
        raise InvalidParameter("--max-rate is for a --search.")
    elif "tolerance" in asked.given:
        raise InvalidParameter("--tolerance is for a --search.")
    elif sweep is not None:
        for rate in sweep.rates or (1.0,):
            workload.at_rate(rate)
    plan = Plan(
        workload=workload,
        repeats=asked.repeats or (3 if asked.search else 1),
        rates=() if sweep is None else sweep.rates,
        finds_rates=sweep is not None and not sweep.rates,
        clients=clients,
        slo=slo,
        searches=asked.search,
        tolerance=tolerance,
        highest=asked.max_rate,
        warmup_s=asked.warmup,
        timeout_s=600.0 if asked.timeout is None else asked.timeout,
        max_s=asked.max_seconds,
    )
    if plan.timeout_s <= 0:
        raise InvalidParameter("--timeout is 0; it must be above 0.")
    for load in plan.loads():
        if next(iter(requests_of(load)), None) is None:
            raise BenchError(f"{asked.workload} has no requests within its duration; make it longer.")
    if plan.searches or plan.finds_rates:
        with_clients(workload, 1)
    return plan


def _workload(asked: Asked) -> Workload:
    if asked.duration is not None and asked.duration <= 0:
        raise InvalidParameter("--duration is 0; it must be above 0.")
    return changed_workload(
        asked.workload,
        seed=asked.seed,
        requests=asked.requests,
        duration_s=asked.duration,
        rate=asked.rate,
        seeds=62,  # each further run has the next
    )


def _counts(text: str) -> tuple[int, ...]:
    found = numbers("--clients", text)
    for one in found:
        if one != int(one) or one > 100_000:
            raise InvalidParameter(f"--clients is {text!r}; each must be a whole number from 1 to 100000.")
    return tuple(map(int, found))


def _extra(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        value = orjson.loads(text)
    except ValueError as error:
        raise InvalidParameter(f"--extra-body is {text[:60]!r}, which is no JSON ({error}).") from None
    if not isinstance(value, dict):
        raise InvalidParameter(f"--extra-body is {text[:60]!r}; it must be a JSON object of fields.")
    return value


def _tools(names: Sequence[str]) -> list[Tool]:
    for name in names:
        if name not in TOOLS:
            raise InvalidParameter(f"--compat is {name!r}; it must be one of {', '.join(TOOLS)}.")
    return [tool for tool in TOOLS if tool in names]


async def _measure(
    asked: Asked,
    plan: Plan,
    extra: dict[str, Any],
    headers: list[tuple[str, str]],
    live: Live,
    signals: Signals,
) -> tuple[Record, BenchError | None]:
    """All runs; with them the reason why no rate meets the SLO, if that is what came of a search."""
    stop = asyncio.Event()
    seen = list(itertools.islice(requests_of(plan.loads()[0]), _LOOKED_AT))
    # A server that is slow to answer is not taken for a command that hangs.
    told = asyncio.get_running_loop().call_later(
        _QUIET_S, live.say, f"Asking {Address.parse(asked.url).url} what it serves and takes."
    )
    signals.cancels()
    try:
        target = await _asked(asked, plan, seen, extra, headers)
    finally:
        signals.over()
        told.cancel()
    for note in target.notes:
        live.say(note)
    record = _record(asked, plan, target)
    scraper = Scraper.of(target) if asked.metrics else None
    save = _saving(asked.output, record)
    campaign = Campaign(target, plan, record, live=live, stop=stop, scrape=scraper, on_run=save)
    signals.gently(stop.set)
    try:
        await campaign.go()
    except BenchError as error:
        return record, error
    finally:
        if scraper is not None:
            for note in scraper.notes:
                live.say(note)
            record.options["target"]["notes"] += scraper.notes
            await scraper.close()
        signals.over()
    return record, None


async def _asked(
    asked: Asked, plan: Plan, seen: list[Request], extra: dict[str, Any], headers: list[tuple[str, str]]
) -> Target:
    """What the server says that it serves and takes."""
    return await discover(
        asked.url,
        model=asked.model,
        api=asked.api,
        prompts=asked.prompts,
        messages=any(one.messages is not None for one in seen),
        priorities=any(one.priority for one in seen),
        exact_output=asked.exact_output,
        extra=extra,
        key=key_in(asked.key_env),
        headers=headers,
        max_connections=asked.max_connections,
        insecure=asked.insecure,
        timeout_s=PROBE_S if asked.timeout is None else asked.timeout,
    )


def _saving(path: Path | None, record: Record) -> Callable[[], None]:
    """Of several runs those before are safe, whatever becomes of the next."""

    def save() -> None:
        if path is not None and len(record.runs) > 1:
            record.write(path)

    return save


def _record(asked: Asked, plan: Plan, target: Target) -> Record:
    return Record(
        octavo=octavo.__version__,
        url=target.url,
        model=target.model,
        api=target.api,
        server=target.server,
        machine={
            "processor": _processor(),
            "cores": os.cpu_count(),
            "system": f"{platform.system()} {platform.release()}",
            "python": platform.python_version(),
        },
        name=asked.workload,
        workload=msgspec.to_builtins(plan.workload),
        options={
            **asked.given,
            **({"tolerance": plan.tolerance} if plan.searches else {}),
            "target": target.options(),
        },
    )


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _show(
    made: Report, *, html: Path | None, json: bool, compat: Sequence[Tool], say: Callable[[str], None]
) -> None:
    others = [recompute(made.chosen_run, tool) for tool in compat]
    if html is not None:
        html.write_text(page(made).html(), encoding="utf-8")
        say(f"The page is {html}.")
    if json:
        _print_json(plain_report(made, others))
        return

    def print_all(console: Console) -> None:
        print_summary(made, console)
        for one in others:
            print_compat(one, console)

    _print(print_all)


def _print_json(value: dict[str, Any]) -> None:
    options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    sys.stdout.buffer.write(orjson.dumps(value, option=options))


def _print(words: Callable[[Console], None]) -> None:
    console = Console(highlight=False, markup=False, emoji=False)
    if console.is_terminal:
        words(console)
        return
    with console.capture() as capture:
        words(console)
    for line in capture.get().splitlines():
        print(line.rstrip())  # a file needs no blanks up to the eightieth column
