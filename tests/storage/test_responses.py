"""The table of responses: whose they are, how long and how many are kept; which processes live."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from octavo.storage.database import Database
from octavo.storage.folder import DataFolder
from octavo.storage.records import ResponseRecord
from octavo.storage.responses import LIVES_S
from octavo.storage.runners import Runners
from octavo.storage.stored import Stored

T = TypeVar("T")
NOW = 2_000_000_000


def record(name: str, owner: str = "", created_at: int = NOW, size: int = 10) -> ResponseRecord:
    return ResponseRecord(
        id=name,
        owner=owner,
        created_at=created_at,
        status="completed",
        body=b"{}",
        items=b"[]",
        tokens=b"x" * size,
        digest="d",
    )


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[[Callable[[Stored], T]], T]]:
    database = Database(DataFolder(tmp_path / "data"))
    yield lambda work: asyncio.run(database.run(work))
    database.close()


def test_a_look_does_not_make_a_database(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path / "data")
    assert not Database(folder).used
    folder.make()
    folder.database.touch()
    assert Database(folder).used


Run = Callable[[Callable[[Stored], T]], T]


def test_one_is_put_changed_and_removed(run: Run[object]) -> None:
    one = record("resp_1", "a")
    run(lambda stored: stored.responses.put(one))
    assert run(lambda stored: stored.responses.get("resp_1", "a", NOW)) == one
    changed = msgspec.structs.replace(one, status="failed", tokens=None, runner="r")
    run(lambda stored: stored.responses.put(changed))
    assert run(lambda stored: stored.responses.get("resp_1", None, NOW)) == changed
    assert run(lambda stored: stored.responses.get("resp_1", "b", NOW)) is None
    assert run(lambda stored: stored.responses.remove("resp_1", "b")) is False
    assert run(lambda stored: stored.responses.remove("resp_1", "a")) is True
    assert run(lambda stored: stored.responses.get("resp_1", None, NOW)) is None


def test_what_is_old_or_too_much_goes_the_oldest_first(run: Run[object]) -> None:
    run(lambda stored: stored.responses.put(record("old", "a", NOW - LIVES_S)))
    assert run(lambda stored: stored.responses.get("old", None, NOW)) is None
    for name in "123":
        run(lambda stored, name=name: stored.responses.put(record(name, "a", size=96)))  # type: ignore[misc]
        run(lambda stored, name=name: stored.responses.put(record(f"b{name}", "b", size=96)))  # type: ignore[misc]

    def left(stored: Stored) -> set[str]:
        names = ["old", *"123", *(f"b{name}" for name in "123")]
        return {name for name in names if stored.responses.get(name, None, NOW - LIVES_S) is not None}

    assert run(lambda stored: stored.responses.tidy("a", NOW, max_bytes=300)) == 1
    assert run(left) == {*"123", "b1", "b2", "b3"}
    assert run(lambda stored: stored.responses.tidy("a", NOW, max_bytes=299)) == 1
    assert run(left) == {*"23", "b1", "b2", "b3"}
    assert run(lambda stored: stored.responses.tidy("a", NOW, max_bytes=99)) == 2
    assert run(left) == {"b1", "b2", "b3"}


def test_a_process_is_alive_until_it_ends_however_it_does(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from octavo.storage.runners import Runners; r = Runners(pathlib.Path(sys.argv[1]));"
        "r.enter(); print(r.name, flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with other:
        assert other.stdout is not None
        name = other.stdout.readline().strip()
        here = Runners(tmp_path)
        assert not here.alive(here.name)
        here.enter()
        assert here.alive(here.name)
        assert here.alive(name)
        other.kill()
    assert not here.alive(name)
    assert not here.alive("nobody")
    here.leave()
    assert not here.alive(here.name)
    assert list((tmp_path / "runners").iterdir()) == []
