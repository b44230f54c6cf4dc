"""A process that finds out which grammars can be compiled, and may die of one. Knows no request and no server.

llguidance recurses over a grammar on the native stack, and a short text can ask for gigabytes: either ends the process
that compiles it. This one has nothing to lose. Over stdin come a vocabulary, then grammars; over stdout goes a verdict
for each; every message is msgpack behind its length. What is right here is right in an engine, whose threads have
larger stacks and more memory.
"""

from __future__ import annotations

import os
import queue
import resource
import struct
import sys
import threading
import time
from contextlib import suppress
from math import ceil
from pathlib import Path
from typing import IO

import msgspec

from octavo.errors import InvalidParameter
from octavo.sampling.grammar import Grammar
from octavo.sampling.guide import Compiler
from octavo.text.vocabulary import Vocabulary

__all__ = ["CPU_S", "MEMORY_BYTES", "Tokens", "Verdict", "framed", "main", "read_frame"]

CPU_S = 5
"""Of processor time for one grammar. A schema of 1 MiB takes about a second."""
MEMORY_BYTES = 1 << 30
"""Above what the process has when it is ready."""
STACK_BYTES = 2 << 20
"""As the threads have that compute masks, the smallest of an engine's."""
NICENESS = 10
_LENGTH = struct.Struct("<I")


class Tokens(msgspec.Struct, frozen=True, array_like=True):
    """The first message: a vocabulary, and which of its tokens may end an answer."""

    pieces: tuple[bytes, ...]
    special: tuple[int, ...]
    end_ids: tuple[int, ...]


class Verdict(msgspec.Struct, frozen=True, array_like=True):
    """What is wrong with a grammar; None: nothing. The first one says that the process is ready."""

    reason: str | None = None


def framed(message: msgspec.Struct) -> bytes:
    """A message as it is sent."""
    data = msgspec.msgpack.encode(message)
    return _LENGTH.pack(len(data)) + data


def read_frame(file: IO[bytes]) -> bytes:
    """A message as it was sent. Raises EOFError where the other side has ended."""
    head = file.read(_LENGTH.size)
    if len(head) == _LENGTH.size:
        (size,) = _LENGTH.unpack(head)
        data = file.read(size)
        if len(data) == size:
            return data
    raise EOFError


def main() -> None:
    """Answer until stdin ends; then end at once, whatever is being compiled."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
    _limit(resource.RLIMIT_CORE, 0)
    grammars: queue.SimpleQueue[Grammar] = queue.SimpleQueue()
    try:
        tokens = msgspec.msgpack.decode(read_frame(sys.stdin.buffer), type=Tokens)
        compiler = Compiler(Vocabulary(tokens.pieces, tokens.special), tokens.end_ids, for_masks=False)
        with suppress(InvalidParameter):
            compiler.compile(Grammar("regex", "a"))  # the table of tokens
        threading.stack_size(STACK_BYTES)
        threading.Thread(target=_answer, args=(compiler, grammars), daemon=True).start()
        while True:
            grammars.put(msgspec.msgpack.decode(read_frame(sys.stdin.buffer), type=Grammar))
    except (EOFError, KeyboardInterrupt):
        os._exit(0)


def _answer(compiler: Compiler, grammars: queue.SimpleQueue[Grammar]) -> None:
    with suppress(OSError, ValueError):  # Linux alone has this file
        with Path("/proc/self/statm").open() as statm:
            pages = int(statm.read().split()[0])
        _limit(resource.RLIMIT_AS, pages * resource.getpagesize() + MEMORY_BYTES)
    _say(Verdict())
    while True:
        grammar = grammars.get()
        _limit(resource.RLIMIT_CPU, ceil(time.process_time()) + CPU_S)
        try:
            compiler.compile(grammar)
        except InvalidParameter as error:
            _say(Verdict(str(error)))
        except BaseException:  # noqa: BLE001 - MemoryError, or what a library panics with: as if it had been killed
            os._exit(1)
        else:
            _say(Verdict())


def _say(verdict: Verdict) -> None:
    try:
        sys.stdout.buffer.write(framed(verdict))
        sys.stdout.buffer.flush()
    except OSError:
        os._exit(0)


def _limit(what: int, most: int) -> None:
    """Set a limit of this process, as far as it may."""
    hard = resource.getrlimit(what)[1]
    with suppress(OSError, ValueError):
        resource.setrlimit(what, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


if __name__ == "__main__":
    main()
