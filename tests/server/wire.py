"""Clients that no library would be: they read slowly or not at all, say half a request, or ask too much ahead."""

from __future__ import annotations

import json
import socket
from typing import Any

from tests.server.conftest import TIMEOUT_S, Server

__all__ = ["SMALL_BUFFER", "connect", "request_bytes", "rest_of", "send_request"]

SMALL_BUFFER = 4096
"""Of a client's kernel: what it takes for a reader that does not read."""


def connect(server: Server, *, small: bool = False) -> socket.socket:
    """`small`: hardly anything waits on the client's side."""
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.socket()
    connection.settimeout(TIMEOUT_S)
    if small:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
    connection.connect((host, int(port)))
    return connection


def request_bytes(method: str, path: str, body: dict[str, Any] | None = None) -> bytes:
    data = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(data)}\r\n\r\n".encode() + data


def send_request(
    server: Server, method: str, path: str, body: dict[str, Any] | None = None, *, small: bool = False
) -> socket.socket:
    """Ask, and read nothing."""
    connection = connect(server, small=small)
    connection.sendall(request_bytes(method, path, body))
    return connection


def rest_of(connection: socket.socket) -> tuple[bytes, bool]:
    """What still comes until its end, and whether the server reset the connection; else it closed it."""
    data = bytearray()
    with connection:
        try:
            while part := connection.recv(65536):
                data += part
        except ConnectionResetError:
            return bytes(data), True
    return bytes(data), False
