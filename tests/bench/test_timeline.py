"""Timelines: a request's lane says what it waited for, and thinning loses no spike."""

from __future__ import annotations

from octavo.bench.record import Kind, Run, ServerSample
from octavo.bench.timeline import MAX_LANES, MAX_POINTS, timeline
from octavo.bench.window import choose, whole
from octavo.charts.figure import Figure, Lanes
from tests.bench.runs import answer, event, exchange, run
from tests.bench.synthetic import synthetic_run


def _of(made: Run) -> tuple[Lanes, dict[str, Figure]]:
    lanes, *figures = timeline(made, choose(made))
    assert isinstance(lanes, Lanes)
    return lanes, {one.title: one for one in figures if isinstance(one, Figure)}


def _spans(lanes: Lanes, lane: int) -> list[tuple[float, float, str]]:
    rows = zip(lanes.lane, lanes.start, lanes.end, lanes.of, strict=True)
    return [(start, end, lanes.classes[of][0]) for at, start, end, of in rows if at == lane]


def test_a_lane_has_lateness_waiting_and_answer() -> None:
    late = answer(1000, 700, 100, 4, sent_ms=1500)
    lanes, _ = _of(run([late]))
    assert _spans(lanes, 0) == [
        (1.0, 1.5, "late: not sent yet"),
        (1.5, 1.7, "sent, no token yet"),
        (1.7, 2.0, "answer"),
    ]


def test_a_failed_request_is_seen_from_where_it_went_wrong() -> None:
    cut = exchange(0, [event(100), event(200)], error="cut", end_ms=300)
    silent = exchange(0, [event(50, 0, Kind.ROLE)], error="timeout", end_ms=900)
    unsent = exchange(0, [], error="client", end_ms=400, sent_us=None)
    lanes, _ = _of(run([cut, silent, unsent]))
    assert _spans(lanes, 0) == [(0.0, 0.1, "sent, no token yet"), (0.1, 0.3, "failed")]
    assert _spans(lanes, 1) == [(0.0, 0.9, "failed")]
    assert _spans(lanes, 2) == [(0.0, 0.4, "failed")]
    assert "failed: timeout" in lanes.names[1]


def test_lanes_are_in_the_order_of_intended_times() -> None:
    lanes, _ = _of(run([answer(500, 10, 10, 2), answer(100, 10, 10, 2)]))
    assert [name.partition(",")[0] for name in lanes.names] == ["request 1", "request 0"]


def test_requests_in_flight_are_counted_from_sending_to_end() -> None:
    _, figures = _of(run([answer(0, 100, 100, 3), answer(200, 100, 100, 3)]))
    [series] = figures["Requests in flight"].series
    assert list(zip(series.x, series.y, strict=True)) == [(0.0, 1.0), (0.2, 2.0), (0.3, 1.0), (0.5, 0.0)]


def test_tokens_a_second_are_those_that_came() -> None:
    made = synthetic_run(5.0)
    _, figures = _of(made)
    [series] = figures["Output tokens"].series
    width = series.x[1] - series.x[0]
    total = sum(chunk.tokens for one in made.exchanges for chunk in one.chunks)
    assert round(sum(value or 0.0 for value in series.y) * width) == total


def test_figures_share_one_axis_of_time_and_its_shades() -> None:
    made = synthetic_run(5.0)
    lanes, figures = _of(made)
    every: list[Figure | Lanes] = [lanes, *figures.values()]
    assert {one.group for one in every} == {"timeline"}
    assert {(one.x.low, one.x.high) for one in every} == {(0.0, made.end_us / 1e6)}
    assert [shade.label for shade in lanes.shades] == ["warm-up", "drain"]
    assert {"KV in use", "The server's requests", "The client's own lag"} <= figures.keys()
    bare = run([answer(0, 10, 10, 3)])
    kept = [one.title for one in timeline(bare, whole(bare))]
    assert kept == ["Requests", "Requests in flight", "Output tokens", "TTFT over time"]


def test_a_long_run_is_thinned_but_its_spike_stays() -> None:
    exchanges = [answer(place * 10, 50, 1, 2) for place in range(5000)]
    exchanges[3333] = answer(33330, 9000, 1, 2)
    lanes, figures = _of(run(exchanges))
    assert len(lanes.names) == MAX_LANES and "300 of 5000 requests" in lanes.note
    assert any(name.startswith("request 3333,") for name in lanes.names)
    assert lanes.names[0].startswith("request 0,") and lanes.names[-1].startswith("request 4999,")
    for one in figures.values():
        for series in one.series:
            assert len(series.x) <= 2 * MAX_POINTS
    ttft = next(one for one in figures["TTFT over time"].series if one.name == "from sending")
    assert max(value or 0.0 for value in ttft.y) == 9.0
    assert timeline(run(exchanges), choose(run(exchanges))) == timeline(
        run(exchanges), choose(run(exchanges))
    )


def test_tokens_in_a_step_and_hits_are_of_what_counters_grew_between_readings() -> None:
    made = run([answer(0, 100, 100, 3)])
    grown = [(0, 0, 0, 0), (10, 400, 80, 20), (10, 400, 80, 20), (14, 1400, 180, 120), (2, 8, 190, 122)]
    names = ("steps", "step_tokens", "prefix_queried_tokens", "prefix_hit_tokens")
    made.server = [
        ServerSample(at * 1_000_000, dict(zip(names, map(float, values), strict=True)))
        for at, values in enumerate(grown)
    ]
    _, figures = _of(made)
    [tokens] = figures["Tokens in a step"].series
    assert list(zip(tokens.x, tokens.y, strict=True)) == [(1.0, 40.0), (3.0, 250.0)]
    [hits] = figures["Prompts found computed"].series
    assert list(zip(hits.x, hits.y, strict=True)) == [(1.0, 0.25), (3.0, 1.0), (4.0, 0.2)]
