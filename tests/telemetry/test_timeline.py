"""Steps as JSON lines and as a browser's trace, worked by hand."""

from __future__ import annotations

from typing import Any

import msgspec

from octavo.telemetry.timeline import Admission, Share, Step, Timeline, chrome_trace, json_lines


def step(number: int, begin_us: int, end_us: int, **changes: Any) -> Step:
    fields: dict[str, Any] = {
        "number": number, "replica": 0, "begin_us": begin_us, "end_us": end_us, "tokens": 0, "shares": (),
        "running": 1, "waiting": 0, "blocks_used": 3, "blocks_free": 5, "evicted_blocks": 0,
        "internal_tokens": 7, "external_tokens": 0, "duplicate_tokens": 0, "shared_tokens": 0,
    }  # fmt: skip
    return Step(**{**fields, **changes})


TWO = [
    step(
        0, 1_000, 3_000, tokens=40, shares=(Share("7", 0, "prefill", 16, 40),), admitted=(Admission("7", 0, 900, 16),)
    ),
    step(
        1, 3_000, 4_500, tokens=3, shares=(Share("7", 0, "draft", 56, 3, 2),), preempted=(("8", 1),), ended=(("7", 0),)
    ),
]  # fmt: skip


def test_a_timeline_keeps_the_last_steps_in_the_order_in_which_they_began() -> None:
    timeline = Timeline(most=3)
    for number, (replica, begin_us) in enumerate([(0, 10), (1, 40), (0, 30), (1, 30)]):
        timeline.add(step(number, begin_us, begin_us + 5, replica=replica))
    assert [(one.begin_us, one.replica) for one in timeline] == [(30, 0), (30, 1), (40, 1)]
    assert (len(timeline), timeline.forgotten) == (3, 1)


def test_a_line_of_json_holds_a_whole_step() -> None:
    lines = list(json_lines(TWO))
    assert all(line.endswith(b"\n") and line.count(b"\n") == 1 for line in lines)
    assert [msgspec.json.decode(line, type=Step) for line in lines] == TWO


def test_a_trace_has_a_thread_for_the_steps_and_one_for_each_sequence() -> None:
    trace = chrome_trace(TWO)
    events = trace["traceEvents"]
    names = [
        (event["pid"], event["tid"], event["name"], event["args"]["name"])
        for event in events
        if event["ph"] == "M"
    ]
    assert names == [
        (0, 0, "process_name", "replica 0"),
        (0, 0, "thread_name", "steps"),
        (0, 1, "thread_name", "request 7"),
        (0, 2, "thread_name", "request 8, answer 2"),
    ]
    spans = [
        (one["tid"], one["ts"], one["dur"], one["name"], one["cat"]) for one in events if one["ph"] == "X"
    ]
    assert spans == [
        (0, 1_000, 2_000, "40 tokens of 1", "step"),
        (1, 1_000, 2_000, "prefill", "prefill"),
        (0, 3_000, 1_500, "3 tokens of 1", "step"),
        (1, 3_000, 1_500, "draft", "draft"),
    ]
    instants = [(one["tid"], one["ts"], one["name"], one["s"]) for one in events if one["ph"] == "i"]
    assert instants == [(1, 1_000, "admitted", "t"), (2, 3_000, "preempted", "t"), (1, 4_500, "ended", "t")]
    counters = {(one["ts"], one["name"]): one["args"] for one in events if one["ph"] == "C"}
    assert counters[1_000, "blocks"] == {"used": 3, "free": 5}
    assert counters[3_000, "requests"] == {"running": 1, "waiting": 0}
    assert trace["displayTimeUnit"] == "ms"


def test_every_event_of_a_trace_has_what_its_phase_needs() -> None:
    """As the Trace Event Format has it: who, when, and for complete events how long; counters are numbers."""
    needs = {
        "X": {"ts", "dur", "name"},
        "i": {"ts", "s", "name"},
        "C": {"ts", "name", "args"},
        "M": {"name", "args"},
    }
    for event in msgspec.json.decode(msgspec.json.encode(chrome_trace(TWO)))["traceEvents"]:
        assert needs[event["ph"]] <= event.keys()
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int)
        if event["ph"] == "C":
            assert all(isinstance(value, int) for value in event["args"].values())
