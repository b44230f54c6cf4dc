"""Bytes of an engine's socket to messages, on an event loop. Knows neither the process nor what messages mean."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import cast

import msgspec

from octavo.engine.messages import FromEngine
from octavo.engine.wire import FrameReader, WireError, frame
from octavo.telemetry.logs import PRIVATE

__all__ = ["Connection"]

_logger = logging.getLogger(__name__)


class Connection(asyncio.Protocol):
    """The parent's end. `receive` raises WireError for what cannot be. `lost` is done when no more will come; `damaged`
    says that it is so because of what came."""

    def __init__(self, receive: Callable[[FromEngine], None]) -> None:
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.damaged = False
        self._receive = receive
        self._reader = FrameReader(msgspec.msgpack.Decoder(FromEngine))
        self._transport: asyncio.Transport | None = None

    def send(self, message: msgspec.Struct) -> None:
        """Without waiting: what the socket does not take is kept."""
        assert self._transport is not None
        self._transport.write(frame(message))

    def abort(self) -> None:
        """Nothing more is sent or received."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by class

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._reader.feed(data):
                self._receive(message)
        except WireError as error:
            _logger.error("the engine sent damaged data and is replaced: %s", error)
        except Exception:
            _logger.exception("what the engine sent cannot be used, and it is replaced", extra=PRIVATE)
        else:
            return
        self.damaged = True
        self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.lost.done():
            self.lost.set_result(None)
