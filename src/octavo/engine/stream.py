"""The reader's end of one or more requests. Knows outputs and waiting, nothing of processes or sockets.

What a slow reader has not taken is merged per sequence: memory follows the tokens, never the steps. Where there is a
bound, a reader who leaves more lying loses its requests. To let them pause instead would keep their blocks from others
for as long as such a reader likes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable

import msgspec

from octavo.backends.base import TokenSample
from octavo.scheduling.outputs import SequenceOutput

__all__ = ["Stream"]

_SAMPLE_BYTES = 112
"""A token in memory; an alternative of it with its log-probability takes as much."""


class _Pending:
    """Outputs of one sequence, merged in amortised constant time each."""

    __slots__ = ("_first", "_last", "_samples")

    def __init__(self, output: SequenceOutput) -> None:
        self._first = self._last = output
        self._samples: list[TokenSample] = []

    def add(self, output: SequenceOutput) -> None:
        if self._last is self._first:
            self._samples.extend(self._first.samples)
        self._samples.extend(output.samples)
        self._last = output

    def take(self) -> SequenceOutput:
        if self._last is self._first:
            return self._first
        return msgspec.structs.replace(
            self._last,
            samples=tuple(self._samples),
            prompt_samples=self._first.prompt_samples or self._last.prompt_samples,
            cached_tokens=max(self._first.cached_tokens, self._last.cached_tokens),
        )


class Stream(AsyncIterator[SequenceOutput]):
    """Yields outputs until every sequence of `request_ids` has finished. For one reader.

    Closing it, or cancelling the reader while it waits, aborts what still runs; `async with aclosing(stream)`
    makes that certain.
    """

    def __init__(self, request_ids: Iterable[str], sequences: int, abort: Callable[[str], None]) -> None:
        self._request_ids = tuple(request_ids)
        self._unfinished = sequences
        self._abort = abort
        self._abandoned = False
        self._pending: dict[tuple[str, int], _Pending] = {}
        self._waiter: asyncio.Future[None] | None = None
        self._most_bytes: int | None = None
        self._on_full: Callable[[], None] = _nothing
        self._late_bytes = 0

    def bound(self, nbytes: int, on_full: Callable[[], None]) -> None:
        """Let about `nbytes` of tokens come while the reader is busy with others; when there are more, close it and
        call `on_full`. A prompt's scores do not count: they come once, and the request says how many they are."""
        self._most_bytes = nbytes
        self._on_full = on_full

    @property
    def pending(self) -> bool:
        """True: the next output is here, `__anext__` will not wait."""
        return bool(self._pending)

    @property
    def abandoned(self) -> bool:
        """It was closed before its end."""
        return self._abandoned

    def put(self, output: SequenceOutput) -> None:
        """Hand `output` to the reader. Never blocks."""
        if self._most_bytes is not None and self._waiter is None and not self._fits(output):
            return
        key = (output.request_id, output.child)
        waiting = self._pending.get(key)
        if waiting is None:
            self._pending[key] = _Pending(output)
        else:
            waiting.add(output)
        if output.finish_reason is not None:
            self._unfinished -= 1
        self._wake()

    async def __anext__(self) -> SequenceOutput:
        while not self._pending:
            if self._unfinished == 0:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            except asyncio.CancelledError:
                self._close()
                raise
            finally:
                self._waiter = None
        taken = self._pending.pop(next(iter(self._pending))).take()
        if not self._pending:
            self._late_bytes = 0
        return taken

    async def aclose(self) -> None:
        """Abort what still runs; a reader that waits meets the end. Calling it twice, or at the end, is harmless."""
        self._close()

    def _fits(self, output: SequenceOutput) -> bool:
        """It may wait for the reader. Where it may not, the stream is closed."""
        assert self._most_bytes is not None
        if self._late_bytes > self._most_bytes:
            self._close()
            self._on_full()
            return False
        self._late_bytes += _SAMPLE_BYTES * sum(1 + len(sample.top) for sample in output.samples)
        return True

    def _close(self) -> None:
        if self._unfinished:
            self._unfinished = 0
            self._abandoned = True
            self._pending.clear()
            for request_id in self._request_ids:
                self._abort(request_id)
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _nothing() -> None:
    pass
