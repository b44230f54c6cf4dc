"""What a server is told of who may ask, and how much: settings. Knows no request (see keys and admission)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from octavo.config import ProfileName
from octavo.errors import SettingsError

__all__ = ["Access", "Key", "Limits", "check_keys", "digest_of", "keys_of"]


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much one key may use; None: as much as there is."""

    max_requests: int | None = None
    """At once."""
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    """Of prompts and answers."""

    def over(self, others: Limits) -> Limits:
        """These, and those of `others` where these say nothing."""
        return Limits(
            **{
                name: getattr(others if getattr(self, name) is None else self, name)
                for name in self.__struct_fields__
            }
        )


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """One key, without the key itself."""

    name: str
    """For people: in logs and in the key file."""
    digest: bytes
    """sha256 of the key."""
    profile: ProfileName | None = None
    """Of its requests that name none."""
    limits: Limits = Limits()
    own_cache: bool = True
    """It finds only what its own requests computed; otherwise, what all those computed that have no cache of their
    own."""


class Access(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of it. It may change while the server runs (see reload)."""

    api_keys: tuple[str, ...] = ()
    key_profiles: Mapping[int, ProfileName] = {}
    """By number of one of `api_keys`, from 0."""
    key_file: str | None = None
    cache_per_key: bool = True
    """Keys have a prefix cache of their own where their file does not say."""
    metrics_without_key: bool = False
    each_key: Limits = Limits()
    """Where a key's file does not say."""
    max_queued_requests: int | None = None
    """Sequences that may wait for a slot; None: any number."""
    max_queued_tokens: int | None = None
    """Prompt tokens of requests whose answer has not begun; None: any number."""

    def __repr__(self) -> str:
        return f"Access(<{len(self.api_keys)} keys>, key_file={self.key_file!r}, each_key={self.each_key!r})"

    @property
    def keyed(self) -> bool:
        """Requests want a key."""
        return bool(self.api_keys) or self.key_file is not None


def digest_of(key: bytes) -> bytes:
    """What is kept of a key. A fast hash is enough for one that nobody can guess: see docs/security.md."""
    return hashlib.sha256(key).digest()


def check_keys(keys: Iterable[str]) -> None:
    """Raise SettingsError for a key that no client could send, or that every client sends: the empty one."""
    for key in keys:
        if not key.strip():
            raise SettingsError(
                "The API key is empty, which would let everybody in; give a key, or none at all for an open server."
            )
        if not (key.isascii() and key.isprintable()) or " " in key:
            raise SettingsError(
                "An API key holds a space or a character that a header cannot carry; use visible ASCII characters."
            )


def keys_of(access: Access) -> list[Key]:
    """All keys, those of the file first: what it says of a key that is also given otherwise, holds. Raises
    SettingsError, and OSError for a file that cannot be read."""
    check_keys(access.api_keys)
    if not access.keyed and access.each_key != Limits():
        raise SettingsError(
            "There are limits for each API key, and the server has none; give --api-key-file or --api-key."
        )
    found: dict[bytes, Key] = {}
    if access.key_file is not None:
        from octavo.server.key_file import read_key_file

        found = {key.digest: key for key in read_key_file(Path(access.key_file), access)}
    for key in _given(access.api_keys, access):
        found.setdefault(key.digest, key)
    return list(found.values())


def _given(keys: Sequence[str], access: Access) -> Iterable[Key]:
    """Of the command line, the environment or a config file."""
    for number, key in enumerate(keys):
        yield Key(
            name=f"API key {number + 1}",
            digest=digest_of(key.encode()),
            profile=access.key_profiles.get(number),
            limits=access.each_key,
            own_cache=access.cache_per_key,
        )
