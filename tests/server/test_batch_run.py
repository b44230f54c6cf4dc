"""One batch over a server that is played: what is asked, what is written, and how it goes on after anything."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from octavo.errors import ServerError
from octavo.server import batch_run
from octavo.server.batch_run import BatchRun, EngineGone
from octavo.server.in_process import Reply
from octavo.storage.database import Database
from octavo.storage.folder import DataFolder
from octavo.storage.lines import LineFile
from octavo.storage.records import BatchRecord, FileRecord

PATH = "/v1/completions"
SLOTS = 4


def good(body: bytes) -> Reply:
    return Reply(200, {"x-request-id": "r"}, b'{"asked":' + body + b"}")


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - what is waited for is on the disk
        await asyncio.sleep(0.01)


class World:
    """A data folder with a batch of `count` lines, and a server whose answers are `answer`."""

    def __init__(self, folder: Path, count: int = 20, seeded: bool = True) -> None:
        self.database = Database(DataFolder(folder))
        self.slots = asyncio.Semaphore(SLOTS)
        self.asked = Counter[int]()
        self.running = self.most = 0
        self.dead = False
        self.answer: Callable[[int, bytes], Awaitable[Reply]] = self.at_once
        self._count = count
        self._seeded = seeded

    async def at_once(self, number: int, body: bytes) -> Reply:
        await asyncio.sleep(0)
        return good(body)

    async def start(self, **fields: Any) -> None:
        self.database.folder.make()
        lines = [
            {"custom_id": f"q{i}", "method": "POST", "url": PATH, "body": {"number": i}}
            for i in range(self._count)
        ]
        data = "\n".join(map(json.dumps, lines)).encode()
        self.database.folder.file("file-input").write_bytes(data)
        now = int(time.time())
        given = {
            "id": "batch_1",
            "owner": "me",
            "model": "m",
            "endpoint": PATH,
            "input_file_id": "file-input",
            "completion_window": "24h",
            "created_at": now,
            "expires_at": now + 1000,
            "seed": 7,
            "output_name": "file-output",
            "error_name": "file-error",
            **fields,
        }
        record = BatchRecord(**given)
        await self.database.run(lambda stored: stored.batches.add(record))

    async def ask(self, path: str, body: bytes) -> Reply:
        assert path == PATH
        number = json.loads(body)["number"]
        self.asked[number] += 1
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            return await self.answer(number, body)
        finally:
            self.running -= 1

    async def batch(self) -> BatchRecord:
        found = await self.database.run(lambda stored: stored.batches.get("batch_1"))
        assert found is not None
        return found

    async def run(self) -> BatchRun:
        """A server that (re)starts."""
        return BatchRun(
            await self.batch(),
            self.database,
            self.ask,
            self.slots,
            lambda: self.dead,
            most=SLOTS,
            seeded=self._seeded,
        )

    def lines(self, name: str) -> dict[str, Any]:
        path = self.database.folder.file(name)
        told = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        assert len({one["custom_id"] for one in told}) == len(told)
        return {one["custom_id"]: one for one in told}

    async def file(self, file_id: str | None) -> FileRecord | None:
        assert file_id is not None
        return await self.database.run(lambda stored: stored.files.get(file_id, "me", 0))


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path / "data")
    await world.start()
    yield world
    world.database.close()


EVERYTHING = {f"q{i}" for i in range(20)}


async def test_all_lines_are_asked_once_as_many_at_a_time_as_there_are_slots(world: World) -> None:
    await (await world.run()).run()
    batch = await world.batch()
    assert (batch.status, batch.total, batch.completed, batch.failed) == ("completed", 20, 20, 0)
    assert world.asked == Counter(range(20)) and world.most == SLOTS
    output = world.lines("file-output")
    assert output.keys() == EVERYTHING and world.lines("file-error") == {}
    seeds = {one["response"]["body"]["asked"]["seed"] for one in output.values()}
    assert len(seeds) == 20 and {one["response"]["request_id"] for one in output.values()} == {"r"}
    assert (batch.output_file_id, batch.error_file_id) == ("file-output", None)
    file = await world.file(batch.output_file_id)
    assert file is not None and file.nbytes == world.database.folder.file("file-output").stat().st_size
    assert not world.database.folder.file("file-error").exists()


async def test_a_route_without_seeds_is_asked_as_it_was_written(tmp_path: Path) -> None:
    world = World(tmp_path, count=1, seeded=False)
    await world.start()
    await (await world.run()).run()
    assert world.lines("file-output")["q0"]["response"]["body"] == {"asked": {"number": 0}}
    world.database.close()


class Slot(asyncio.Semaphore):
    """One slot. `wanted`: how often."""

    wanted = 0

    async def acquire(self) -> Literal[True]:
        self.wanted += 1
        return await super().acquire()


async def test_two_batches_take_turns(tmp_path: Path) -> None:
    slot, order = Slot(1), list[str]()
    worlds = {name: World(tmp_path / name) for name in ("a", "b")}
    for name, world in worlds.items():

        async def answer(number: int, body: bytes, name: str = name) -> Reply:
            await until(lambda: slot.wanted > 2)  # both are there
            order.append(name)
            return good(body)

        world.slots, world.answer = slot, answer
        await world.start()
    await asyncio.gather(*[(await world.run()).run() for world in worlds.values()])
    for world in worlds.values():
        world.database.close()
    shared = "".join(order)[1:]
    left = min(shared.count("a"), shared.count("b"))  # until one of them is through
    assert len(order) == 40 and left
    assert shared[: 2 * left - 1] in (("ab" * left)[:-1], ("ba" * left)[:-1])


async def _stopped_in_the_middle(world: World, at: int) -> None:
    """The server ends when the line `at` is asked, which never is answered."""
    reached = asyncio.Event()

    async def answer(number: int, body: bytes) -> Reply:
        if number >= at:
            reached.set()
            await asyncio.Event().wait()
        return good(body)

    world.answer = answer
    task = asyncio.create_task((await world.run()).run())
    await reached.wait()
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert world.running == 0
    world.answer = world.at_once


async def test_a_restart_asks_only_what_has_no_result_and_as_before(world: World) -> None:
    bodies: dict[int, set[bytes]] = {i: set() for i in range(20)}
    ask = world.ask

    async def noted(path: str, body: bytes) -> Reply:
        bodies[json.loads(body)["number"]].add(body)
        return await ask(path, body)

    world.ask = noted  # type: ignore[method-assign]
    await _stopped_in_the_middle(world, 7)
    kept = world.lines("file-output")
    assert kept.keys() == {f"q{i}" for i in range(7)}
    with world.database.folder.file("file-output").open("ab") as file:
        file.write(b'{"id":"batch_req_x","custom_id":"q7","respo')  # a crash in the middle of a line
    await (await world.run()).run()
    output = world.lines("file-output")
    assert output.keys() == EVERYTHING and {name: output[name] for name in kept} == kept
    assert all(world.asked[i] == 1 for i in range(7))
    assert all(len(asked) == 1 for asked in bodies.values())  # the same seed, whenever it is asked
    assert (await world.batch()).completed == 20


async def test_a_batch_that_was_finalizing_is_finished(world: World) -> None:
    await _stopped_in_the_middle(world, 19)
    await world.database.run(lambda stored: stored.batches.change("batch_1", {"status": "finalizing"}))
    await (await world.run()).run()
    assert (await world.batch()).status == "completed" and world.lines("file-output").keys() == EVERYTHING


async def test_cancelled_it_tells_what_was_not_answered(world: World) -> None:
    await _stopped_in_the_middle(world, 7)
    values = {"status": "cancelling", "cancelling_at": 1}
    await world.database.run(lambda stored: stored.batches.change("batch_1", values))
    await (await world.run()).run()
    batch, left = await world.batch(), world.lines("file-error")
    assert (batch.status, batch.completed, batch.failed) == ("cancelled", 7, 13)
    assert world.lines("file-output").keys() | left.keys() == EVERYTHING
    assert {one["error"]["code"] for one in left.values()} == {"batch_cancelled"}
    assert all(one["response"] is None for one in left.values())


async def test_cancelled_before_it_began_it_has_no_files(world: World) -> None:
    await world.database.run(lambda stored: stored.batches.change("batch_1", {"status": "cancelling"}))
    await (await world.run()).run()
    batch = await world.batch()
    assert (batch.status, batch.output_file_id, batch.error_file_id) == ("cancelled", None, None)
    assert not world.asked


async def test_its_time_ends_while_it_runs(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(number: int, body: bytes) -> Reply:
        if number >= 3:
            await asyncio.Event().wait()
        return good(body)

    world.answer = answer
    run = await world.run()
    task = asyncio.create_task(run.run())
    await until(lambda: len(world.lines("file-output")) == 3)
    now = time.time()
    monkeypatch.setattr("octavo.server.batch_run.time.time", lambda: now + 2000)
    await task
    batch = await world.batch()
    assert (batch.status, batch.completed, batch.failed) == ("expired", 3, 17)
    assert {one["error"]["code"] for one in world.lines("file-error").values()} == {"batch_expired"}


async def test_what_passes_is_asked_again(world: World) -> None:
    async def answer(number: int, body: bytes) -> Reply:
        if world.asked[number] < 3:
            return Reply(503, {"retry-after": "0"}, b'{"error":{}}')
        return good(body)

    world.answer = answer
    await (await world.run()).run()
    assert (await world.batch()).completed == 20 and set(world.asked.values()) == {3}


async def test_a_line_that_must_wait_keeps_no_other_batch_waiting(world: World) -> None:
    """Its key has used up what it may: it waits without a slot, and few of its like are begun meanwhile."""
    waiting, go_on = set[int](), asyncio.Event()

    async def answer(number: int, body: bytes) -> Reply:
        if go_on.is_set():
            return good(body)
        waiting.add(number)
        return Reply(429, {"retry-after": "0.01"}, b"{}")

    world.answer = answer
    task = asyncio.create_task((await world.run()).run())
    await until(lambda: len(waiting) == SLOTS and min(world.asked[n] for n in waiting) > 2)
    for _ in range(3 * SLOTS):  # another batch's lines
        async with world.slots:
            await asyncio.sleep(0)
    assert len(waiting) == SLOTS
    go_on.set()
    await task
    assert (await world.batch()).completed == 20
    assert world.slots._value == SLOTS


async def test_other_refusals_are_results(world: World) -> None:
    async def answer(number: int, body: bytes) -> Reply:
        return Reply(500 if number else 400, {}, b'{"error":{}}')

    world.answer = answer
    await (await world.run()).run()
    batch = await world.batch()
    assert (batch.status, batch.completed, batch.failed) == ("completed", 0, 20)
    assert batch.output_file_id is None and batch.error_file_id == "file-error"


async def test_what_ran_when_the_engine_died_for_good_is_told_and_the_rest_waits(world: World) -> None:
    async def answer(number: int, body: bytes) -> Reply:
        if number < 5:
            return good(body)
        await asyncio.sleep(0.02)  # until the others run too
        world.dead = True
        return Reply(503, {"retry-after": "0"}, b'{"error":{"code":"engine_died"}}')

    world.answer = answer
    with pytest.raises(EngineGone):
        await (await world.run()).run()
    assert 1 <= len(world.lines("file-error")) <= SLOTS
    world.dead, world.answer = False, world.at_once
    await (await world.run()).run()
    assert world.lines("file-output").keys() | world.lines("file-error").keys() == EVERYTHING
    assert (await world.batch()).status == "completed"


async def test_a_disk_that_refuses_stops_it_until_the_next_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, left = LineFile.append, [3]

    def refuses(file: LineFile, lines: list[bytes]) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise ServerError("full")
        append(file, lines)

    monkeypatch.setattr(LineFile, "append", refuses)
    with pytest.raises(ServerError, match="full"):
        await (await world.run()).run()
    assert world.running == 0 and world.slots._value == SLOTS
    assert (await world.batch()).status == "in_progress"
    monkeypatch.setattr(LineFile, "append", append)
    await (await world.run()).run()
    assert world.lines("file-output").keys() == EVERYTHING


async def test_an_input_that_is_gone_fails_the_batch(world: World) -> None:
    world.database.folder.file("file-input").unlink()
    await (await world.run()).run()
    batch = await world.batch()
    assert batch.status == "failed" and batch.errors is not None and "input_file_gone" in batch.errors


async def test_what_others_cancel_is_seen_while_lines_run(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.server.batch_run.TICK_S", 0.01)

    async def answer(number: int, body: bytes) -> Reply:
        await asyncio.Event().wait()
        raise AssertionError

    world.answer = answer
    task = asyncio.create_task((await world.run()).run())
    await until(lambda: world.running > 0)
    await world.database.run(lambda stored: stored.batches.change("batch_1", {"status": "cancelling"}))
    await task
    assert (await world.batch()).status == "cancelled" and world.running == 0


async def test_an_end_waits_for_the_thread_that_reads(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file would else be closed under it."""
    reading, go_on = threading.Event(), threading.Event()
    some = batch_run._some

    def slow(lines: Any) -> Any:
        reading.set()
        assert go_on.wait(10)
        return some(lines)

    monkeypatch.setattr(batch_run, "_some", slow)
    task = asyncio.create_task((await world.run()).run())
    await until(reading.is_set)
    task.cancel()
    await asyncio.sleep(0.02)
    assert not task.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not world.asked
