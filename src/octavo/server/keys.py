"""The keys that are known while the server runs, and what each of them uses. Knows hashes, no HTTP and no file."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import Any

from octavo.server.access import Access, Key, digest_of
from octavo.server.allowance import Allowance

__all__ = ["ALLOWANCE", "CACHE_SCOPE", "OWNER", "READS", "TENANT", "Keys"]

CACHE_SCOPE = "octavo.cache_scope"
"""Where a request's ASGI scope says whose computed blocks it may find; not there where all share them."""

TENANT = "octavo.tenant"
"""Where it says whose request it is: a name for the key, the same whatever other keys there are."""

OWNER = "octavo.owner"
"""Where it says whose it is what the request stores: a name for the key, the same whatever other keys there are. Not
there on a server without keys: what is stored there is nobody's."""

READS = "octavo.reads"
"""Where it says whose stored things the request may see; not there where it may see all, because there is one key."""

ALLOWANCE = "octavo.allowance"
"""Where it has the key's `Allowance`."""


class Keys:
    """All of them. `identities`: by owner, what a key's requests have in their ASGI scope; it stays the same object."""

    def __init__(self, access: Access | None = None, keys: Sequence[Key] = ()) -> None:
        self.identities: dict[str, dict[str, Any]] = {}
        self.metrics_without_key = False
        self.keyed = False
        """Requests want a key."""
        self._known: list[tuple[bytes, dict[str, Any]]] = []
        self.change(access or Access(), keys)

    def change(self, access: Access, keys: Sequence[Key]) -> None:
        """From now on these. A key that stays keeps its names and goes on counting what it uses."""
        before = {allowance.key.digest: allowance for allowance in self.allowances}
        self.keyed, self.metrics_without_key = access.keyed, access.metrics_without_key
        # The only key of a command line is its owner's; in a file there may be another one tomorrow.
        alone = len(keys) == 1 and access.key_file is None
        self._known = []
        for key in keys:
            allowance = before.get(key.digest) or Allowance(key)
            allowance.change(key)
            self._known.append((key.digest, _identity(allowance, alone=alone)))
        self.identities.clear()
        self.identities.update({identity[OWNER]: identity for _, identity in self._known})
        if not self.keyed:
            self.identities[""] = {}

    @property
    def allowances(self) -> list[Allowance]:
        """Of all keys."""
        return [identity[ALLOWANCE] for _, identity in self._known]

    def identity_of(self, key: bytes) -> dict[str, Any] | None:
        """What the requests of this key have in their scope; None for an unknown one. It takes as long for any: hashes
        are compared in constant time, and with all."""
        if not key:
            return None
        given = digest_of(key)
        found = None
        for digest, identity in self._known:
            if hmac.compare_digest(given, digest):
                found = identity
        return found


def _identity(allowance: Allowance, *, alone: bool) -> dict[str, Any]:
    key = allowance.key
    owner = _name_of(key, b"owner")
    identity = {TENANT: f"key-{_name_of(key, b'tenant')[:16]}", OWNER: owner, ALLOWANCE: allowance}
    if not alone:
        identity[READS] = owner
    if key.own_cache:
        identity[CACHE_SCOPE] = _name_of(key, b"cache scope")
    return identity


def _name_of(key: Key, use: bytes) -> str:
    """A name for the key which is its own, whatever other keys there are: what it left on disk may outlive it. It gives
    the key not away, and names for different uses cannot be told to be of one key."""
    return hashlib.sha256(use + key.digest).hexdigest()[:32]
