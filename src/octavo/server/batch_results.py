"""The results of one batch while they grow, on the disk before anybody counts them. Knows no request."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import NamedTuple

import msgspec

from octavo.storage.lines import LineFile

__all__ = ["BatchResults"]


class _Done(msgspec.Struct):
    custom_id: str


class _Result(NamedTuple):
    file: LineFile
    custom_id: str
    line: bytes
    stored: asyncio.Future[None]


class BatchResults:
    """The output and the error file while they grow, and which lines are in them."""

    def __init__(self, output: Path, errors: Path) -> None:
        """Blocks. Raises ServerError."""
        self.done = set[str]()
        self._decoder = msgspec.json.Decoder(_Done)
        self.output = LineFile(output, self._take)
        try:
            self.errors = LineFile(errors, self._take)
        except BaseException:
            self.output.close()
            raise
        self._waiting: list[_Result] = []
        self._writing: asyncio.Task[None] | None = None

    def _take(self, line: bytes) -> bool:
        try:
            custom_id = self._decoder.decode(line).custom_id
        except msgspec.DecodeError:
            return False
        known = custom_id in self.done
        self.done.add(custom_id)
        return not known

    async def add(self, custom_id: str, line: bytes, *, failed: bool) -> None:
        """Wait until it is on the disk. Those that come while others are written go together, with one fsync."""
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Result(self.errors if failed else self.output, custom_id, line, stored))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())
        await stored

    async def settle(self) -> None:
        """Wait for what is being written, though nobody else may wait for it any more."""
        if self._writing is not None:
            await asyncio.wait([self._writing])

    async def close(self) -> None:
        await self.settle()
        self.output.close()
        self.errors.close()

    async def _write(self) -> None:
        try:
            while self._waiting:
                taken, self._waiting = self._waiting, []
                for file in (self.output, self.errors):
                    if mine := [result for result in taken if result.file is file]:
                        await self._append(file, mine)
        finally:
            self._writing = None

    async def _append(self, file: LineFile, results: list[_Result]) -> None:
        failed: Exception | None = None
        try:
            await asyncio.to_thread(file.append, [result.line for result in results])
        except Exception as error:  # noqa: BLE001 - it belongs to those who wait
            failed = error
        else:
            self.done.update(result.custom_id for result in results)
        for result in results:
            if result.stored.done():  # cancelled: nobody waits
                continue
            if failed is None:
                result.stored.set_result(None)
            else:
                result.stored.set_exception(failed)
