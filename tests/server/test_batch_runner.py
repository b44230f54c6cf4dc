"""All batches of a folder: a start with nothing to do, a batch that cannot be answered here, a disk that comes back."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.types import Receive, Scope, Send

from octavo.errors import ServerError
from octavo.server import batch_runner
from octavo.server.batch_run import BatchRun
from octavo.server.batch_runner import BatchRunner
from octavo.server.keys import TENANT
from octavo.server.serving import Serving
from octavo.storage.database import Database
from octavo.storage.folder import DataFolder
from octavo.storage.records import BatchRecord
from octavo.telemetry.metrics import Metrics

PATH = "/v1/completions"


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - it is on the disk, or in the log
        await asyncio.sleep(0.01)


class World:
    """A data folder, and an app that answers who asked."""

    def __init__(self, folder: Path) -> None:
        self.database = Database(DataFolder(folder))
        self.asked: list[str] = []
        client = SimpleNamespace(info=SimpleNamespace(capacity=SimpleNamespace(max_running=2)), dead=False)
        self.metrics = Metrics("m")
        self.serving = cast(Serving, SimpleNamespace(client=client, model_name="m", metrics=self.metrics))

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asked.append(scope.get(TENANT, ""))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    def runner(self, owners: dict[str, dict[str, Any]] | None = None) -> BatchRunner:
        found = {"": {}} if owners is None else owners
        return BatchRunner(self.app, self.serving, self.database, found, frozenset({PATH}))

    def batch(self, name: str = "batch_1", **fields: Any) -> BatchRecord:
        """A new one of two lines."""
        self.database.folder.make()
        line = {"method": "POST", "url": PATH, "body": {}}
        data = "\n".join(json.dumps({"custom_id": str(i), **line}) for i in range(2))
        self.database.folder.file(f"{name}-in").write_text(data)
        given: dict[str, Any] = {
            "id": name,
            "owner": "",
            "model": "m",
            "endpoint": PATH,
            "input_file_id": f"{name}-in",
            "completion_window": "24h",
            "created_at": 1,
            "expires_at": int(time.time()) + 1000,
            "seed": 1,
            "output_name": f"{name}-out",
            "error_name": f"{name}-err",
            **fields,
        }
        return BatchRecord(**given)

    async def until(self, batch_id: str, status: str) -> BatchRecord:
        while True:
            batch = await self.database.run(lambda stored: stored.batches.get(batch_id))
            if batch is not None and batch.status == status and not self.open():
                return batch
            await asyncio.sleep(0.01)

    def open(self) -> list[str]:
        return self.database.folder.open_batches()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path / "data")
    yield world
    world.database.close()


async def test_a_start_with_nothing_to_do_touches_nothing(world: World) -> None:
    runner = world.runner()
    runner.start()
    await runner.stop()
    assert not world.database.folder.root.exists()


async def test_a_batch_is_noted_run_and_struck_out(world: World) -> None:
    runner = world.runner({"me": {TENANT: "key-7"}})
    assert await runner.add(world.batch(owner="me"))  # the engine is not ready yet
    assert world.open() == ["batch_1"]
    runner.start()
    batch = await world.until("batch_1", "completed")
    assert (batch.total, batch.completed) == (2, 2) and world.asked == ["key-7"] * 2
    assert await runner.add(world.batch("batch_2", owner="me"))
    await world.until("batch_2", "completed")
    await runner.stop()
    assert b'octavo_batch_lines_total{model_name="m",result="completed"} 4.0' in world.metrics.text()


async def test_another_server_s_batches_are_left_alone(world: World) -> None:
    first, second = world.runner(), World(world.database.folder.root)
    assert await first.add(world.batch())
    other = second.runner()
    assert not await other.add(world.batch("batch_2"))
    other.start()
    await asyncio.sleep(0.05)
    assert not second.asked and world.open() == ["batch_1"]
    await first.stop()  # and the next one may
    assert await other.add(world.batch("batch_2"))
    for name in ("batch_1", "batch_2"):
        await second.until(name, "completed")
    await other.stop()
    second.database.close()


@pytest.mark.parametrize(
    ("fields", "why"), [({"owner": "gone"}, "API key"), ({"model": "other"}, "the model 'other'")]
)
async def test_what_cannot_be_answered_here_waits(
    world: World, caplog: pytest.LogCaptureFixture, fields: dict[str, str], why: str
) -> None:
    runner = world.runner()
    runner.start()
    batch = world.batch(**fields)
    assert await runner.add(batch)
    await until(lambda: why in caplog.text)
    assert not world.asked
    values = {"status": "cancelling", "cancelling_at": 1}
    await world.database.run(lambda stored: stored.batches.change(batch.id, values))
    runner.cancel(batch)
    await world.until(batch.id, "cancelled")
    late = world.batch(
        "batch_2", expires_at=int(time.time()) - 1, status="in_progress", in_progress_at=1, **fields
    )
    assert await runner.add(late)
    ended = await world.until("batch_2", "expired")
    assert (ended.failed, world.asked) == (2, [])
    await runner.stop()


async def test_a_disk_that_comes_back_is_waited_for(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(batch_runner, "RETRY_S", 0.01)
    run, left = BatchRun.run, [2]

    async def refused(self: BatchRun) -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise ServerError("the disk is full")
        await run(self)

    monkeypatch.setattr(BatchRun, "run", refused)
    runner = world.runner()
    runner.start()
    with caplog.at_level(logging.ERROR):
        assert await runner.add(world.batch())
        await world.until("batch_1", "completed")
    assert caplog.text.count("the disk is full") == 2
    await runner.stop()


async def test_a_note_without_a_batch_is_struck_out(world: World) -> None:
    world.database.folder.make()
    world.database.folder.note_open("batch_0")
    runner = world.runner()
    runner.start()
    await until(lambda: not world.open())
    await runner.stop()
