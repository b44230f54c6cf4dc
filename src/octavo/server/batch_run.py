"""One batch from its file to its results, line by line, resumed where it was. Knows no other batch (see batch_runner).

A line's result is appended to the output or error file and forced to the disk, several at a time when they come fast;
only then is the next line begun. So what is in memory is bounded by the lines in flight, and after any crash the two
files say which lines are done: the others run (again), with the same seeds, and answer the same.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

import msgspec

from octavo.protocol.batch_lines import (
    MAX_LINE_BYTES,
    InputCheck,
    RequestLine,
    add_usage,
    answered,
    read_line,
    unanswered,
    with_seed,
)
from octavo.protocol.batches import BatchError, BatchUsage
from octavo.protocol.files import BATCH_OUTPUT
from octavo.server.batch_results import BatchResults
from octavo.server.in_process import Reply
from octavo.storage.database import Database
from octavo.storage.lines import lines_of
from octavo.storage.records import OPEN, BatchRecord, BatchStatus, FileRecord

if TYPE_CHECKING:
    from octavo.storage.stored import Stored

__all__ = ["BatchRun", "EngineGone"]

P = ParamSpec("P")
T = TypeVar("T")

TICK_S = 1.0
"""How often the counts are stored, and how late a cancellation at another server is seen."""
LONGEST_WAIT_S = 60.0
"""Until a line that found no room is asked again."""
READ_BYTES = 1 << 20
READ_LINES = 64
"""What of the input is in memory before it runs, beside the lines in flight."""
_RATE, _UNAVAILABLE = 429, 503
_PASSES = (_RATE, _UNAVAILABLE)
"""What is refused with these is taken later."""

_AT_ONCE = 1000
"""Lines that were not answered, in one write."""
_INPUT_GONE = BatchError(
    code="input_file_gone", line=None, message="The input file is not there any more.", param="input_file_id"
)

End = Literal["completed", "cancelled", "expired"]
_UNANSWERED: dict[End, tuple[str, str]] = {
    "cancelled": ("batch_cancelled", "The batch was cancelled before this request was answered."),
    "expired": (
        "batch_expired",
        "This request could not be answered before the batch's completion window ended.",
    ),
}


class EngineGone(Exception):
    """Nothing can be answered until the server is started again."""


class _Slot:
    """A line's place among those in flight, which it may leave and take again."""

    def __init__(self, slots: asyncio.Semaphore) -> None:
        self._slots = slots
        self._held = False

    async def take(self) -> None:
        if not self._held:
            await self._slots.acquire()
            self._held = True

    def leave(self) -> None:
        if self._held:
            self._held = False
            self._slots.release()


class BatchRun:
    """One open batch. `ask` answers a line's body (see in_process), `slots` bounds the lines of all batches in flight,
    `most` the lines of this one that are begun; `dead` says that the engine is gone for good. `seeded`: the lines may
    name a seed. `told` is called for each result that is on the disk: has it failed?"""

    def __init__(
        self,
        batch: BatchRecord,
        database: Database,
        ask: Callable[[str, bytes], Awaitable[Reply]],
        slots: asyncio.Semaphore,
        dead: Callable[[], bool],
        *,
        most: int,
        seeded: bool,
        told: Callable[[bool], None] = lambda failed: None,
    ) -> None:
        self.batch = batch
        self.cancelled = asyncio.Event()
        """Set it to end the batch early."""
        self._database = database
        self._ask = ask
        self._slots = slots
        self._most = most
        self._waiting = 0
        self._dead = dead
        self._seeded = seeded
        self._told = told
        self._input = database.folder.file(batch.input_file_id)

    async def run(self) -> None:
        """To the batch's end, whatever it is. Cancelled, it stops where it is. Raises ServerError for what the disk
        refuses and EngineGone; then it can be run again."""
        if not await asyncio.to_thread(self._input.is_file):
            return await self._fail([_INPUT_GONE])
        if self.batch.status == "validating" and not await self._validated():
            return None
        folder = self._database.folder
        results = await _in_thread(
            BatchResults, folder.file(self.batch.output_name), folder.file(self.batch.error_name)
        )
        try:
            end = await self._lines_run(results)
            await results.settle()
            if end == "completed":
                await self._store(results, status="finalizing")
            elif self.batch.in_progress_at is not None:  # else nobody has looked at the lines
                await self._give_up(results, end)
        finally:
            await results.close()
        return await self._finish(results, end)

    def _asked_to_end(self) -> bool:
        """A client has cancelled it, here or at another server of this folder."""
        return self.cancelled.is_set() or self.batch.status == "cancelling"

    async def _validated(self) -> bool:
        """Look at every line before the first runs. False: the batch has failed."""
        check = await asyncio.to_thread(_checked, self._input, self.batch.endpoint)
        if errors := check.finish():
            await self._fail(errors)
        else:
            values = {"status": "in_progress", "in_progress_at": int(time.time()), "total": check.total}
            await self._change(values, of=("validating",))
        return self.batch.status != "failed"

    async def _fail(self, errors: list[BatchError]) -> None:
        text = msgspec.json.encode(errors).decode()
        await self._change({"status": "failed", "failed_at": int(time.time()), "errors": text})

    async def _lines_run(self, results: BatchResults) -> End:
        """Run what has no result, until all have one, or the batch is cancelled, or its time is over."""
        if self._asked_to_end():
            return "cancelled"
        if time.time() >= self.batch.expires_at:
            return "expired"
        pump = asyncio.create_task(self._pump(results))
        cancelled = asyncio.create_task(self.cancelled.wait())
        try:
            while True:
                left_s = self.batch.expires_at - time.time()
                waited = min(TICK_S, max(left_s, 0.0))
                await asyncio.wait([pump, cancelled], timeout=waited, return_when=asyncio.FIRST_COMPLETED)
                if cancelled.done():
                    return "cancelled"
                if pump.done():
                    pump.result()
                    return "completed"
                if left_s <= 0:
                    return "expired"
                await self._store(results)
                if self._asked_to_end():
                    self.cancelled.set()
        finally:
            cancelled.cancel()
            pump.cancel()
            await asyncio.wait([pump, cancelled])
            if not pump.cancelled():
                pump.exception()  # it is told where the pump is what ended this

    async def _pump(self, results: BatchResults) -> None:
        """Begin lines as slots fall free, and wait for all. The first error ends the others."""
        begun = asyncio.Semaphore(self._most)

        def ended(slot: _Slot) -> Callable[[object], None]:
            def release(_: object) -> None:
                slot.leave()
                begun.release()

            return release

        try:
            async with asyncio.TaskGroup() as group, aclosing(self._left(results.done)) as lines:
                async for number, line in lines:
                    await begun.acquire()
                    slot = _Slot(self._slots)
                    await slot.take()  # whoever waits longest gets the next one: batches take turns
                    task = group.create_task(self._line(results, number, line, slot))
                    task.add_done_callback(ended(slot))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _line(self, results: BatchResults, number: int, line: RequestLine, slot: _Slot) -> None:
        body = bytes(line.body)
        if self._seeded:
            body = with_seed(body, self.batch.seed, number)
        while True:
            if self._dead():
                raise EngineGone
            reply = await self._ask(line.url, body)
            # A line that finds no room is asked again; but one that ran while the engine died for good is told as
            # failed: it may be what the engine died of, and would be again after every start.
            if reply.status not in _PASSES or self._dead():
                break
            slot.leave()  # what one key has used up keeps no other key's batch waiting
            wait_s = float(reply.headers.get("retry-after", "1"))
            self._waiting += 1
            try:
                # Of many that wait for one key's minute, the next one fits when so much more has come back.
                turn = self._waiting if reply.status == _RATE else 1
                await asyncio.sleep(min(wait_s * turn, LONGEST_WAIT_S))
            finally:
                self._waiting -= 1
            await slot.take()
        result = answered(line.custom_id, reply.status, reply.body, reply.headers.get("x-request-id"))
        failed = not 200 <= reply.status < 300
        await results.add(line.custom_id, result, failed=failed)
        self._told(failed)

    async def _left(self, done: set[str]) -> AsyncGenerator[tuple[int, RequestLine]]:
        """The lines that have no result."""
        with closing(lines_of(self._input, MAX_LINE_BYTES)) as lines:
            while some := await _in_thread(_some, lines):
                for number, text in some:
                    line = read_line(text)
                    if line.custom_id not in done:
                        yield number, line

    async def _give_up(self, results: BatchResults, end: End) -> None:
        """Say of each line that is left that it was not answered."""
        code, message = _UNANSWERED[end]
        some: list[bytes] = []
        async with aclosing(self._left(results.done)) as lines:
            async for _, line in lines:
                some.append(unanswered(line.custom_id, code, message))
                if len(some) == _AT_ONCE:
                    await _in_thread(results.errors.append, some)
                    some = []
        await _in_thread(results.errors.append, some)

    async def _finish(self, results: BatchResults, end: End) -> None:
        """The results become files, and the batch ends, in one transaction."""
        batch, now = self.batch, int(time.time())
        files = {
            column: FileRecord(
                id=file.path.name,
                owner=batch.owner,
                filename=f"{batch.id}_{kind}.jsonl",
                purpose=BATCH_OUTPUT,
                nbytes=file.nbytes,
                created_at=now,
                expires_at=None if batch.output_expires_s is None else now + batch.output_expires_s,
            )
            for column, kind, file in (
                ("output_file_id", "output", results.output),
                ("error_file_id", "error", results.errors),
            )
        }
        filled = {column: record for column, record in files.items() if record.nbytes}
        usage = await asyncio.to_thread(_used, results.output.path)
        values = {
            "status": end,
            f"{end}_at": now,
            "usage": msgspec.json.encode(usage).decode(),
            "completed": results.output.count,
            "failed": results.errors.count,
            **{column: record.id for column, record in filled.items()},
        }

        def ended(stored: Stored) -> None:
            for record in filled.values():
                stored.files.add(record)
            stored.batches.change(batch.id, values)

        await self._database.run(ended)
        for record in files.values():
            if not record.nbytes:
                with suppress(OSError):
                    self._database.folder.file(record.id).unlink(missing_ok=True)

    async def _store(self, results: BatchResults, status: Literal["finalizing"] | None = None) -> None:
        """Tell the database how far it is, when that is news, and learn from it what others have done."""
        values: dict[str, Any] = {}
        counts = {"completed": results.output.count, "failed": results.errors.count}
        if any(getattr(self.batch, name) != value for name, value in counts.items()):
            values.update(counts)
        if status is not None:
            values |= {"status": status, "finalizing_at": int(time.time())}
        await self._change(values)

    async def _change(self, values: Mapping[str, Any], of: Sequence[BatchStatus] = OPEN) -> None:
        """New values where the status is one of `of`; and the batch as it is then."""
        batch_id = self.batch.id

        def changed(stored: Stored) -> BatchRecord | None:
            return stored.batches.change(batch_id, values, of) if values else stored.batches.get(batch_id)

        batch = await self._database.run(changed)
        if batch is not None:
            self.batch = batch


async def _in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """`asyncio.to_thread`, but who is cancelled waits for the thread: it uses a file that is closed next."""
    thread = asyncio.create_task(asyncio.to_thread(work, *args, **kwargs))
    try:
        return await asyncio.shield(thread)
    except asyncio.CancelledError:
        await asyncio.wait([thread])
        if not thread.cancelled():
            thread.exception()
        raise


def _checked(path: Path, endpoint: str) -> InputCheck:
    check = InputCheck(endpoint)
    for number, text in lines_of(path, MAX_LINE_BYTES):
        check.look(number, text)
        if check.over:
            break
    return check


def _used(path: Path) -> BatchUsage:
    usage = BatchUsage()
    for _, text in lines_of(path, sys.maxsize - 1):
        add_usage(usage, text)
    return usage


def _some(lines: Iterator[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """The next lines; none at the end."""
    some, nbytes = [], 0
    for number, text in itertools.islice(lines, READ_LINES):
        some.append((number, text))
        nbytes += len(text)
        if nbytes >= READ_BYTES:
            break
    return some
