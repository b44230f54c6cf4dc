"""Rows over time and the sentence about the longest stall, worked by hand on both policies."""

from __future__ import annotations

from octavo.simulation.gantt import Row, Span, gantt, lanes, longest_stall, stall_words, window_of
from octavo.telemetry.timeline import Step
from tests.engine.test_recorder import THREE, request, watched


def spans(rows: list[Row]) -> dict[str, list[tuple[str, int, int]]]:
    return {
        row.request: [(one.state[:2], one.begin_us // 1000, one.end_us // 1000) for one in row.spans]
        for row in rows
    }


def test_with_whole_prompts_first_others_are_stalled() -> None:
    steps, run = watched(THREE, policy="prefill-first")
    rows = gantt(steps)
    assert spans(rows) == {
        "0": [("pr", 0, 40), ("de", 40, 52), ("st", 52, 162), ("de", 162, 198)],
        "1": [("pr", 0, 40), ("de", 40, 52), ("st", 52, 162), ("de", 162, 187)],
        "2": [("wa", 45, 52), ("pr", 52, 162), ("de", 162, 175)],
    }
    stall = longest_stall(run)
    assert stall == ("0", 52_000, 175_000)
    assert window_of(stall) == (0, 425_000)
    assert stall_words(stall, steps, rows) == (
        "The longest stall: 123 ms at 0.05 s: the prompt of request 2 (100 tokens) was computed while 2 streams waited."
    )


def test_with_chunks_nobody_is_stalled() -> None:
    steps, run = watched(THREE, policy="stall-free", budget_tokens=52)
    rows = gantt(steps)
    assert spans(rows) == {
        "0": [("pr", 0, 40), ("de", 40, 188)],
        "1": [("pr", 0, 40), ("de", 40, 176)],
        "2": [("wa", 45, 52), ("pr", 52, 114), ("pr", 114, 176), ("de", 176, 188)],
    }
    stall = longest_stall(run)
    assert stall is not None
    assert stall_words(stall, steps, rows) == (
        "No stream waited for others longer than for a step: the longest gap between two tokens is 62 ms at 0.05 s, "
        "with 52 tokens in a step, 50 of them of prompts."
    )


def test_who_lost_his_place_is_preempted_until_he_begins_again() -> None:
    two = [request(0, 0.0, 60, 40), request(1, 0.0, 60, 40)]
    steps, run = watched(two, num_blocks=10, max_step_tokens=160, max_model_len=160)
    rows = gantt(steps)
    states = [one.state for row in rows if row.request == "1" for one in row.spans]
    assert states == ["prefill", "decode", "preempted", "prefill", "decode"]
    stall = longest_stall(run)
    assert stall is not None and stall.request == "1"
    assert "request 1 lost its place" in stall_words(stall, steps, rows)


def test_rows_have_no_holes_even_when_a_window_begins_within() -> None:
    whole, _ = watched(THREE, policy="prefill-first")
    cut = [one for one in whole if one.begin_us >= 52_000]
    for row in gantt(cut):
        assert all(a.end_us == b.begin_us for a, b in zip(row.spans, row.spans[1:], strict=False))
    assert spans(gantt(cut))["0"] == [("st", 52, 162), ("de", 162, 198)]


def test_a_figure_is_cut_to_its_window_and_keeps_who_waited_longest() -> None:
    rows = [
        Row(0, str(place), 0, [Span("waiting", 0, place), Span("decode", place, 1000)])
        for place in range(1, 400)
    ]
    figure = lanes(rows, 100, 900)
    assert len(figure.names) == 300 and "request 399" in figure.names and "request 50" not in figure.names
    assert min(figure.start) == 100e-6 and max(figure.end) == 900e-6
    assert gantt(list[Step]()) == []
