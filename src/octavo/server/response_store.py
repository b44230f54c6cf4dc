"""Stored responses: the newest in memory, all in the database. Knows records, not what is in them, and no route.

A response is written when it has ended, and nobody waits for that: whoever asks for it meanwhile gets it from memory.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable

import msgspec
import orjson

from octavo.errors import ServerError
from octavo.server.replies import kept_json
from octavo.storage.database import Database
from octavo.storage.records import ResponseRecord
from octavo.storage.runners import Runners

__all__ = ["ResponseStore"]

_logger = logging.getLogger(__name__)

RECENT_BYTES = 32 << 20
"""Of responses in memory that the database has too."""
_TIDY_EVERY = 64
"""Writes between two looks at what is too old or too much; the first write looks too."""
_UNFINISHED = ("queued", "in_progress")


class ResponseStore:
    """Everything runs on the event loop; the database has its own thread."""

    def __init__(self, database: Database, running: Callable[[str], bool]) -> None:
        """`running`: whether this process makes the response with that id."""
        self._database = database
        self._running = running
        self._runners = Runners(database.folder.root)
        self._recent: OrderedDict[str, ResponseRecord] = OrderedDict()
        self._recent_bytes = 0
        self._writing: dict[str, asyncio.Task[None]] = {}
        self._writes = 0

    async def get(self, response_id: str, owner: str | None) -> ResponseRecord | None:
        """None where there is none, or one that is not `owner`'s (None: everybody's). One that another server process
        left unfinished when it ended has failed. Raises ServerError."""
        record = self._recent.get(response_id)
        if record is None:
            if not self._database.used:
                return None
            record = await self._database.run(
                lambda stored: stored.responses.get(response_id, owner, time.time())
            )
        if record is None or owner not in (None, record.owner):
            return None
        if record.status in _UNFINISHED and not await self._is_made(record):
            record = _failed(record)
            await self.write(record)
        return record

    async def add_unfinished(self, record: ResponseRecord) -> None:
        """Store one that is made from now on, by this process. Raises ServerError."""
        await asyncio.to_thread(self._runners.enter)
        await self.write(msgspec.structs.replace(record, runner=self._runners.name))

    def keep(self, record: ResponseRecord) -> None:
        """Store one that has ended; it can be had at once. Where the disk refuses, this is logged, and it is kept in
        memory alone, and says that it is not stored."""
        self._remember(record)
        earlier = self._writing.get(record.id)
        self._writing[record.id] = asyncio.create_task(self._write_behind(record, earlier))

    async def write(self, record: ResponseRecord) -> None:
        """Store it now. Raises ServerError."""
        tidy = self._writes % _TIDY_EVERY == 0
        self._writes += 1

        def work(stored: object) -> None:
            from octavo.storage.stored import Stored

            assert isinstance(stored, Stored)
            stored.responses.put(record)
            if tidy:
                stored.responses.tidy(record.owner, time.time())

        await self._database.run(work)

    async def remove(self, response_id: str) -> None:
        """Forget it. Raises ServerError."""
        while (writing := self._writing.get(response_id)) is not None:
            await asyncio.wait([writing])
        if (record := self._recent.pop(response_id, None)) is not None:
            self._recent_bytes -= record.nbytes
        await self._database.run(lambda stored: stored.responses.remove(response_id, None))

    async def settle(self) -> None:
        """Wait until all is written; this process makes none any more."""
        while self._writing:
            await asyncio.wait(list(self._writing.values()))
        self._runners.leave()

    async def _is_made(self, record: ResponseRecord) -> bool:
        """Somebody works at it."""
        if record.runner in (None, self._runners.name):
            return self._running(record.id)
        assert record.runner is not None
        return await asyncio.to_thread(self._runners.alive, record.runner)

    async def _write_behind(self, record: ResponseRecord, earlier: asyncio.Task[None] | None) -> None:
        if earlier is not None:
            await asyncio.wait([earlier])
        try:
            await self.write(record)
        except Exception as error:  # noqa: BLE001
            # Also what nobody expected: the answer is out, and a server that can store nothing still answers.
            why = str(error) if isinstance(error, ServerError) else type(error).__name__
            _logger.error("the response %s is not stored: %s", record.id, why)
            body = orjson.loads(record.body) | {"store": False}
            if record.id in self._recent:
                self._remember(msgspec.structs.replace(record, body=kept_json(body)))
        finally:
            if self._writing.get(record.id) is asyncio.current_task():
                del self._writing[record.id]
            self._evict()

    def _remember(self, record: ResponseRecord) -> None:
        if (known := self._recent.pop(record.id, None)) is not None:
            self._recent_bytes -= known.nbytes
        self._recent[record.id] = record
        self._recent_bytes += record.nbytes

    def _evict(self) -> None:
        for response_id in list(self._recent):
            if self._recent_bytes <= RECENT_BYTES:
                return
            if response_id not in self._writing:
                self._recent_bytes -= self._recent.pop(response_id).nbytes


def _failed(record: ResponseRecord) -> ResponseRecord:
    """An unfinished one whose server has gone."""
    body = orjson.loads(record.body)
    message = "The server ended before this response did; send the request again."
    body |= {"status": "failed", "error": {"code": "server_error", "message": message}}
    return msgspec.structs.replace(record, status="failed", body=kept_json(body), runner=None)
