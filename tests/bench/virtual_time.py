"""An event loop whose time is made up: it jumps to the next timer when nothing else can happen. Sockets are real.

So a script with pauses of hours runs at once, and each time stamp is exactly the script's. Knows no HTTP. Before a
jump it waits, in real time, for bytes that were sent and not yet read, for connections that were closed at one end
only, and for threads: the kernel may take its time to deliver, and a jump before that would make a wrong stamp.
"""

from __future__ import annotations

import asyncio
import selectors
import socket
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

__all__ = ["BEGIN_S", "VirtualLoop", "clock_ns", "in_virtual_time"]

T = TypeVar("T")
BEGIN_S = 100.0
"""Not 0, so that a time and a duration cannot be taken for each other."""
PATIENCE_S = 1.0
"""How long, in real time, what is on its way may take; after that nobody reads it, and time goes on."""


def in_virtual_time(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Runs it on a loop of its own."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())


def clock_ns() -> int:
    """The running virtual loop's time."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return loop.clock_ns()


class VirtualLoop(asyncio.SelectorEventLoop):
    """`time()` stands still while anything runs, is readable, or is on its way."""

    def __init__(self) -> None:
        self._now_s = BEGIN_S
        self._wires = _Wires()
        self._outside = 0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        """Seconds; virtual."""
        return self._now_s

    def clock_ns(self) -> int:
        """The same in whole nanoseconds, as time.perf_counter_ns has them."""
        return round(self._now_s * 1e9)

    def jump(self, by_s: float) -> None:
        """For the selector."""
        self._now_s += by_s

    def busy(self) -> bool:
        """Something will become readable without any timer."""
        return self._outside > 0 or self._wires.busy()

    def give_up(self) -> None:
        """What is on its way now is waited for no more."""
        self._outside = 0
        self._wires.give_up()

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        """As the base class; time waits for the thread."""
        future = super().run_in_executor(executor, func, *args)
        self._outside += 1
        future.add_done_callback(self._came_back)
        return future

    async def sock_connect(self, sock: socket.socket, address: Any) -> None:
        """As the base class; time waits for the answer of the other side's system."""
        self._outside += 1
        try:
            await super().sock_connect(sock, address)
        finally:
            self._came_back(None)

    def _came_back(self, _: object) -> None:
        self._outside = max(0, self._outside - 1)

    def _make_socket_transport(self, sock: socket.socket, *args: Any, **more: Any) -> Any:
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            sock = _CountedSocket(self._wires, sock)
        return super()._make_socket_transport(sock, *args, **more)  # type: ignore[misc]


class _End:
    """One end of a connection, of which both may be in this process."""

    def __init__(self) -> None:
        self.sent = 0
        self.received = 0
        self.said_end = False
        self.saw_end = False
        self.given_up = False


class _Wires:
    """What was sent and not yet read, over all connections."""

    def __init__(self) -> None:
        self._ends: dict[tuple[Any, Any], _End] = {}

    def add(self, sock: socket.socket) -> _End:
        end = _End()
        self._ends[(sock.getsockname(), sock.getpeername())] = end
        return end

    def busy(self) -> bool:
        return any(self._busy())

    def give_up(self) -> None:
        for end in list(self._busy()):
            end.given_up = True

    def _busy(self) -> Iterator[_End]:
        for (here, there), end in self._ends.items():
            other = self._ends.get((there, here))
            if end.given_up:
                continue
            if other is None or (
                not other.saw_end and (end.sent > other.received or end.said_end)
            ):  # not yet accepted
                yield end


class _CountedSocket(socket.socket):
    """A socket that tells what goes through it."""

    def __init__(self, wires: _Wires, sock: socket.socket) -> None:
        self._end = wires.add(sock)
        super().__init__(sock.family, sock.type, sock.proto, fileno=sock.detach())
        self.setblocking(False)

    def send(self, *args: Any) -> int:
        count = super().send(*args)
        self._end.sent += count
        return count

    def sendmsg(self, *args: Any) -> int:
        count = super().sendmsg(*args)
        self._end.sent += count
        return count

    def recv(self, *args: Any) -> bytes:
        try:
            data = super().recv(*args)
        except (BlockingIOError, InterruptedError):
            raise
        except OSError:
            self._end.saw_end = True
            raise
        self._received(len(data))
        return data

    def recv_into(self, *args: Any) -> int:
        try:
            count = super().recv_into(*args)
        except (BlockingIOError, InterruptedError):
            raise
        except OSError:
            self._end.saw_end = True
            raise
        self._received(count)
        return count

    def _received(self, count: int) -> None:
        self._end.received += count
        self._end.saw_end = self._end.saw_end or count == 0

    def shutdown(self, how: int) -> None:
        self._end.said_end = True
        super().shutdown(how)

    def close(self) -> None:
        self._end.said_end = self._end.saw_end = True
        super().close()


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if found or (timeout is not None and timeout <= 0):
            return found
        until = time.monotonic() + PATIENCE_S
        while self._loop.busy():
            if found := super().select(0.05):
                return found
            if time.monotonic() > until:
                self._loop.give_up()
        if timeout is None:
            if found := super().select(PATIENCE_S):  # a signal
                return found
            raise RuntimeError("there is no timer, and nothing is on its way: this would wait for ever")
        self._loop.jump(timeout)
        return found
