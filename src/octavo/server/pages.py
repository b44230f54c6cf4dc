"""What a web page of somebody else's may not do: ask a server without keys through its reader's browser.

Knows headers, no route. A browser sends some requests for any page (a form, a POST of text/plain) without asking the
server first, and they come from the reader's own machine: that they read no answer does not keep them from costing
time, or from storing and deleting. And a page whose name is made to mean 127.0.0.1 after it was loaded (DNS rebinding)
reads the answers, too. A key ends both, for no page knows it; without one, these two headers tell.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from octavo.protocol.errors import RequestRefused
from octavo.server.edge import Edge
from octavo.server.errors import error_response
from octavo.server.keys import Keys

__all__ = ["PageCheck"]

_APPS = frozenset({"app", "file", "tauri", "vscode-file", "vscode-webview"})
"""Schemes of programs on this machine that are made of pages; no site has one."""
_LOCAL_NAMES = ("localhost", "local", "internal")
"""Last parts of names that nobody can make mean another address in the public DNS (RFC 6761, RFC 6762, ICANN)."""


class PageCheck:
    """ASGI middleware. While there are no keys it answers 403 to what a page of another site sends, and, on a server
    that listens to this machine alone, to what is addressed to a name that others may have given it."""

    def __init__(
        self, app: ASGIApp, *, keys: Keys, edge: Edge, local: bool, told: Callable[[str], None]
    ) -> None:
        """`local`: the server listens to this machine alone. `told` counts what is refused."""
        self._app = app
        self._keys = keys
        self._origins = frozenset(edge.origins)
        self._hosts = frozenset(name.lower() for name in edge.hosts)
        self._checks_hosts = bool(edge.hosts) or local
        self._told = told
        self._own_name = socket.gethostname().lower()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._keys.keyed:
            refused = self._refused(scope["headers"])
            if refused is not None:
                self._told("page")
                await error_response(refused, scope)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refused(self, headers: Sequence[tuple[bytes, bytes]]) -> RequestRefused | None:
        """Requests from within, and those of HTTP/1.0, have no Host; no browser sends such."""
        hosts, origins = list[str](), list[str]()
        for name, value in headers:
            if name == b"host":
                hosts.append(value.decode("latin-1").lower())
            elif name == b"origin":
                origins.append(value.decode("latin-1").lower())
        if self._checks_hosts:
            for host in hosts:
                if not self._is_ours(_name_of(host)):
                    return RequestRefused(
                        403,
                        f"The request is for {host[:100]!r}, which is no name of this server; without API keys it "
                        "answers only to addresses and to names of its own network, such as localhost. Start it with "
                        "--allowed-host and that name, or with a key.",
                        "host_not_allowed",
                        "host",
                    )
        for origin in origins:
            if not self._may_ask(origin, hosts):
                return RequestRefused(
                    403,
                    f"The page of {origin[:100]!r} may not ask this server, which has no API keys; start it with "
                    "--cors-origin and that origin, or with a key.",
                    "origin_not_allowed",
                    "origin",
                )
        return None

    def _is_ours(self, name: str) -> bool:
        if "*" in self._hosts or name in self._hosts or name == self._own_name:
            return True
        if "." not in name:
            return bool(name)  # no top-level domain means an address by itself; and one of IPv6 asks no DNS
        return _address_of(name) is not None or name.rpartition(".")[2] in _LOCAL_NAMES

    def _may_ask(self, origin: str, hosts: Sequence[str]) -> bool:
        if origin in self._origins or "*" in self._origins:
            return True
        scheme, _, host = origin.partition("://")
        if scheme not in ("http", "https"):
            return scheme in _APPS
        name = _name_of(host)
        address = _address_of(name)
        # Its own page (/docs), and those that somebody on this machine serves.
        return (
            host in hosts
            or name.rpartition(".")[2] == "localhost"
            or (address is not None and address.is_loopback)
        )


def _name_of(host: str) -> str:
    """Without the port; "" for what is none."""
    try:
        return (urlsplit(f"//{host}").hostname or "").removesuffix(".")
    except ValueError:
        return ""


def _address_of(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address that the name is by itself."""
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
