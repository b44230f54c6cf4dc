"""A server is calibrated from its chunks alone: of a simulated one with known terms, they are found again."""

from __future__ import annotations

import pytest

from octavo.backends.base import Limits
from octavo.bench.record import Run
from octavo.scheduling.settings import SchedulerConfig
from octavo.simulation.calibrate import Observed, fit
from octavo.simulation.calibrate_engine import Probe
from octavo.simulation.calibrate_server import (
    Knobs,
    between_chunks_s,
    observed_in,
    probes,
    requests_of_probe,
    steps_of,
)
from octavo.simulation.calibrated import CalibratedPace, HostWork
from octavo.simulation.replica import Replica
from octavo.simulation.run import simulate
from octavo.timing.clock import ManualClock
from octavo.timing.step_time import StepLoad

PACE = CalibratedPace(
    per_step_s=0.006, tokens=(0, 8, 512), token_s=(0.0, 0.001, 0.2), per_sample_s=1e-4, per_kv_token_s=4e-7,
    per_pair_s=3e-8,
)  # fmt: skip
HOST = HostWork(per_request_s=0.004, per_prompt_token_s=5e-6)
KNOBS = Knobs()


def served(probe: Probe, host: HostWork, begun_s: dict[int, float]) -> Run:
    limits = Limits(
        num_blocks=4096, block_size=16, max_slots=KNOBS.max_running, max_step_tokens=KNOBS.max_step_tokens,
        max_model_len=KNOBS.max_model_len,
    )  # fmt: skip
    replica = Replica(SchedulerConfig(limits, 1, ()), PACE, ManualClock())
    return simulate(replica, requests_of_probe(probe, 1, begun_s), host=host)


def test_known_terms_of_steps_and_of_the_way_are_found_from_chunks() -> None:
    seen: list[Observed] = []
    begun_s: dict[int, float] = {}
    for probe in probes(KNOBS):
        done = served(probe, HOST, begun_s)
        assert all(one.error is None for one in done.exchanges)
        if probe.context == 16 and not probe.late:
            begun_s[probe.streams] = max(one.chunks[1].at_us for one in done.exchanges) / 1e6
        found = observed_in(done, probe, KNOBS)
        assert found, probe
        seen += found
    pace, host, fitted = fit(seen)
    assert host.per_request_s == pytest.approx(HOST.per_request_s, rel=0.05)
    assert host.per_prompt_token_s == pytest.approx(HOST.per_prompt_token_s, rel=0.3)
    assert fitted.error_p95 < 0.02
    for load in (
        StepLoad(1, 1, 700, 0, 1),
        StepLoad(20, 20, 3000, 0, 20),
        StepLoad(512, 9, 400, 131_000, 9),
        StepLoad(400, 1, 0, 80_200, 1),
    ):
        assert pace.seconds(load) == pytest.approx(PACE.seconds(load), rel=0.03)


def test_chunks_that_are_written_one_after_another_tell_how_long_each_takes() -> None:
    done = served(Probe(6, 16, 10), HostWork(per_chunk_s=0.0002), {})
    assert all(one == pytest.approx(0.0002, abs=2e-6) for one in between_chunks_s(done))
    assert max(len(step.had) for step in steps_of(done)) == 6


def test_chunks_of_several_tokens_tell_nothing() -> None:
    done = served(Probe(1, 16, 10), HOST, {})
    done.exchanges[0].chunks[3].tokens = 2
    assert observed_in(done, Probe(1, 16, 10), KNOBS) == []
