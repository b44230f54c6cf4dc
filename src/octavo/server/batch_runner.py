"""All batches of a data folder: which run now, resumed after a start, put down at the end. Knows no line of theirs."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from starlette.types import ASGIApp

from octavo.errors import ServerError
from octavo.server.batch_run import BatchRun, EngineGone
from octavo.server.in_process import Reply, ask
from octavo.server.serving import Serving
from octavo.storage.database import Database
from octavo.storage.folder import storing
from octavo.storage.records import BatchRecord
from octavo.telemetry.logs import PRIVATE

__all__ = ["BatchRunner"]

_logger = logging.getLogger(__name__)

RETRY_S = 30.0
"""After what the disk refused."""
AWAY_S = 10.0
"""How often it is looked whether a batch's key is known again."""


class BatchRunner:
    """Runs batches through `app`, each as who made it. `identities`: by owner, what its requests have in their scope
    (see keys), which may change; `seeded`: the routes whose requests may name a seed. It lives on the event loop."""

    def __init__(
        self,
        app: ASGIApp,
        serving: Serving,
        database: Database,
        identities: Mapping[str, Mapping[str, Any]],
        seeded: frozenset[str],
    ) -> None:
        self._app = app
        self._serving = serving
        self._database = database
        self._identities = identities
        self._seeded = seeded
        self._slots: asyncio.Semaphore | None = None
        self._runs: dict[str, BatchRun] = {}
        self._tasks = set[asyncio.Task[None]]()
        self._stopped = False

    def start(self) -> None:
        """The engine is ready: go on with what an earlier server left. Where there is nothing, it costs nothing."""
        # So many lines fill the engine's slots; more would only wait in its queue.
        self._slots = asyncio.Semaphore(self._serving.client.info.capacity.max_running)
        if self._database.folder.open_batches():
            self._spawn(self._resume())

    async def add(self, batch: BatchRecord) -> bool:
        """Store a new one and run it. False: another server runs the batches of this folder, and it is not stored.
        Raises ServerError."""
        folder = self._database.folder
        if not await asyncio.to_thread(folder.take_batches):
            return False
        with storing(folder.root):
            await asyncio.to_thread(folder.note_open, batch.id)
        try:
            await self._database.run(lambda stored: stored.batches.add(batch))
        except BaseException:
            folder.note_ended(batch.id)
            raise
        if self._slots is not None and not self._stopped:
            self._spawn(self._resume())  # others may be there, of a server that ended
        return True

    def cancel(self, batch: BatchRecord) -> None:
        """Its status is `cancelling`: end it, wherever it is."""
        if batch.id in self._runs:
            self._runs[batch.id].cancelled.set()
        elif self._slots is not None and not self._stopped:
            self._spawn(self._resume())

    async def stop(self) -> None:
        """Abort the lines in flight; they run again after the next start."""
        self._stopped = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._database.folder.leave_batches()

    async def _resume(self) -> None:
        """Run every open batch that does not run yet, if this server is the one to do it."""
        folder = self._database.folder
        batches: list[BatchRecord] | None = None
        noted: list[str] = []
        while batches is None:
            try:
                noted = folder.open_batches()
                if not await asyncio.to_thread(folder.take_batches):
                    _logger.warning("another server runs the batches in %s", folder.root)
                    return
                batches = await self._database.run(lambda stored: stored.batches.open())
            except ServerError as error:
                _logger.error("open batches cannot be resumed for %g s: %s", RETRY_S, error)
                await asyncio.sleep(RETRY_S)
        for batch in batches:
            if batch.id not in self._runs:
                self._run(batch)
        with suppress(OSError):
            for batch_id in set(noted) - {batch.id for batch in batches}:
                folder.note_ended(batch_id)

    def _run(self, batch: BatchRecord) -> None:
        assert self._slots is not None
        run = BatchRun(
            batch,
            self._database,
            functools.partial(self._ask, batch.owner),
            self._slots,
            lambda: self._serving.client.dead,
            most=self._serving.client.info.capacity.max_running,
            seeded=batch.endpoint in self._seeded,
            told=lambda failed: self._serving.metrics.on_batch_line(failed=failed),
        )
        self._runs[batch.id] = run
        self._spawn(self._drive(run))

    async def _drive(self, run: BatchRun) -> None:
        """One batch to its end."""
        batch_id = run.batch.id
        try:
            if why := self._hindrance(run.batch):
                _logger.warning("batch %s waits: %s", batch_id, why)
                with suppress(TimeoutError):
                    await asyncio.wait_for(run.cancelled.wait(), max(run.batch.expires_at - time.time(), 0.0))
            while True:
                try:
                    await run.run()
                    break
                except ServerError as error:
                    _logger.error("batch %s stands still for %g s: %s", batch_id, RETRY_S, error)
                    if run.cancelled.is_set():  # it cannot end without the disk either
                        await asyncio.sleep(RETRY_S)
                    else:
                        with suppress(TimeoutError):
                            await asyncio.wait_for(run.cancelled.wait(), RETRY_S)
            await asyncio.to_thread(self._database.folder.note_ended, batch_id)
        except EngineGone:
            _logger.error("batch %s goes on when the server is started again: its engine is gone", batch_id)
        except Exception:
            _logger.exception("batch %s stops until the server is started again", batch_id, extra=PRIVATE)
        finally:
            del self._runs[batch_id]

    def _hindrance(self, batch: BatchRecord) -> str | None:
        """Why a batch cannot be answered here; None: it can."""
        if batch.owner not in self._identities:
            return "the API key that it was made with is none of this server's"
        if batch.model != self._serving.model_name:
            return (
                f"it was made for the model {batch.model!r}, and this server has {self._serving.model_name!r}"
            )
        return None

    async def _ask(self, owner: str, path: str, body: bytes) -> Reply:
        identity = self._identities.get(owner)
        if identity is None:  # the key was taken away; its lines wait until it comes back
            return Reply(503, {"retry-after": str(AWAY_S)}, b"")
        return await ask(self._app, path, body, identity=identity, profile="batch")

    def _spawn(self, coroutine: Any) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
