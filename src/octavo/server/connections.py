"""All connections of a server: how many there may be, and which reader takes nothing. Knows sockets, no HTTP.

A server has room for so many connections; where it is full, those that ask nothing make room for those that may.
What one reader leaves lying is bounded: by the kernel's buffer (64 KiB that it has not sent), by the transport's
(64 KiB, then `send` waits) and by the stream's (engine/stream.py). Who takes nothing for too long is cut off, whatever
was asked: a stream, a whole answer, a file.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from typing import Literal, Protocol

from octavo.errors import Overloaded, SettingsError

__all__ = [
    "CONNECTION",
    "MAX_CONNECTIONS",
    "SEND_TIMEOUT_S",
    "STREAM_BUFFER_BYTES",
    "Connection",
    "Connections",
    "Drop",
    "connections_allowed",
]

CONNECTION = "octavo.connection"
"""Where a request's ASGI scope has the `Connection` that it came by. Not there for one from within."""

MAX_CONNECTIONS = 4096
"""By default, where the process may open as many files."""
SEND_TIMEOUT_S = 60.0
"""nginx's `send_timeout`, its default too."""
STREAM_BUFFER_BYTES = 4 << 20
MAX_BODIES_BYTES = 256 << 20
"""Of all bodies that are being read."""
FREE_BODY_BYTES = 64 << 10
"""Of each body, outside of that: so that a few large ones keep no small one out."""
TOLD = 128
"""Connections beyond the most that are told so; more are cut off."""
SPARE_FILES = 128
"""Files that the process needs for other things: stored files, the database, an engine that is started again."""
_UNSENT_BYTES = 64 << 10
_KEEPALIVE_S = 60, 10, 6
"""How long nothing came from a peer when it is asked whether it lives, again and again, and how often in vain."""

_LINUX = sys.platform == "linux"
_TCP_INFO = struct.Struct("=24x I 92x Q 16x I")
"""Of Linux' struct tcp_info: unacked (segments), bytes_acked, notsent_bytes."""

Drop = Literal["stalled", "buffer_full", "idle", "connections", "pipelined"]
"""Why the server cut a connection off: its reader took nothing for too long, or left too much lying; it asked nothing
and room was needed; there was no room at all; it asked too much ahead."""


class Observer(Protocol):
    """Who counts (telemetry/metrics.py)."""

    def on_connections(self, count: int) -> None: ...

    def on_dropped(self, reason: Drop) -> None: ...

    def on_refused(self, reason: Literal["queue_full", "connections", "bodies"]) -> None: ...


class Connection:
    """One that was accepted."""

    __slots__ = ("_since_s", "_taken", "answering", "connections", "dropped", "surplus", "transport")

    def __init__(self, connections: Connections, transport: asyncio.Transport, *, surplus: bool) -> None:
        self.connections = connections
        self.transport = transport
        self.surplus = surplus
        """There was no room: it is told so."""
        self.answering = False
        """A request has come, and its answer has not gone out."""
        self.dropped: Drop | None = None
        self._taken = 0
        self._since_s: float | None = None

    def drop(self, reason: Drop) -> None:
        """Cut it off. It is reset, so that nothing that waits for it is kept; one that asked nothing is only closed:
        a client that keeps it for later requests sees that before the next."""
        if self.dropped is not None:
            return
        self.dropped = reason
        self.connections.closed(self)
        self.connections.observer.on_dropped(reason)
        if reason != "idle":
            with contextlib.suppress(OSError):
                linger = struct.pack("ii", 1, 0)
                self.transport.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, linger
                )
        self.transport.abort()

    def stalled_s(self, now_s: float) -> float:
        """For how long the peer has taken nothing of what is there for it, by what was seen at calls of this."""
        taken, left = self._progress()
        if not left:
            self._since_s = None
        elif self._since_s is None or taken != self._taken:
            self._since_s = now_s
        self._taken = taken
        return 0.0 if self._since_s is None else now_s - self._since_s

    def _progress(self) -> tuple[int, bool]:
        """A number that changes when the peer takes something, and whether there is something for it."""
        waiting = self.transport.get_write_buffer_size()
        if _LINUX:
            try:
                info = self.transport.get_extra_info("socket").getsockopt(
                    socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size
                )
                unacked, acked, unsent = _TCP_INFO.unpack(info)
            except (OSError, struct.error):  # no TCP, or an old kernel
                pass
            else:
                return acked, bool(waiting or unacked or unsent)
        return waiting, waiting > 0


class Connections:
    """All that are open, at most `most` of them. Everything here runs on the event loop."""

    def __init__(
        self,
        observer: Observer,
        *,
        most: int = MAX_CONNECTIONS,
        send_timeout_s: float = SEND_TIMEOUT_S,
        max_bodies_bytes: int = MAX_BODIES_BYTES,
    ) -> None:
        """`send_timeout_s`: how long a reader may take nothing; 0 for ever."""
        self.observer = observer
        self._most = most
        self._send_timeout_s = send_timeout_s
        self._max_bodies_bytes = max_bodies_bytes
        self._bodies_bytes = 0
        self._open = set[Connection]()
        self._waiting = dict[Connection, None]()
        """Those that ask nothing, the longest first."""

    def __len__(self) -> int:
        return len(self._open)

    def prepare(self, listener: socket.socket) -> None:
        """Set what every connection inherits: little is kept in the kernel for who does not read, and a peer that is
        gone without a word is noticed."""
        options = {
            (socket.SOL_SOCKET, "SO_KEEPALIVE"): 1,
            (socket.IPPROTO_TCP, "TCP_KEEPIDLE"): _KEEPALIVE_S[0],
            (socket.IPPROTO_TCP, "TCP_KEEPINTVL"): _KEEPALIVE_S[1],
            (socket.IPPROTO_TCP, "TCP_KEEPCNT"): _KEEPALIVE_S[2],
            (socket.IPPROTO_TCP, "TCP_NOTSENT_LOWAT"): _UNSENT_BYTES,
        }
        if self._send_timeout_s:
            # The kernel's own, for what is left in it when we have closed. It is later than ours, which counts.
            timeout_ms = round(1000 * (self._send_timeout_s + 5))
            options[socket.IPPROTO_TCP, "TCP_USER_TIMEOUT"] = timeout_ms
        for (level, name), value in options.items():
            with contextlib.suppress(OSError, AttributeError, OverflowError):  # not every system has all
                listener.setsockopt(level, getattr(socket, name), value)

    def opened(self, transport: asyncio.Transport) -> Connection:
        """A new one. Where there is no room, the one that has asked nothing for the longest time is closed for it;
        where all ask, the new one is one too many."""
        surplus = False
        if len(self._open) >= self._most:
            if self._waiting:
                next(iter(self._waiting)).drop("idle")
            else:
                surplus = True
        connection = Connection(self, transport, surplus=surplus)
        self._open.add(connection)
        self._waiting[connection] = None
        self.observer.on_connections(len(self._open))
        if len(self._open) > self._most + TOLD:
            connection.drop("connections")
        return connection

    def asked(self, connection: Connection) -> None:
        """The head of a request has come by it."""
        connection.answering = True
        self._waiting.pop(connection, None)

    def answered(self, connection: Connection) -> None:
        """The answer has gone out, as far as the server is concerned."""
        connection.answering = False
        if connection in self._open:
            self._waiting[connection] = None

    def closed(self, connection: Connection) -> None:
        """It is gone, or will be in a moment. Calling it twice is harmless."""
        self._open.discard(connection)
        self._waiting.pop(connection, None)
        self.observer.on_connections(len(self._open))

    def sweep(self) -> None:
        """Drop those whose readers take nothing. To be called once a second."""
        if not self._send_timeout_s:
            return
        now_s = time.monotonic()
        for connection in list(self._open):
            has_answer = connection.answering or connection.transport.get_write_buffer_size() > 0
            if has_answer and connection.stalled_s(now_s) >= self._send_timeout_s:
                connection.drop("stalled")

    @contextlib.contextmanager
    def body(self) -> Iterator[Callable[[int], None]]:
        """While a body is read: what to call with the bytes that came. That raises Overloaded where the bodies of all
        connections have too many together."""
        nbytes = counted = 0

        def grow(more: int) -> None:
            nonlocal nbytes, counted
            nbytes += more
            beyond = max(nbytes - FREE_BODY_BYTES, 0) - counted
            if self._bodies_bytes + beyond > self._max_bodies_bytes:
                self.observer.on_refused("bodies")
                raise Overloaded(
                    f"The bodies that this server is reading have more than {self._max_bodies_bytes} bytes together; "
                    "try again in a moment.",
                    retry_after_s=5,
                )
            counted += beyond
            self._bodies_bytes += beyond

        try:
            yield grow
        finally:
            self._bodies_bytes -= counted


def connections_allowed(asked: int | None) -> int:
    """How many a server takes at most: `asked`, or what the process can. Raises the limit of open files as far as the
    process may. Raises SettingsError."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = (asked or MAX_CONNECTIONS) + TOLD + SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return asked or MAX_CONNECTIONS
    possible = soft - TOLD - SPARE_FILES
    if asked is not None:
        raise SettingsError(
            f"max-connections is {asked}, and this process may open {soft} files, which is enough for "
            f"{max(possible, 0)} connections; lower it, or raise the limit (ulimit -n)."
        )
    return max(possible, 16)
