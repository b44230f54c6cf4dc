"""A server that was watched: its load is simulated as it was, and the option is named that was wrong."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec
import pytest

from octavo.bench.slo import Slo
from octavo.bench.watched import Watched
from octavo.errors import BenchError
from octavo.planning.observation import Observation, consider
from octavo.planning.observation_page import observation_page
from octavo.planning.observation_words import advice_lines, brings, verdict
from octavo.planning.rehearsal import Rehearsal, Rehearsed, rehearse
from octavo.planning.setting import Setting
from octavo.workload.request import Part, Request
from tests.planning.watching import SETTING, answer_times, watched


def load(count: int, rate: float, *, shared: int = 0, prompt: int = 120, output: int = 40) -> list[Request]:
    """Poisson arrivals; prompts begin with so many tokens that all have."""
    chance, at_s = random.Random(3), 0.0
    requests = []
    for index in range(count):
        at_s += chance.expovariate(rate)
        parts = [Part("system", shared)] if shared else []
        parts.append(Part(f"own/{index}", chance.randint(prompt // 2, 3 * prompt // 2)))
        requests.append(
            Request(
                index=index,
                at_s=at_s,
                session=index,
                parts=tuple(parts),
                output_tokens=chance.randint(output // 2, 3 * output // 2),
            )
        )
    return requests


def simulated(asked: Sequence[Rehearsal], words: str) -> list[Rehearsed]:
    return [rehearse(one) for one in asked]


def considered(found: Watched, slo: str | None = None) -> Observation:
    return consider(found, None if slo is None else Slo.parse(slo), simulated, draws=2)


def changed(**fields: object) -> Setting:
    return msgspec.structs.replace(SETTING, **fields)


@pytest.mark.slow
def test_too_few_places_are_found_and_more_bring_what_was_said() -> None:
    requests = load(90, 4.0)
    few = changed(max_running=2)
    told = considered(watched(few, requests, until_s=20))
    assert told.trusted and told.binds is not None and told.binds.kind == "queue"
    assert told.best is not None and told.best.knob == "sequences at once"
    effect = told.best.effects["ttft_p50"]
    assert effect.ratio < 0.3 and "ttft_p50" in told.best.better
    # … and so it is, where it is done.
    most = int(told.best.value)
    true = sorted(answer_times(watched(changed(max_running=most), requests, until_s=20)))
    assert effect.low / 1.3 <= true[len(true) // 2] <= effect.high * 1.3
    words = " ".join([verdict(told), *brings(told.best), *advice_lines(told)])
    assert f"Change one thing: --max-running {most}." in words and "the places for sequences" in words
    html = observation_page(told).html()
    assert f"--max-running {most}" in html and "too far" not in html


@pytest.mark.slow
def test_a_server_that_is_well_set_is_left_alone() -> None:
    told = considered(watched(SETTING, load(60, 1.0), until_s=40))
    assert told.trusted and told.best is None
    assert "No single option would help" in verdict(told)
    target = considered(watched(SETTING, load(60, 1.0), until_s=40), "ttft_p95<2s")
    assert target.meets and "meets ttft_p95<2s as it is" in verdict(target)


@pytest.mark.slow
def test_a_prefix_cache_that_is_off_is_missed() -> None:
    requests = load(60, 2.5, shared=512, prompt=40)
    told = considered(watched(changed(prefix_cache=False), requests, until_s=20))
    assert told.trusted and told.best is not None and told.best.option == "--prefix-cache"


@pytest.mark.slow
def test_what_was_found_computed_from_before_the_watch_is_so_in_the_simulation() -> None:
    told = considered(watched(SETTING, load(80, 2.0, shared=800, prompt=40), from_s=12, until_s=30))
    off = {one.name: one.off for one in told.checks}
    assert told.trusted and abs(off["cached_share"] or 0) < 0.05 and abs(off["ttft_mean"] or 0) < 0.1


@pytest.mark.slow
def test_a_closed_loop_is_known_by_its_clients() -> None:
    told = considered(watched(changed(max_running=4), load(60, 1.0), clients=12))
    [requests] = [words for name, words in told.load if name == "requests"]
    assert requests.startswith("12 clients") and told.trusted
    assert told.best is not None and told.best.knob == "sequences at once"


@pytest.mark.slow
def test_what_runs_already_counts_as_computed() -> None:
    found = watched(SETTING, load(80, 3.0, output=80), from_s=6, until_s=24)
    assert any(one.had for one in found.asked.values())
    told = considered(found)
    off = {one.name: one.off for one in told.checks}
    assert told.trusted and abs(off["tpot_mean"] or 0) < 0.1 and abs(off["ttft_p95"] or 0) < 0.3


def test_a_simulation_that_is_too_far_off_gives_no_advice() -> None:
    found = watched(changed(max_running=2), load(90, 4.0), until_s=20)
    assert found.server is not None
    found.server = msgspec.structs.replace(found.server, max_running=32)  # it is not what it says
    told = considered(found)
    assert not told.trusted and told.best is None and not told.remedies
    assert verdict(told).startswith("No advice") and "TTFT" in verdict(told)


def test_too_little_traffic_is_no_ground() -> None:
    with pytest.raises(BenchError, match=r"0 requests came to http://simulated in .* 10 are needed"):
        considered(watched(SETTING, []))
    with pytest.raises(BenchError, match="5 requests came"):
        considered(watched(SETTING, load(5, 2.0)))
