"""What stands between the sockets and the routes, as settings: who may ask from where, how long, what is logged.

Knows no route and no engine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from itertools import product
from typing import TYPE_CHECKING

import msgspec

from octavo.errors import SettingsError

if TYPE_CHECKING:
    from starlette.types import ASGIApp

__all__ = ["EXPOSED_HEADERS", "Edge", "TlsFiles", "check_hosts", "check_origins", "with_origins"]

EXPOSED_HEADERS = (
    "request-id",
    "retry-after",
    "x-request-id",
    "x-should-retry",
    *(
        f"x-octavo-{name}" for name in ("attempts", "cost", "policy", "reason", "score", "tier")
    ),  # of a gateway
    *(
        f"{whose}-{which}-{what}"
        for whose, which, what in (
            *product(("x-ratelimit",), ("limit", "remaining", "reset"), ("requests", "tokens")),
            *product(("anthropic-ratelimit",), ("requests", "tokens"), ("limit", "remaining", "reset")),
        )
    ),
)
"""Of an answer's headers, those that a page in a browser may read beside the few that it always may."""

_METHODS = ("DELETE", "GET", "HEAD", "POST")
_MAX_AGE_S = 600
"""How long a browser may remember what it was allowed."""
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://([a-z0-9.-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")
_HOST = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_USUAL_PORTS = {"http": "80", "https": "443"}


class TlsFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Where they are, all PEM."""

    certfile: str
    """The certificate, and behind it those between it and a root that clients know."""
    keyfile: str | None = None
    """Its private key; None: in the same file."""
    password: str | None = None
    """Of an encrypted key."""
    ca_certs: str | None = None
    """Who signs clients' certificates. Given, a client without one gets no connection."""

    def __repr__(self) -> str:
        return f"TlsFiles({self.certfile!r})"  # no log shall have the password


class Edge(msgspec.Struct, frozen=True, kw_only=True):
    """The edge of one server."""

    origins: tuple[str, ...] = ()
    """From which pages of other hosts a browser may ask: exact origins, or `*` for all. None: from no page."""
    tls: TlsFiles | None = None
    """None: plain HTTP."""
    request_timeout_s: float | None = None
    """How long a request may take from its arrival to the end of its answer; None: any time."""
    access_log: bool = False
    """A line in the log for each request."""
    hosts: tuple[str, ...] = ()
    """Further names that requests may be addressed to while there are no keys (see pages); `*` for any."""


def check_origins(given: Iterable[str]) -> tuple[str, ...]:
    """The origins, each once; one of them may be a JSON list of several, as vLLM takes them. Raises SettingsError."""
    origins: list[str] = []
    for text in given:
        many = [text]
        if text.lstrip().startswith("["):
            try:
                many = msgspec.json.decode(text, type=list[str])
            except msgspec.DecodeError:
                raise SettingsError(
                    f"--cors-origin {text[:80]} is no JSON list of texts; give the option once for each origin."
                ) from None
        for origin in many:
            _check_origin(origin)
            origins.append(origin)
    return tuple(dict.fromkeys(origins))


def check_hosts(given: Iterable[str]) -> tuple[str, ...]:
    """The names, each once. Raises SettingsError for what is no name alone."""
    for name in given:
        if name != "*" and not _HOST.fullmatch(name):
            raise SettingsError(
                f"--allowed-host {json.dumps(name[:80])} is no name of a host: give it without scheme, port and path, "
                "such as llm.example.org."
            )
    return tuple(dict.fromkeys(given))


def with_origins(app: ASGIApp, origins: tuple[str, ...]) -> ASGIApp:
    """`app` for pages from `origins` too. It has to be the outermost: a browser asks first without any key, and shows
    a page no error that lacks these headers."""
    if not origins:
        return app
    from starlette.middleware.cors import CORSMiddleware  # settings are read before the engine is started

    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=_METHODS,
        allow_headers=("*",),
        expose_headers=EXPOSED_HEADERS,
        max_age=_MAX_AGE_S,
    )


def _check_origin(origin: str) -> None:
    """Raise SettingsError for what no browser sends: it compares letter for letter, so a slash at the end would let
    nobody in, and nobody would know why."""
    if origin == "*":
        return
    found = _ORIGIN.fullmatch(origin)
    if found is not None:
        scheme = origin.partition(":")[0]
        if found[2] != f":{_USUAL_PORTS.get(scheme)}":
            return
        reason = f"browsers leave the port out where it is {scheme}'s own"
    elif _ORIGIN.fullmatch(origin.lower()):
        reason = "browsers write it in lower case"
    elif _ORIGIN.fullmatch(origin.rstrip("/")):
        reason = "it has no slash at the end"
    else:
        reason = "it is a scheme, a host and, where it is not the scheme's own, a port, such as https://example.org"
    raise SettingsError(f"--cors-origin {json.dumps(origin[:80])} is no origin: {reason}.")
