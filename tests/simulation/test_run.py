"""A simulated run: hand-worked times, a closed form, equal steps taken together, and no real time anywhere."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from octavo.backends.base import Limits
from octavo.bench.measures import measure
from octavo.bench.record import Record, Run
from octavo.bench.slo import Slo
from octavo.bench.ticks import Ticks
from octavo.bench.window import whole
from octavo.scheduling.settings import SchedulerConfig
from octavo.simulation.asking import Asking
from octavo.simulation.pace import LinearPace
from octavo.simulation.replica import Replica
from octavo.simulation.run import simulate
from octavo.timing.clock import ManualClock
from octavo.timing.step_time import StepLoad
from octavo.timing.virtual import WallTimeRead
from octavo.workload.arrivals import Poisson
from octavo.workload.generate import requests_of
from octavo.workload.lengths import Fixed
from octavo.workload.request import Part, Request
from octavo.workload.spec import Tenant, Workload, load_workload


def config(**changes: Any) -> SchedulerConfig:
    limits = {
        "num_blocks": 4096, "block_size": 16, "max_slots": 64, "max_step_tokens": 512, "max_model_len": 16384,
    }  # fmt: skip
    limits.update({name: changes.pop(name) for name in list(changes) if name in limits})
    return SchedulerConfig(Limits(**limits), 1, (), **changes)


def request(index: int, at_s: float, tokens: int, output: int, **more: Any) -> Request:
    parts = more.pop("parts", (Part(f"own/{index}", tokens),))
    return Request(index=index, at_s=at_s, session=index, parts=parts, output_tokens=output, **more)


def run(requests: list[Request], pace: Any, fast: bool = True, **changes: Any) -> Run:
    return simulate(Replica(config(**changes), pace, ManualClock(), fast=fast), requests)


def test_times_are_those_of_the_steps() -> None:
    """A prompt of 100 tokens is one step; each token after it another. The second request comes within a step."""
    pace = LinearPace(per_step_s=0.010, per_token_s=0.001)
    done = run([request(0, 1.0, 100, 3), request(1, 1.05, 50, 2)], pace)
    first, second = done.exchanges
    assert [one.intended_us for one in done.exchanges] == [1_000_000, 1_050_000]
    # 1.000 + 0.110: the prompt; then a step of 50 + 1 tokens: 0.061; then one of 2: 0.012
    assert [chunk.at_us for chunk in first.chunks] == [1_110_000, 1_171_000, 1_183_000]
    assert [chunk.at_us for chunk in second.chunks] == [1_171_000, 1_183_000]
    assert (first.end_us, second.end_us, done.end_us) == (1_183_000, 1_183_000, 1_183_000)
    assert (first.output_tokens, first.input_tokens, second.status) == (3, 100, 200)
    assert done.server[-1].values["busy_s"] == pytest.approx(0.183)


def test_a_follower_comes_after_the_answer_and_finds_it_in_the_cache() -> None:
    said = (Part("asked", 64), Part("said", 33, 0), Part("more", 20))
    first = request(0, 0.0, 0, 33, parts=said[:1])
    second = request(1, 0.0, 0, 4, parts=said, after=0, delay_s=2.0)
    done = run([first, second], LinearPace(per_step_s=0.01))
    one, other = done.exchanges
    assert other.intended_us == one.end_us + 2_000_000
    assert other.cached_tokens == (64 + 32) // 16 * 16


def test_a_request_that_can_never_fit_is_refused_and_the_others_go_on() -> None:
    done = run([request(0, 0.0, 20_000, 5), request(1, 0.0, 10, 5)], LinearPace(per_step_s=0.01))
    refused, good = done.exchanges
    assert (refused.error, refused.status, refused.chunks) == ("status", 400, [])
    assert "20000" in (refused.message or "").replace(",", "")
    assert good.error is None and len(good.chunks) == 5


def waits_us(arrivals_us: list[int], service_us: int) -> list[int]:
    """Lindley's recursion (1952) for one server: what is left of the waiting and serving before."""
    waits, free_us = [], 0
    for at_us in arrivals_us:
        waits.append(max(free_us - at_us, 0))
        free_us = at_us + waits[-1] + service_us
    return waits


@pytest.mark.slow
def test_one_server_with_a_fixed_service_time_is_the_queue_of_the_formula() -> None:
    """M/D/1 with one slot and one token an answer: each wait by Lindley's recursion, and their mean by Pollaczek and
    Khinchine: ρ s / (2 (1 − ρ))."""
    service_s, load = 0.020, 0.7
    workload = Workload(
        arrivals=Poisson(rate=load / service_s),
        input=Fixed(tokens=40),
        output=Fixed(tokens=1),
        requests=60_000,
    )
    arrivals_us = [int(one.at_s * 1e6 + 0.5) for one in requests_of(workload)]
    expected = waits_us(arrivals_us, 20_000)
    assert sum(expected) / len(expected) / 1e6 == pytest.approx(load * service_s / (2 * (1 - load)), rel=0.04)
    few = msgspec.structs.replace(workload, requests=1_000)
    replica = Replica(config(max_slots=1), LinearPace(per_step_s=service_s), ManualClock())
    done = simulate(replica, requests_of(few))
    waits = [one.chunks[0].at_us - one.intended_us - 20_000 for one in done.exchanges]
    assert max(abs(ours - theirs) for ours, theirs in zip(waits, expected, strict=False)) <= 1


@example(
    seed=290,
    name="agent",
    rate=4.0,
    knobs={
        "num_blocks": 1500,
        "max_slots": 5,
        "max_step_tokens": 512,
        "policy": "static",  # those that have ended share more than the others have stored
        "prefix_cache": True,
        "allocator": "paged",
        "aging_s": 0.0,
    },
    tenants=False,
)
@settings(max_examples=6)
@given(
    seed=st.integers(0, 1000),
    name=st.sampled_from(["chat", "agent", "rag", "batch"]),
    rate=st.sampled_from([0.5, 4.0, 30.0]),
    knobs=st.fixed_dictionaries(
        {
            "num_blocks": st.sampled_from([700, 1500, 4096]),
            "max_slots": st.sampled_from([1, 5, 64]),
            "max_step_tokens": st.sampled_from([64, 512]),
            "policy": st.sampled_from(["stall-free", "continuous", "prefill-first", "static"]),
            "prefix_cache": st.booleans(),
            "allocator": st.sampled_from(
                ["paged", "paged", "reserved-max", "reserved-pow2", "reserved-oracle"]
            ),
            "aging_s": st.sampled_from([0.0, 2.0, 60.0]),
        }
    ),
    tenants=st.booleans(),
)
def test_equal_steps_taken_together_change_nothing(
    seed: int, name: str, rate: float, knobs: dict[str, Any], tenants: bool
) -> None:
    """To the last byte of the record: times, hits, preemptions, samples of the server. With tenants too, of whom each
    has its part and some go first."""
    workload = msgspec.structs.replace(load_workload(name), seed=seed, requests=15)
    if tenants:
        named = (Tenant(name="a", weight=2.0), Tenant(name="b", priority=1), Tenant(name="c"))
        workload = msgspec.structs.replace(workload, tenants=named)
    clients = getattr(workload.arrivals, "clients", None)
    if clients is None:
        workload = workload.at_rate(rate)
    if knobs["policy"] != "stall-free":
        knobs = {**knobs, "max_step_tokens": 16384}
    pace = LinearPace(
        per_step_s=0.008, per_token_s=3e-5, per_sample_s=1e-5, per_kv_token_s=7e-8, per_pair_s=1e-9, knee=4
    )
    records = []
    for fast in (True, False):
        replica = Replica(config(**knobs, max_model_len=10_000), pace, ManualClock(), fast=fast)
        done = simulate(replica, requests_of(workload), clients=clients)
        replica.engine.check()
        records.append(msgspec.json.encode(done))
    assert records[0] == records[1]
    assert b'"chunks":[[' in records[0]


def test_two_runs_are_equal_to_the_last_byte() -> None:
    workload = msgspec.structs.replace(load_workload("voice"), requests=60)
    pace = LinearPace(per_step_s=0.01, per_token_s=1e-4)
    one, other = (
        msgspec.json.encode(simulate(Replica(config(), pace, ManualClock()), requests_of(workload)))
        for _ in range(2)
    )
    assert one == other


def test_who_reads_real_time_is_found() -> None:
    class Impatient:
        def seconds(self, load: StepLoad) -> float:
            from octavo.timing.clock import WallClock

            return WallClock().now_s()

    with pytest.raises(WallTimeRead, match=r"octavo\.timing\.clock"):
        run([request(0, 0.0, 10, 2)], Impatient())
    assert time.monotonic() > 0


def test_progress_is_told_in_real_time() -> None:
    seen = list[tuple[int, float]]()

    def note(done: int, now_s: float) -> None:
        from octavo.timing.clock import WallClock

        WallClock().now_s()
        seen.append((done, now_s))

    replica = Replica(config(), LinearPace(per_step_s=0.01), ManualClock())
    simulate(replica, [request(0, 0.0, 10, 30), request(1, 0.1, 10, 3)], on_progress=note)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen) and seen[-1][0] == 2


def test_a_compact_run_says_the_same_as_one_with_all_its_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All measures, to the last bit, with targets, groups and an answer that failed; and the file."""
    workload = msgspec.structs.replace(load_workload("chat"), requests=60).at_rate(6.0)
    pace = LinearPace(per_step_s=0.008, per_token_s=3e-5, per_kv_token_s=7e-8)
    requests = [
        *requests_of(workload),
        request(60, 20.0, 20_000, 5),
        request(61, 20.5, 5, 1, tenant="other", priority=1),
    ]
    full, compact = (
        simulate(Replica(config(max_slots=8), pace, ManualClock()), requests, compact=compact)
        for compact in (False, True)
    )
    assert all(isinstance(one.chunks, Ticks) for one in compact.exchanges)
    slo = Slo.parse("ttft_p99<1s,itl_p99<30ms,tpot_p50<20ms")
    for window in (None, whole(full)):
        measured = measure(full, slo=slo, window=window)
        assert measured == measure(compact, slo=slo, window=window)
        with monkeypatch.context() as patch:  # some requests after others, as of a million
            patch.setattr("octavo.bench.events._PART", 1000)
            assert measured == measure(compact, slo=slo, window=window)
    for number, run in enumerate((full, compact)):
        record = Record(octavo="0", url="simulated", model="m", api="completions", name="chat", runs=[run])
        record.write(tmp_path / f"{number}.json")
    assert (tmp_path / "0.json").read_bytes() == (tmp_path / "1.json").read_bytes()


def test_a_compact_answer_with_several_tokens_in_a_step_is_kept_in_full() -> None:
    asked = [request(0, 0.0, 20, 12), request(1, 0.01, 20, 7)]
    full, compact = (
        simulate(
            Replica(config(), LinearPace(per_step_s=0.01), ManualClock()),
            asked,
            asking=Asking(n=3),
            compact=compact,
        )
        for compact in (False, True)
    )
    assert msgspec.json.encode(full) == msgspec.json.encode(compact)
