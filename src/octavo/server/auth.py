"""Who may ask: keys, in front of every route but health. Knows headers, not what is behind them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from octavo.protocol.errors import RequestRefused
from octavo.server.errors import error_response
from octavo.server.keys import OWNER, READS, TENANT, Keys

__all__ = ["KEYLESS", "KeyCheck", "open_paths", "owner_of", "reads_of"]

KEYLESS = frozenset({"/health", "/health/live", "/health/ready"})
"""The paths that want no key."""

_METRICS = "/metrics"


class KeyCheck:
    """ASGI middleware: a request whose key is known has its identity in its scope, another one is refused, where keys
    are wanted at all. `told`: called with the reason of each refusal."""

    def __init__(self, app: ASGIApp, keys: Keys, told: Callable[[str], None] = lambda reason: None) -> None:
        self._app = app
        self._keys = keys
        self._told = told

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # No header puts a tenant into a scope: a request that has one comes from within.
        if scope["type"] != "http" or not self._keys.keyed or TENANT in scope or self._open(scope["path"]):
            await self._app(scope, receive, send)
            return
        known = self._keys.identity_of(_key_of(scope))
        if known is not None:
            scope.update(known)
            await self._app(scope, receive, send)
            return
        self._told("key")
        refused = RequestRefused(
            401,
            "The API key is missing or wrong; send it as 'Authorization: Bearer KEY' or as 'x-api-key'.",
            "invalid_api_key",
        )
        await error_response(refused, scope)(scope, receive, send)

    def _open(self, path: str) -> bool:
        return path in KEYLESS or (path == _METRICS and self._keys.metrics_without_key)


def open_paths(keys: Keys) -> frozenset[str] | None:
    """The paths that want no key, where others do; None where none does."""
    if not keys.keyed:
        return None
    return KEYLESS | {_METRICS} if keys.metrics_without_key else KEYLESS


def owner_of(scope: Mapping[str, Any]) -> str:
    """Whose it is what a request stores; "" for nobody's."""
    owner: str = scope.get(OWNER, "")
    return owner


def reads_of(scope: Mapping[str, Any]) -> str | None:
    """Whose stored things a request may see; None for everybody's."""
    reads: str | None = scope.get(READS)
    return reads if reads is not None or OWNER in scope else ""


def _key_of(scope: Scope) -> bytes:
    """The key that was sent, as a bearer's or else as Anthropic's clients send it; b"" for none."""
    bearer = other = b""
    for name, value in scope["headers"]:
        if name == b"authorization":
            scheme, _, key = value.partition(b" ")
            bearer = key.strip() if scheme.lower() == b"bearer" else b""
        elif name == b"x-api-key":
            other = value.strip()
    return bearer or other
