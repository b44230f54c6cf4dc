"""Watchers of an engine client: the engine is asked to tell of its steps while there is one, and no longer."""

from __future__ import annotations

from octavo.engine.journal import Record
from octavo.engine.messages import Stats, StepSeen
from octavo.engine.watching import Watching
from octavo.sampling.params import SamplingParams
from octavo.scheduling.outputs import FinishReason, SequenceOutput


class Noted:
    def __init__(self) -> None:
        self.told: list[str] = []

    def on_request(self, record: Record) -> None:
        self.told.append(f"begin {record.request_id}")

    def on_output(self, output: SequenceOutput) -> None:
        self.told.append(f"output {output.request_id}")

    def on_end(self, request_id: str, reason: FinishReason) -> None:
        self.told.append(f"end {request_id}")

    def on_step(self, step: StepSeen | None, stats: Stats) -> None:
        self.told.append("step")


def record(name: str) -> Record:
    return Record(name, (1, 2, 3), SamplingParams(), 0.0)


def test_the_engine_tells_while_somebody_watches() -> None:
    asked: list[bool] = []
    watching = Watching(asked.append)
    one, other = Noted(), Noted()
    watching.request(record("unseen"))
    watching.add(one, [record("open")])
    watching.add(other, [])
    watching.request(record("new"))
    watching.output(SequenceOutput("new", 0))
    assert one.told == ["begin open", "begin new", "output new"] and other.told == one.told[1:]
    watching.engine_began()  # a new process has to be asked again
    watching.remove(one)
    watching.remove(one)
    assert asked == [True, True]
    watching.ended("new", "stop")
    assert other.told[-1] == "end new" and len(one.told) == 3
    watching.remove(other)
    watching.engine_began()
    assert asked == [True, True, False]
