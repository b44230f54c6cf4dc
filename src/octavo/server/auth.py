"""Who may ask: bearer keys, in front of every route but health. Knows headers, not what is behind them."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from octavo.protocol.errors import RequestRefused
from octavo.server.errors import error_response

__all__ = ["CACHE_SCOPE", "KEYLESS", "TENANT", "KeyCheck", "tenant_of"]

CACHE_SCOPE = "octavo.cache_scope"
"""Where a request's ASGI scope says whose computed blocks it may find; not there where all share them."""

TENANT = "octavo.tenant"
"""Where it says whose request it is: a name for the key."""

KEYLESS = frozenset({"/health", "/health/live", "/health/ready"})
"""The paths that want no key."""


class KeyCheck:
    """ASGI middleware. Keys are held as hashes and compared in constant time, whichever fits."""

    def __init__(self, app: ASGIApp, keys: Sequence[str], *, separate: bool = True) -> None:
        """`separate`: what one key's requests left in the prefix cache is not found by another's."""
        self._app = app
        self._separate = separate and len(keys) > 1
        self._hashes = [hashlib.sha256(key.encode()).digest() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        key = _bearer(scope)
        known = self._known(key) if key and scope["type"] == "http" else None
        if scope["type"] != "http" or scope["path"] in KEYLESS or known:
            if known:
                scope[TENANT] = known
                if self._separate:
                    scope[CACHE_SCOPE] = _cache_scope(key)
            await self._app(scope, receive, send)
            return
        refused = RequestRefused(
            401, "The API key is missing or wrong; send it as 'Authorization: Bearer KEY'.", "invalid_api_key"
        )
        await error_response(refused)(scope, receive, send)

    def _known(self, key: bytes) -> str | None:
        """A name for the key, which does not give it away; None for an unknown one."""
        given = hashlib.sha256(key).digest()
        matches = [hmac.compare_digest(given, known) for known in self._hashes]
        return tenant_of(matches.index(True)) if any(matches) else None


def tenant_of(number: int) -> str:
    """The tenant that has the key of this number, from 0."""
    return f"key-{number}"


def _cache_scope(key: bytes) -> str:
    """A name for the key which is its own, whatever other keys there are: on disk, its blocks may outlive it."""
    return hashlib.sha256(b"cache scope" + hashlib.sha256(key).digest()).hexdigest()[:32]


def _bearer(scope: Scope) -> bytes:
    """The key that was sent; b"" for none."""
    for name, value in scope["headers"]:
        if name == b"authorization":
            scheme, _, key = value.partition(b" ")
            return key.strip() if scheme.lower() == b"bearer" else b""
    return b""
