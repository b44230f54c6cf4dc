"""A small HTTP client that sends any bytes and reads whole answers: what a library would refuse to send, it sends."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import NamedTuple

import httptools

__all__ = ["ANSWER_S", "Connection", "Reply", "request_bytes"]

ANSWER_S = 60.0
"""An answer that is not there by then has hung."""


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class _Parsed:
    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.complete = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode().lower()] = value.decode("latin-1")

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.complete = True


class Connection:
    """One connection at a time to a server, made when it is needed."""

    def __init__(self, host: str, port: int) -> None:
        self._address = host, port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, data: bytes) -> Reply:
        """Send `data`, one request; its answer. Raises TimeoutError where none comes."""
        async with asyncio.timeout(ANSWER_S):
            kept = self._streams is not None
            try:
                return await self._ask(data)
            except (ConnectionError, EOFError):
                await self.close()
                if not kept:
                    raise
                return await self._ask(data)  # the server had closed what was kept for the next request

    async def _ask(self, data: bytes) -> Reply:
        if self._streams is None:
            self._streams = await asyncio.open_connection(*self._address)
        reader, writer = self._streams
        writer.write(data)
        parsed = _Parsed()
        parser = httptools.HttpResponseParser(parsed)
        while not parsed.complete:
            received = await reader.read(1 << 16)
            if not received:
                raise EOFError
            parser.feed_data(received)
        if parsed.headers.get("connection", "").lower() == "close":
            await self.close()
        return Reply(parser.get_status_code(), parsed.headers, bytes(parsed.body))

    async def close(self) -> None:
        if self._streams is not None:
            _, writer = self._streams
            self._streams = None
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


def request_bytes(method: str, path: str, body: bytes, headers: dict[str, str]) -> bytes:
    """A request as HTTP/1.1 has it."""
    lines = [
        f"{method} {path} HTTP/1.1",
        "host: localhost",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return "\r\n".join([*lines, f"content-length: {len(body)}", "", ""]).encode("latin-1") + body
