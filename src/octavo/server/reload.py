"""Settings that are read again while the server runs: what changed, in one line of the log. Knows no signal."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from octavo.errors import OctavoError, SettingsError
from octavo.server.access import Access, Key, Limits, keys_of
from octavo.server.admission import Admission
from octavo.server.key_file import warn_of_key_file
from octavo.server.keys import Keys

__all__ = ["Reload"]

_logger = logging.getLogger(__name__)

_OF_SERVER = ("max_queued_requests", "max_queued_tokens", "metrics_without_key")


class Reload:
    """Holds the settings that are in force, and puts others in their place. What cannot be read changes nothing."""

    def __init__(
        self,
        keys: Keys,
        admission: Admission,
        access: Access,
        known: Sequence[Key],
        reread: Callable[[], Access] | None = None,
    ) -> None:
        """`known`: the keys of `access`. `reread`: where it comes from; it may block, and raise OctavoError and
        OSError."""
        self._keys = keys
        self._admission = admission
        self._access = access
        self._known = list(known)
        self._reread = reread or (lambda: access)
        self._task: asyncio.Task[None] | None = None
        self._again = False
        self._apply(access, known)

    def begin(self) -> None:
        """Read again, now, or as soon as what is being read is through."""
        self._again = True
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while self._again:
            self._again = False
            try:
                access, known = await asyncio.to_thread(self._read)
            except (OctavoError, OSError) as error:
                _logger.error("the settings stay as they are: %s", _told(error))
                continue
            except Exception:
                _logger.exception("the settings stay as they are")
                continue
            changes = list(_changes(self._access, access, self._known, known))
            self._apply(access, known)
            _logger.warning("settings read again: %s", "; ".join(changes) or "nothing has changed")

    def _read(self) -> tuple[Access, list[Key]]:
        access = self._reread()
        if self._access.keyed and not access.keyed:
            raise SettingsError(
                "there is no API key any more, which would let everybody in; start the server without keys for that."
            )
        return access, keys_of(access)

    def _apply(self, access: Access, known: Sequence[Key]) -> None:
        self._access, self._known = access, list(known)
        self._keys.change(access, known)
        self._admission.change(access)
        if access.key_file is not None:
            warn_of_key_file(Path(access.key_file))
        if access.keyed and not known:
            _logger.warning(
                "%s has no keys, so nobody may ask; make one: octavo key new %s NAME",
                access.key_file,
                access.key_file,
            )


def _changes(before: Access, after: Access, known: Sequence[Key], now: Sequence[Key]) -> Iterator[str]:
    """In words; names of keys, never a key or its hash."""
    old, new = ({key.digest: key for key in keys} for keys in (known, now))
    for what, digests, of in (
        ("keys added", new.keys() - old.keys(), new),
        ("removed", old.keys() - new.keys(), old),
    ):
        if digests:
            yield f"{what}: {', '.join(sorted(of[digest].name for digest in digests))}"
    for digest, key in new.items():
        if digest in old and (told := list(_key_changes(old[digest], key))):
            yield f"key {old[digest].name}: {', '.join(told)}"
    for name in _OF_SERVER:
        if (was := getattr(before, name)) != (is_now := getattr(after, name)):
            yield _change(name, was, is_now)


def _key_changes(before: Key, after: Key) -> Iterator[str]:
    for name in ("name", "profile", "own_cache"):
        if (was := getattr(before, name)) != (is_now := getattr(after, name)):
            yield _change(name, was, is_now)
    for name in Limits.__struct_fields__:
        if (was := getattr(before.limits, name)) != (is_now := getattr(after.limits, name)):
            yield _change(name, was, is_now)


def _change(name: str, before: object, after: object) -> str:
    shown = ("none" if value is None else str(value) for value in (before, after))
    return f"{name.replace('_', '-')} {' → '.join(shown)}"


def _told(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}"
    return str(error)
