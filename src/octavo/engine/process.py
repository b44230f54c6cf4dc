"""The engine process: messages in, steps, outputs out. Knows the socket and the step, not what is in either.

The loop never blocks on a reader. Outputs wait in user space when the parent is slow; past a bound the engine
stops stepping, for tokens that nobody takes are work done too early. With nothing to do it sleeps in `poll`.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from typing import NamedTuple, Protocol

import msgspec

from octavo.config import EngineConfig
from octavo.engine.messages import (
    Abort,
    Add,
    EngineInfo,
    Failed,
    Init,
    Outputs,
    Ready,
    Shutdown,
    ToEngine,
    Watch,
)
from octavo.engine.wire import FrameReader, WireError, frame
from octavo.errors import ClientError, OctavoError

_logger = logging.getLogger(__name__)

__all__ = [
    "MAX_UNSENT_BYTES",
    "Decoder",
    "Link",
    "Refused",
    "Steppable",
    "bind_to_parent",
    "name_process",
    "run",
    "serve",
]

MAX_UNSENT_BYTES = 64 << 20
"""Outputs that may wait for the parent before the engine pauses."""

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_READ_BYTES = 1 << 18


class Steppable(Protocol):
    """What this loop needs of an engine (engine/engine.py has the real one)."""

    @property
    def idle(self) -> bool:
        """True: a step would change nothing."""

    @property
    def info(self) -> EngineInfo: ...

    watched: bool
    """Whether outputs tell what each step computed."""

    def add(self, request: Add) -> None: ...

    def refuse(self, request_id: str, error: str) -> None:
        """A request came that cannot be; its client is told with the next outputs."""

    def abort(self, request_id: str) -> None: ...

    def step(self) -> Outputs: ...

    def close(self) -> None: ...


class _Named(msgspec.Struct, tag="add", array_like=True):
    """Of an `Add`, what can be read whatever else is in it."""

    request_id: str


class Refused(NamedTuple):
    """An `Add` whose parameters are out of range."""

    request_id: str
    error: str


class Decoder:
    """Reads messages. Raises msgspec.DecodeError for bytes that are none."""

    def __init__(self) -> None:
        self._decoder = msgspec.msgpack.Decoder(ToEngine)

    def decode(self, data: memoryview) -> ToEngine | Refused:
        try:
            return self._decoder.decode(data)
        except ClientError as error:
            # Of parameters, which check themselves: no damage, but one request's mistake.
            return Refused(msgspec.msgpack.decode(data, type=_Named).request_id, str(error))


class Link:
    """The engine's end of the socket. Sending never blocks; receiving blocks only when asked to.

    Raises EOFError when the parent's end is closed.
    """

    def __init__(self, parent: socket.socket) -> None:
        parent.setblocking(False)
        self._socket = parent
        self._reader = FrameReader(Decoder())
        self._unsent = bytearray()
        self._poll = select.poll()

    @property
    def unsent_bytes(self) -> int:
        """How much the parent has not taken yet."""
        return len(self._unsent)

    def receive(self, *, wait: bool) -> list[ToEngine | Refused]:
        """Every message that is here. `wait`: sleep first until one comes or unsent bytes can go."""
        if wait:
            self._poll.register(self._socket, select.POLLIN | (select.POLLOUT if self._unsent else 0))
            self._poll.poll()
        self._flush()
        messages: list[ToEngine | Refused] = []
        while True:
            try:
                data = self._socket.recv(_READ_BYTES)
            except BlockingIOError:
                return messages
            except ConnectionResetError:
                raise EOFError from None
            if not data:
                raise EOFError
            messages.extend(self._reader.feed(data))

    def send(self, message: msgspec.Struct) -> None:
        """Send what the socket takes now and keep the rest for later calls."""
        self._unsent += frame(message)
        self._flush()

    def drain(self) -> None:
        """Send everything, blocking."""
        self._socket.setblocking(True)
        try:
            if self._unsent:
                self._socket.sendall(self._unsent)
        except OSError:
            raise EOFError from None
        self._unsent.clear()

    def _flush(self) -> None:
        while self._unsent:
            try:
                sent = self._socket.send(self._unsent)
            except BlockingIOError:
                return
            except (BrokenPipeError, ConnectionResetError):
                raise EOFError from None
            del self._unsent[:sent]


def serve(link: Link, engine: Steppable) -> None:
    """Run `engine` for the parent until it says Shutdown; raises EOFError when the parent is gone."""
    while True:
        stepping = not engine.idle and link.unsent_bytes <= MAX_UNSENT_BYTES
        for message in link.receive(wait=not stepping):
            match message:
                case Add():
                    engine.add(message)
                case Refused(request_id, error):
                    engine.refuse(request_id, error)
                case Abort(request_id):
                    engine.abort(request_id)
                case Watch(on):
                    engine.watched = on
                case Shutdown():
                    return
                case Init():
                    raise WireError("Init came twice; an engine process loads one configuration.")
        if not engine.idle and link.unsent_bytes <= MAX_UNSENT_BYTES:
            link.send(engine.step())


def run(parent: socket.socket, build: Callable[[EngineConfig], Steppable]) -> int:
    """`build` what the first message says, then serve; the exit code: 1 where there is no engine, 2 where the parent
    sent no message. A crash in a step raises."""
    link = Link(parent)
    try:
        engine = _start(link, build)
        if engine is None:
            return 1
        try:
            serve(link, engine)
        finally:
            engine.close()
    except EOFError:
        pass
    except WireError as error:
        _logger.error("the parent sent damaged data, the engine ends: %s", error)
        return 2
    return 0


def _start(link: Link, build: Callable[[EngineConfig], Steppable]) -> Steppable | None:
    """The engine, announced to the parent; None when it could not start and the parent was told why."""
    messages = link.receive(wait=True)
    while not messages:
        messages = link.receive(wait=True)
    if len(messages) != 1 or not isinstance(messages[0], Init):
        raise WireError(f"The first message must be one Init, not {[type(m).__name__ for m in messages]}.")
    name_process("octavo-engine")
    try:
        engine = build(messages[0].config)
    except Exception as error:
        if isinstance(error, OctavoError):
            link.send(Failed(kind=type(error).__name__, message=str(error)))
        else:
            _logger.exception("the engine could not start")
            link.send(Failed(kind="ServerError", message=f"The engine could not start: {error!r}."))
        link.drain()
        return None
    gc.freeze()  # what was loaded stays: no collection need ever walk through it, in the middle of a step
    link.send(Ready(engine.info))
    return engine


def name_process(name: str) -> None:
    """What `ps`, `top` and `pkill` call it, 15 characters at most."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def bind_to_parent(parent: int) -> None:
    """Have the kernel end this process with its parent, even where the socket lives on in a fork of it."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the call
        sys.exit(0)
