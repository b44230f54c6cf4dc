"""The file of raw events: what is written is read again, and what is none is told."""

from __future__ import annotations

import gzip
import os
import stat
from pathlib import Path

import pytest

from octavo.bench.record import Chunk, ClientSample, Exchange, Kind, Record, Run, ServerSample
from octavo.errors import BenchError


def record() -> Record:
    exchange = Exchange(
        index=0, session=0, intended_us=0, client=3, started_us=4, sent_us=12, end_us=900, status=200, wanted_output=2,
        output_tokens=2, counted="chunks",
        chunks=[Chunk(300, 0, 0, Kind.ROLE), Chunk(800, 2, 9, Kind.ANSWER | Kind.FINISH)],
    )  # fmt: skip
    run = Run(
        seed=1, rate=2.0, began="2026-01-01T00:00:00Z", end_us=900, exchanges=[exchange],
        client=[ClientSample(100, 0.5, 80, 1)], server=[ServerSample(0, {"running": 1.0})],
    )  # fmt: skip
    return Record(
        octavo="0",
        url="http://127.0.0.1:8000",
        model="m",
        api="chat",
        name="chat",
        options={"rate": 2.0},
        runs=[run],
    )


@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
def test_a_record_is_read_as_it_was_written(tmp_path: Path, name: str) -> None:
    record().write(tmp_path / name)
    assert Record.read(tmp_path / name) == record()
    assert [path.name for path in tmp_path.iterdir()] == [name]
    record().write(tmp_path / "again.json.gz")
    record().write(tmp_path / "and-again.json.gz")
    assert (tmp_path / "again.json.gz").read_bytes() == (tmp_path / "and-again.json.gz").read_bytes()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no record of octavo bench"),
        (b'{"format":"octavo-bench-1"}', "missing required field"),
        (b"[1, 2", "no record of octavo bench"),
        (gzip.compress(b"{}")[:-4], "no record of octavo bench|gzip is damaged"),
        (b"\x1f\x8bnonsense", "gzip is damaged"),
    ],
)
def test_what_is_no_record_is_one_sentence(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(data)
    with pytest.raises(BenchError, match=message) as found:
        Record.read(path)
    assert str(found.value).startswith(str(path))


def test_a_format_of_tomorrow_is_named(tmp_path: Path) -> None:
    tomorrow = record()
    tomorrow.format = "octavo-bench-9"
    tomorrow.write(tmp_path / "x.json")
    with pytest.raises(BenchError, match="'octavo-bench-9', and this version reads 'octavo-bench-1'"):
        Record.read(tmp_path / "x.json")


def test_files_that_are_not_there_or_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="No such file"):
        Record.read(tmp_path / "x.json")
    with pytest.raises(BenchError, match="cannot be written"):
        record().write(tmp_path / "no" / "x.json")


def test_what_is_no_file_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe, link, target = tmp_path / "pipe", tmp_path / "link.json", tmp_path / "target.json"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    record().write(pipe)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert os.read(reader, 1 << 16).startswith(b'{"format":')
    os.close(reader)
    target.write_text("old")
    link.symlink_to(target)
    record().write(link)
    assert link.is_symlink() and Record.read(target) == record()
    with pytest.raises(BenchError, match="No space left on device"):
        record().write(Path("/dev/full"))
    assert stat.S_ISCHR(Path("/dev/full").stat().st_mode)


def _edit(change: str) -> Record:
    made = record()
    [run] = made.runs
    [first] = run.exchanges
    match change:
        case "end":
            first.end_us = run.end_us = 11
        case "never":
            first.sent_us = None
        case "late":
            first.chunks[-1].at_us = 901
        case "early":
            first.chunks[0].at_us = 11
        case "order":
            first.chunks[0].at_us = 801
        case "headers":
            first.headers_us = 11
        case "started":
            first.started_us = 13
        case "twice":
            run.exchanges.append(first)
        case "run":
            run.end_us = 10**12
        case "year":
            first.end_us = run.end_us = 10**15
        case "sample":
            run.client[0].at_us = -1
        case "tokens":
            first.chunks[1].tokens = -2
        case "before":
            first.intended_us = -1
        case "session":
            first.session = -1
        case _:
            raise AssertionError(change)
    return made


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("end", "request 0 ends before it was sent"),
        ("never", "request 0 has events and was never sent"),
        ("late", "request 0 has an event from after its end"),
        ("early", "request 0 has an event from before it was sent"),
        ("order", "request 0 has events out of order"),
        ("headers", "request 0 has an answer from before it was sent"),
        ("started", "request 0 was sent before its turn had come"),
        ("twice", "request 0 is there twice"),
        ("run", "its end is at 1e+06 s and that of its last request at 0.0009 s"),
        ("year", "request 0 is from 0 s to 1e+09 s after the run's start"),
        ("sample", "a sample is from -1e-06 s after its start"),
        ("tokens", "request 0 has an event with fewer than 0 tokens or characters"),
        ("before", "request 0 was meant to be sent before the run began"),
        ("session", "request 0 has a number below 0 as its own, its session's or its turn's"),
    ],
)
def test_a_record_of_what_cannot_have_happened_is_refused(tmp_path: Path, change: str, message: str) -> None:
    path = tmp_path / "x.json"
    _edit(change).write(path)
    with pytest.raises(BenchError) as found:
        Record.read(path)
    assert str(found.value) == f"{path}: {message}; the record was damaged or edited."


def test_of_several_runs_the_damaged_one_is_named_and_events_after_done_are_none(tmp_path: Path) -> None:
    made = record()
    after = record().runs[0]
    last = after.exchanges[0]
    last.chunks = [*last.chunks, Chunk(900, 0, 0, Kind.DONE), Chunk(950, 0, 0, Kind.USAGE)]
    made.runs = [after, record().runs[0]]
    made.write(tmp_path / "x.json")
    assert Record.read(tmp_path / "x.json") == made
    made.runs[1].exchanges[0].end_us = 3
    made.write(tmp_path / "x.json")
    with pytest.raises(BenchError, match=r": run 2, request 0 ends before it was sent; "):
        Record.read(tmp_path / "x.json")
