"""Who may ask: keys, in front of every route but health. Knows headers, not what is behind them."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from octavo.protocol.errors import RequestRefused
from octavo.server.errors import error_response

__all__ = [
    "CACHE_SCOPE",
    "KEYLESS",
    "OWNER",
    "READS",
    "TENANT",
    "KeyCheck",
    "identities",
    "owner_of",
    "reads_of",
    "tenant_of",
]

CACHE_SCOPE = "octavo.cache_scope"
"""Where a request's ASGI scope says whose computed blocks it may find; not there where all share them."""

TENANT = "octavo.tenant"
"""Where it says whose request it is: a name for the key."""

OWNER = "octavo.owner"
"""Where it says whose it is what the request stores: a name for the key, the same whatever other keys there are. Not
there on a server without keys: what is stored there is nobody's."""

READS = "octavo.reads"
"""Where it says whose stored things the request may see; not there where it may see all, because there is one key."""

KEYLESS = frozenset({"/health", "/health/live", "/health/ready"})
"""The paths that want no key."""


class KeyCheck:
    """ASGI middleware. Keys are held as hashes and compared in constant time, whichever fits."""

    def __init__(self, app: ASGIApp, keys: Sequence[str], *, separate: bool = True) -> None:
        """`separate`: what one key's requests left in the prefix cache is not found by another's."""
        self._app = app
        self._identities = identities(keys, separate=separate)
        self._hashes = [hashlib.sha256(key.encode()).digest() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # No header puts a tenant into a scope: a request that has one comes from within.
        if scope["type"] != "http" or scope["path"] in KEYLESS or TENANT in scope:
            await self._app(scope, receive, send)
            return
        known = self._known(_key_of(scope))
        if known is not None:
            scope.update(known)
            await self._app(scope, receive, send)
            return
        refused = RequestRefused(
            401,
            "The API key is missing or wrong; send it as 'Authorization: Bearer KEY' or as 'x-api-key'.",
            "invalid_api_key",
        )
        await error_response(refused, scope)(scope, receive, send)

    def _known(self, key: bytes) -> Mapping[str, str] | None:
        """What the key's requests have in their scope; None for an unknown one."""
        if not key:
            return None
        given = hashlib.sha256(key).digest()
        matches = [hmac.compare_digest(given, known) for known in self._hashes]
        return self._identities[matches.index(True)] if any(matches) else None


def identities(keys: Sequence[str], *, separate: bool = True) -> list[dict[str, str]]:
    """By key, what its requests have in their ASGI scope: who asks. `separate`: see `KeyCheck`."""
    found = []
    for number, key in enumerate(keys):
        owner = _name_of(key.encode(), b"owner")
        identity = {TENANT: tenant_of(number), OWNER: owner}
        if len(keys) > 1:
            identity[READS] = owner
            if separate:
                identity[CACHE_SCOPE] = _name_of(key.encode(), b"cache scope")
        found.append(identity)
    return found


def owner_of(scope: Mapping[str, Any]) -> str:
    """Whose it is what a request stores; "" for nobody's."""
    owner: str = scope.get(OWNER, "")
    return owner


def reads_of(scope: Mapping[str, Any]) -> str | None:
    """Whose stored things a request may see; None for everybody's."""
    reads: str | None = scope.get(READS)
    return reads if reads is not None or OWNER in scope else ""


def tenant_of(number: int) -> str:
    """The tenant that has the key of this number, from 0."""
    return f"key-{number}"


def _name_of(key: bytes, use: bytes) -> str:
    """A name for the key which is its own, whatever other keys there are: what it left on disk may outlive it. It gives
    the key not away, and names for different uses cannot be told to be of one key."""
    return hashlib.sha256(use + hashlib.sha256(key).digest()).hexdigest()[:32]


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
