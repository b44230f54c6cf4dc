"""Python runs this at its start when the folder is on its path: the process then reaches this machine and no other."""

from __future__ import annotations

import ipaddress
import sys
from typing import Any

_EVENTS = {"socket.connect": 1, "socket.sendto": 1, "socket.getaddrinfo": 0, "socket.gethostbyname": 0}
"""Audit events of the socket module, and which argument is the address."""


def _is_here(address: Any) -> bool:
    host = address[0] if isinstance(address, tuple) else address
    if not isinstance(host, str) or host in ("", "localhost"):  # a UNIX socket's may be bytes
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.startswith("/")


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    place = _EVENTS.get(event)
    if place is not None and not _is_here(arguments[place]):
        raise ConnectionRefusedError(f"{event} to {arguments[place]!r}: tests reach this machine only")


sys.addaudithook(_watch)
