"""Whether grammars of requests can be used, found out in processes of their own. Serves nothing and knows no HTTP."""

from __future__ import annotations

import asyncio
import queue
import select
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import msgspec

from octavo.errors import InvalidParameter, Overloaded, ServerError
from octavo.sampling.check import CPU_S, MEMORY_BYTES, Tokens, Verdict, framed, read_frame
from octavo.sampling.grammar import Grammar
from octavo.text.vocabulary import Vocabulary

__all__ = ["Grammars"]

KEPT = 256
"""Verdicts that are kept, and the bytes of the grammars they are about."""
KEPT_BYTES = 4 << 20
CHECKERS = 2
"""A large grammar does not hold up a small one."""
MAX_WAITING = 256
"""Different grammars that may wait; most take a millisecond."""
WALL_S = 60.0
"""For one grammar on a machine with much to do. Whether it is too large is a matter of processor time, not of this."""
START_S = 120.0
TOO_LARGE = (
    f"It is too deep or too large to be compiled: one may take {CPU_S} s and {MEMORY_BYTES >> 20} MiB; "
    "ask for less of it, or nest it less."
)


class Grammars:
    """The engine would find out too, and then it would be too late for a status code, or for the engine."""

    def __init__(self, vocabulary: Vocabulary, end_ids: Sequence[int]) -> None:
        self._vocabulary = vocabulary
        self._end_ids = tuple(end_ids)
        self._pool: ThreadPoolExecutor | None = None
        self._free: queue.SimpleQueue[_Checker] = queue.SimpleQueue()
        self._checkers: list[_Checker] = []
        self._closed = False
        self._running: dict[Grammar, asyncio.Future[str | None]] = {}
        self._verdicts: OrderedDict[Grammar, str | None] = OrderedDict()

    async def check(self, grammar: Grammar | None, name: str | None) -> None:
        """Raise InvalidParameter, with the reason, for a grammar that cannot be used; `name` is its field. Raises
        Overloaded where too many wait."""
        if grammar is None:
            return
        if grammar in self._verdicts:
            self._verdicts.move_to_end(grammar)
            verdict = self._verdicts[grammar]
        else:
            verdict = await asyncio.shield(self._found_out(grammar))  # others may wait for the same one
            self._keep(grammar, verdict)
        if verdict is not None:
            name = name or "grammar"
            raise InvalidParameter(f"{name} cannot be used: {verdict}", name)

    def close(self) -> None:
        """End the processes; what is being checked is refused. Calling it twice is harmless."""
        self._closed = True
        for checker in self._checkers:
            checker.kill()
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
        for checker in self._checkers:
            checker.end()

    def _found_out(self, grammar: Grammar) -> asyncio.Future[str | None]:
        future = self._running.get(grammar)
        if future is not None:
            return future
        if self._closed or len(self._running) >= MAX_WAITING:
            raise Overloaded("Too many grammars wait to be compiled; try again in a moment.")
        if self._pool is None:
            tokens = Tokens(self._vocabulary.pieces, tuple(self._vocabulary.special), self._end_ids)
            self._checkers = [_Checker(tokens) for _ in range(CHECKERS)]
            for checker in self._checkers:
                self._free.put(checker)
            self._pool = ThreadPoolExecutor(CHECKERS, "octavo-grammar")
        future = asyncio.get_running_loop().run_in_executor(self._pool, self._verdict, grammar)
        self._running[grammar] = future

        def done(future: asyncio.Future[str | None]) -> None:
            self._running.pop(grammar, None)
            if not future.cancelled():
                future.exception()  # who asked may have left

        future.add_done_callback(done)
        return future

    def _verdict(self, grammar: Grammar) -> str | None:
        checker = self._free.get()
        try:
            return checker.check(grammar)
        finally:
            self._free.put(checker)

    def _keep(self, grammar: Grammar, verdict: str | None) -> None:
        self._verdicts[grammar] = verdict
        size = sum([len(one.source) for one in self._verdicts])
        while len(self._verdicts) > KEPT or (size > KEPT_BYTES and len(self._verdicts) > 1):
            size -= len(self._verdicts.popitem(last=False)[0].source)


class _Checker:
    """One process, started when there is something to check, and anew after it has died of that."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def check(self, grammar: Grammar) -> str | None:
        """What is wrong with it. Raises ServerError where no process can be had, Overloaded where it gets no time."""
        process = self._started()
        try:
            return _ask(process, framed(grammar), WALL_S).reason
        except TimeoutError:
            self.end()
            raise Overloaded(
                "The grammar could not be checked in time, for the machine is busy; try again later."
            ) from None
        except (EOFError, OSError):
            self.end()
            self._check_open()
            return TOO_LARGE

    def kill(self) -> None:
        """End what it does, and take no more."""
        with self._lock:
            self._closed = True
            if self._process is not None:
                self._process.kill()

    def end(self) -> None:
        """Forget the process; its thread's, or for when that has ended."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with suppress(OSError):  # what it did not read
                        pipe.close()

    def _started(self) -> subprocess.Popen[bytes]:
        with self._lock:
            process = self._process
        if process is not None and process.poll() is None:
            return process
        self.end()  # it was killed from elsewhere
        try:
            with self._lock:
                self._check_open()
                process = self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "octavo.sampling.check"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,  # Ctrl-C is for the server
                )
            _ask(process, framed(self._tokens), START_S)
        except (EOFError, OSError, TimeoutError):
            self.end()
            self._check_open()
            raise ServerError("The process that checks grammars cannot be started.") from None
        return process

    def _check_open(self) -> None:
        if self._closed:
            raise Overloaded("The server is shutting down.")


def _ask(process: subprocess.Popen[bytes], message: bytes, wait_s: float) -> Verdict:
    """Send it, and get the verdict. Raises EOFError or OSError where the process has died, TimeoutError."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(message)
    process.stdin.flush()
    poll = select.poll()
    poll.register(process.stdout, select.POLLIN)
    if not poll.poll(wait_s * 1000):
        raise TimeoutError
    return msgspec.msgpack.decode(read_frame(process.stdout), type=Verdict)
