"""The key file: TOML, a table for each key with its hash and what it may use. Knows no server and no plain key.

[keys.alice]
hash = "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
tokens-per-minute = 20000
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import re
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from octavo.config import ProfileName
from octavo.errors import SettingsError
from octavo.server.access import Access, Key, Limits

__all__ = ["KeyEntry", "add_entry", "entries_of", "read_key_file", "remove_entry", "warn_of_key_file"]

_logger = logging.getLogger(__name__)

_HASH = re.compile(r"sha256:([0-9a-f]{64})", re.ASCII)
_BARE = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_HEADER = re.compile(r"\s*\[")
_MAX_NAME = 64

_Count = Annotated[int, msgspec.Meta(ge=1, le=10**12)]


class KeyEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """What the file says of one key."""

    hash: str
    profile: ProfileName | None = None
    max_requests: _Count | None = None
    """At once."""
    requests_per_minute: _Count | None = None
    tokens_per_minute: _Count | None = None
    cache_scope: Literal["key", "server"] | None = None


def read_key_file(path: Path, access: Access) -> list[Key]:
    """Its keys; what an entry does not say is as `access` has it. Raises SettingsError and OSError."""
    entries = entries_of(path)
    return [
        Key(
            name=name,
            digest=bytes.fromhex(entry.hash.removeprefix("sha256:")),
            profile=entry.profile,
            limits=Limits(
                max_requests=entry.max_requests,
                requests_per_minute=entry.requests_per_minute,
                tokens_per_minute=entry.tokens_per_minute,
            ).over(access.each_key),
            own_cache=access.cache_per_key if entry.cache_scope is None else entry.cache_scope == "key",
        )
        for name, entry in entries.items()
    ]


def entries_of(path: Path) -> dict[str, KeyEntry]:
    """By name. No message has a key or a hash in it. Raises SettingsError and OSError."""
    return _entries(path, path.read_bytes())


def add_entry(path: Path, name: str, entry: KeyEntry) -> None:
    """Write one more; where there is no file it is made, for this user alone. Raises SettingsError and OSError."""
    if not name or len(name) > _MAX_NAME or not name.isprintable():
        raise SettingsError(
            f"A key's name is {name[:80]!r}; it must have 1 to {_MAX_NAME} visible characters."
        )
    with _changing(path) as before:
        entries = _entries(path, before)
        if name in entries:
            raise SettingsError(
                f"{path} has a key named {name!r} already; choose another name, or remove it first."
            )
        same = next((other for other, known in entries.items() if known.hash == entry.hash), None)
        if same is not None:
            raise SettingsError(f"{path} has this key already, as {same!r}.")
        values = {field: value for field, value in msgspec.to_builtins(entry).items() if value is not None}
        lines = [
            f"[keys.{_quoted(name)}]",
            *(f"{field} = {json.dumps(value, ensure_ascii=False)}" for field, value in values.items()),
        ]
        text = before.decode().rstrip("\n")
        _replace(path, (f"{text}\n\n" if text else "") + "\n".join(lines) + "\n")


def remove_entry(path: Path, name: str) -> None:
    """Take one out and leave all else as it stands. Raises SettingsError and OSError."""
    with _changing(path) as before:
        entries = _entries(path, before)
        if name not in entries:
            raise SettingsError(
                f"{path} has no key named {name!r}; octavo key list {path} shows those that it has."
            )
        del entries[name]
        text = _without(before.decode(), name)
        try:
            right = text is not None and _entries(path, text.encode()) == entries
        except SettingsError:
            right = False
        if not right or text is None:
            raise SettingsError(f"{path} is not laid out as octavo key writes it; take {name!r} out by hand.")
        _replace(path, text)


def _entries(path: Path, data: bytes) -> dict[str, KeyEntry]:
    try:
        tables = tomllib.loads(data.decode())
    except ValueError as error:  # what is no UTF-8 among them; tomllib tells places, no content
        reason = str(error).rstrip(".")
        raise SettingsError(
            f"{path} cannot be read as TOML: {reason}. It holds a table [keys.NAME] for each key; plain keys go into "
            "it by octavo key add, which hashes them."
        ) from None
    keys = tables.pop("keys", {})
    if tables or not isinstance(keys, dict):
        other = min(tables, default="keys")
        raise SettingsError(f"{path}: {other[:60]!r} is no table [keys.NAME]; a key file holds nothing else.")
    entries: dict[str, KeyEntry] = {}
    names: dict[str, str] = {}
    for name, table in keys.items():
        entry = entries[name] = _entry(path, name, table)
        if entry.hash in names:
            raise SettingsError(
                f"{path}: {names[entry.hash]!r} and {name!r} are the same key; leave one out."
            )
        names[entry.hash] = name
    return entries


def _entry(path: Path, name: str, table: Any) -> KeyEntry:
    if not name or len(name) > _MAX_NAME or not name.isprintable():
        raise SettingsError(
            f"{path}: a key's name is {name[:80]!r}; it must have 1 to {_MAX_NAME} visible characters."
        )
    add = f"octavo key add {path} {name}"
    if not isinstance(table, dict):
        raise SettingsError(
            f"{path}: {name!r} is no table; a plain key is written by {add}, which hashes it."
        )
    table = {field.replace("_", "-"): value for field, value in table.items()}
    if "key" in table:
        raise SettingsError(
            f"{path}: {name!r} has a plain key; only hashes are kept: take the key out and write it by {add}."
        )
    if "hash" not in table:
        raise SettingsError(f"{path}: {name!r} has no hash; write one by {add}.")
    if not (isinstance(table["hash"], str) and _HASH.fullmatch(table["hash"])):
        raise SettingsError(
            f"{path}: the hash of {name!r} is no 'sha256:' with 64 hexadecimal digits; if it is the plain key, take it "
            f"out and write it by {add}."
        )
    try:
        return msgspec.convert(table, KeyEntry)
    except msgspec.ValidationError as error:
        raise SettingsError(f"{path}: the key {name!r}: {error}.") from None


def _without(text: str, name: str) -> str | None:
    """The text without the table of `name`: from its header to the next one. None where it has no such header."""
    lines = text.splitlines(keepends=True)
    header = re.compile(rf"\s*\[\s*keys\s*\.\s*({re.escape(name)}|{re.escape(_quoted(name))})\s*\]")
    first = next((place for place, line in enumerate(lines) if header.match(line)), None)
    if first is None:
        return None
    last = next((place for place in range(first + 1, len(lines)) if _HEADER.match(lines[place])), len(lines))
    while last > first + 1 and last < len(lines) and lines[last - 1].lstrip().startswith("#"):
        last -= 1  # a comment right above the next header is that one's
    return "".join([*lines[:first], *lines[last:]])


def _quoted(name: str) -> str:
    return name if _BARE.fullmatch(name) else json.dumps(name, ensure_ascii=False)


@contextlib.contextmanager
def _changing(path: Path) -> Iterator[bytes]:
    """What the file holds, while nobody else changes it."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        try:
            before = path.read_bytes()
        except FileNotFoundError:
            before = b""
        yield before
    finally:
        os.close(folder)


def _replace(path: Path, text: str) -> None:
    """At once: a server that reads it meets the old file or the new one. Where a link leads, the link stays."""
    path = path.resolve()
    with contextlib.ExitStack() as undo:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # for this user alone
        new = Path(name)
        undo.callback(new.unlink)
        undo.callback(os.close, handle)
        with contextlib.suppress(FileNotFoundError):
            known = path.stat()
            os.fchmod(handle, known.st_mode & 0o7777)
            with contextlib.suppress(PermissionError):
                os.fchown(handle, known.st_uid, known.st_gid)
        new.write_text(text, encoding="utf-8")
        os.fsync(handle)
        new.replace(path)
        os.close(handle)
        undo.pop_all()


def warn_of_key_file(path: Path) -> None:
    """Log what is odd about a file that was read: others can read or write it."""
    mode = path.stat().st_mode
    if mode & 0o022:
        _logger.warning(
            "%s can be changed by other users, who could let themselves in: chmod 600 %s", path, path
        )
    elif mode & 0o044:
        _logger.warning("%s can be read by other users; it holds only hashes, but chmod 600 %s", path, path)
