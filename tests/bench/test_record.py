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
