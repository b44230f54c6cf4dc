"""The address that a server listens on, taken before anything else. Knows sockets, no HTTP."""

from __future__ import annotations

import errno
import socket

from octavo.errors import SettingsError

__all__ = ["BACKLOG", "address_of", "bind"]

BACKLOG = 2048
"""Connections that may wait to be accepted."""


def bind(host: str, port: int) -> socket.socket:
    """The address, ours and not yet answering. Raises SettingsError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise SettingsError(f"host {host!r} cannot be resolved: {error.strerror}.") from None
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        # Linux lets two sockets bind with SO_REUSEADDR while neither listens, so only this claims the port.
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRNOTAVAIL:
            raise SettingsError(
                f"host {host!r} is no address of this machine; 127.0.0.1 is its own, 0.0.0.0 all that it has."
            ) from None
        raise SettingsError(
            f"port {port} on {host} cannot be opened: {error.strerror}; stop what uses it or choose another port."
        ) from None
    return listener


def address_of(listener: socket.socket, *, tls: bool) -> str:
    """As a URL."""
    host, port = listener.getsockname()[:2]
    scheme = "https" if tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
