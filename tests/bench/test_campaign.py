"""Campaigns: which runs are made, with which seeds, and that stopping keeps what there is."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import msgspec
import pytest

from octavo.bench.campaign import ALONE_REQUESTS, Campaign, Plan, alone_of, with_clients
from octavo.bench.progress import Live
from octavo.bench.record import Record
from octavo.bench.slo import Slo
from octavo.bench.target import discover
from octavo.errors import BenchError, InvalidParameter, WorkloadError
from octavo.workload import load_workload, requests_of
from octavo.workload.arrivals import Closed, Poisson
from octavo.workload.lengths import FixedDelay
from octavo.workload.spec import Workload
from tests.bench.scripted import Answers, Asked, Reply, Script, clock_ns, in_virtual_time, scripted


@pytest.fixture
def workload(tmp_path: Path) -> Workload:
    path = tmp_path / "w.toml"
    path.write_text(
        'requests = 60\nseed = 7\narrivals = { kind = "constant", rate = 2.0 }\n'
        'input = { kind = "fixed", tokens = 20 }\noutput = { kind = "fixed", tokens = 6 }\n'
    )
    return load_workload(str(path))


def _record() -> Record:
    return Record(octavo="0", url="u", model="m", api="chat", name="w")


def _go(
    plan: Plan, script: Script, *, stop_after_runs: int | None = None
) -> tuple[Record, str, BenchError | None]:
    """The record, what was said, and what was raised."""
    said = io.StringIO()
    record = _record()

    async def main() -> BenchError | None:
        async with scripted(script) as server:
            stop = asyncio.Event()

            def on_run() -> None:
                if len(record.runs) == stop_after_runs:
                    stop.set()

            target = await discover(server.url)
            campaign = Campaign(
                target, plan, record, live=Live(said), stop=stop, on_run=on_run, clock_ns=clock_ns
            )
            try:
                await campaign.go()
            except BenchError as error:
                return error
            return None

    raised = in_virtual_time(main)
    return record, said.getvalue(), raised


class _OnePlace:
    """A server that works on one request at a time, each 0.25 s: it keeps up with four a second."""

    def __init__(self) -> None:
        self.free_s = 0.0

    def __call__(self, asked: Asked) -> Reply:
        if not asked.path.endswith("completions"):
            return Answers()(asked)
        begins = max(asked.at_s, self.free_s)
        self.free_s = begins + 0.25
        return Answers(ttft_s=begins - asked.at_s + 0.2, gap_s=0.01)(asked)


def test_a_load_is_run_once_with_the_workload_s_seed(workload: Workload) -> None:
    record, said, _ = _go(Plan(workload=workload), Answers())
    [run] = record.runs
    assert (run.seed, run.rate, run.clients, len(run.exchanges)) == (7, 2.0, None, 60)
    assert run.stopped is None and said == "", "the report follows at once"


def test_every_load_is_run_before_any_again_and_no_seed_comes_twice(workload: Workload) -> None:
    record, said, _ = _go(Plan(workload=workload, rates=(2.0, 8.0), repeats=2), Answers())
    assert [(run.rate, run.seed) for run in record.runs] == [(2.0, 7), (8.0, 8), (2.0, 9), (8.0, 10)]
    told = [line for line in said.splitlines() if "TTFT p50" in line]
    assert len(told) == 4 and told[1].startswith("8 requests/s: 7.98")


@pytest.mark.slow
def test_a_sweep_finds_its_rates_up_to_where_the_server_no_longer_keeps_up(workload: Workload) -> None:
    record, said, _ = _go(Plan(workload=workload, finds_rates=True, repeats=2), _OnePlace())
    alone, *others = record.runs
    assert (alone.clients, alone.rate, [run.seed for run in record.runs]) == (
        1,
        None,
        [*range(7, 7 + len(others) + 1)],
    )
    rates = [run.rate or 0.0 for run in others]
    assert sorted(set(rates)) == sorted(rates[: len(rates) // 2]) == sorted(rates[len(rates) // 2 :])
    assert min(rates) < 4.0 < max(rates) < 9.0
    assert said.count("TTFT p50") == len(others)


def test_clients_are_a_closed_loop(workload: Workload) -> None:
    record, _, _ = _go(Plan(workload=workload, clients=(1, 4)), Answers(ttft_s=0.2, gap_s=0.0))
    assert [(run.clients, run.rate) for run in record.runs] == [(1, None), (4, None)]
    alone, four = record.runs
    assert alone.end_us == pytest.approx(60 * 200_000, rel=0.01)
    assert four.end_us == pytest.approx(15 * 200_000, rel=0.01)


def test_thinking_clients_go_on_thinking() -> None:
    batch = load_workload("batch")
    assert isinstance(batch.arrivals, Closed)
    thinking = msgspec.structs.replace(
        batch, arrivals=msgspec.structs.replace(batch.arrivals, think=FixedDelay(seconds=3.0))
    )
    changed = with_clients(thinking, 5).arrivals
    assert isinstance(changed, Closed) and (changed.clients, changed.think) == (5, FixedDelay(seconds=3.0))


def test_alone_nobody_pauses() -> None:
    agent = load_workload("agent")
    alone = alone_of(agent)
    assert (
        alone.requests == ALONE_REQUESTS
        and isinstance(alone.arrivals, Closed)
        and alone.arrivals.clients == 1
    )
    assert agent.sessions is not None and alone.sessions is not None and alone.sessions.tools is not None
    assert alone.sessions.think == alone.sessions.tools.delay == FixedDelay(seconds=0.0)
    assert alone.sessions.turns == agent.sessions.turns
    assert all(request.delay_s == 0.0 for request in requests_of(alone))


def test_a_closed_loop_needs_an_end(workload: Workload) -> None:
    endless = msgspec.structs.replace(workload, requests=None, duration_s=10.0)
    with pytest.raises(InvalidParameter, match="give --requests"):
        with_clients(endless, 2)


@pytest.mark.parametrize(("kind", "rate"), [(Poisson(rate=3.0), 3.0), (Closed(clients=2), None)])
def test_only_some_arrivals_have_a_rate(workload: Workload, kind: Any, rate: float | None) -> None:
    assert msgspec.structs.replace(workload, arrivals=kind).rate == rate


def test_a_sweep_of_rates_needs_arrivals_with_one() -> None:
    with pytest.raises(WorkloadError, match="of the kind closed"):
        Plan(workload=load_workload("batch"), rates=(1.0,)).loads()


def test_a_stopped_campaign_keeps_what_there_is(workload: Workload) -> None:
    record, _, raised = _go(Plan(workload=workload, repeats=5), Answers(), stop_after_runs=2)
    assert len(record.runs) == 2 and raised is None


def test_a_search_ends_at_the_rate_that_the_server_keeps_up_with(workload: Workload) -> None:
    slo = Slo.parse("ttft_p99<400ms")
    plan = Plan(workload=workload, slo=slo, searches=True, repeats=2)
    record, said, raised = _go(plan, _OnePlace())
    assert raised is None
    assert record.runs[0].clients == 1 and len(record.runs[0].exchanges) == ALONE_REQUESTS
    rates = [run.rate for run in record.runs if run.rate is not None]
    assert max(rates) > 4.0 and any(3.7 <= rate <= 4.0 for rate in rates)
    assert len({run.seed for run in record.runs}) == len(record.runs)
    assert "not met: " in said and "highest rate that meets it" in said


def test_a_target_that_no_rate_meets_is_told_after_the_runs(workload: Workload) -> None:
    plan = Plan(workload=workload, slo=Slo.parse("ttft_p99<1ms"), searches=True)
    record, _, raised = _go(plan, _OnePlace())
    assert record.runs and str(raised).startswith(
        "ttft_p99<1ms is not met even at one request at a time: TTFT p99 "
    )
