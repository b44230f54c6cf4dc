"""Who may ask: bearer keys, in front of every route but health. Knows headers, not what is behind them."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from octavo.protocol.errors import RequestRefused
from octavo.server.errors import error_response

__all__ = ["KeyCheck"]

_OPEN = frozenset({"/health", "/health/live", "/health/ready"})


class KeyCheck:
    """ASGI middleware. Keys are held as hashes and compared in constant time, whichever fits."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._hashes = [hashlib.sha256(key.encode()).digest() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        key = _bearer(scope)
        if scope["type"] != "http" or scope["path"] in _OPEN or (key and self._known(key)):
            await self._app(scope, receive, send)
            return
        refused = RequestRefused(
            401, "The API key is missing or wrong; send it as 'Authorization: Bearer KEY'.", "invalid_api_key"
        )
        await error_response(refused)(scope, receive, send)

    def _known(self, key: bytes) -> bool:
        given = hashlib.sha256(key).digest()
        matches = [hmac.compare_digest(given, known) for known in self._hashes]
        return any(matches)


def _bearer(scope: Scope) -> bytes:
    """The key that was sent; b"" for none."""
    for name, value in scope["headers"]:
        if name == b"authorization":
            scheme, _, key = value.partition(b" ")
            return key.strip() if scheme.lower() == b"bearer" else b""
    return b""
