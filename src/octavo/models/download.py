"""Fetches one file over HTTP, resuming where an earlier attempt stopped. Knows no registry and no model.

The bytes grow in `<target>.part`; only a file of the right hash gets its name. Servers behind package indexes
send no ETag, so a resumed file that turns out wrong is fetched once more from its beginning.
"""

from __future__ import annotations

import hashlib
import http.client
import ssl
import urllib.error
import urllib.request
from pathlib import Path

from octavo.errors import ModelError
from octavo.models.cache import Progress

__all__ = ["Opener", "download"]

_CHUNK = 1 << 18
_ATTEMPTS = 5
"""Connections without a single new byte that are borne in a row."""


class Opener:
    """Opens URLs with one set of network settings. Raises OSError (urllib's errors are of that kind)."""

    def __init__(
        self, *, cafile: str | None = None, proxy: str | None = None, timeout_s: float = 30, agent: str
    ) -> None:
        """`cafile`: certificates instead of the system's; `proxy`: instead of the environment's."""
        context = ssl.create_default_context(cafile=cafile)
        handlers: list[urllib.request.BaseHandler] = [urllib.request.HTTPSHandler(context=context)]
        if proxy:
            handlers.append(urllib.request.ProxyHandler({"http": proxy, "https": proxy}))
        self._opener = urllib.request.build_opener(*handlers)
        self._timeout_s = timeout_s
        self._agent = agent

    def open(self, url: str, **headers: str) -> http.client.HTTPResponse:
        """GET. Keywords are headers, with `_` for `-`."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(url, headers={"User-Agent": self._agent} | named)
        response = self._opener.open(request, timeout=self._timeout_s)
        assert isinstance(response, http.client.HTTPResponse)
        return response


def download(
    opener: Opener, url: str, target: Path, *, sha256: str | None, progress: Progress | None = None
) -> None:
    """Fetch `url` to `target`. Raises OSError when the network or the disk fails, with what came so far kept
    for the next call, and ModelError when the bytes are not those of `sha256`.
    """
    part = target.with_name(f"{target.name}.part")
    found = ""
    for _ in range(2 if part.exists() else 1):
        _fetch_all(opener, url, part, target.name, progress)
        found = _sha256(part)
        if sha256 is None or found == sha256:
            part.replace(target)
            return
        part.unlink()
    raise ModelError(
        f"'{target.name}' was downloaded with sha256 {found}, it should have {sha256}; the file is removed, "
        "try again or from another network."
    )


def _fetch_all(opener: Opener, url: str, part: Path, what: str, progress: Progress | None) -> None:
    """Append to `part` until it is whole, over as many connections as bring it forward."""
    failures = 0
    while True:
        before = part.stat().st_size if part.exists() else 0
        try:
            if _fetch_some(opener, url, part, before, what, progress):
                return
            reason: Exception = ConnectionError("the connection ended early")
        except urllib.error.HTTPError as error:
            if error.code != 416 or not before:
                raise
            if error.headers.get("Content-Range", "") == f"bytes */{before}":  # nothing is missing
                return
            part.unlink()  # longer than the file: the beginning of another one
            continue
        except (http.client.HTTPException, ConnectionError, TimeoutError, ssl.SSLError) as error:
            reason = error
        after = part.stat().st_size if part.exists() else 0
        failures = 0 if after > before else failures + 1
        if failures == _ATTEMPTS:
            raise ConnectionError(f"{_ATTEMPTS} connections in a row brought nothing ({reason})")


def _fetch_some(
    opener: Opener, url: str, part: Path, have: int, what: str, progress: Progress | None
) -> bool:
    """One connection. True when the file is whole, False when the connection ended before."""
    with opener.open(url, **({"Range": f"bytes={have}-"} if have else {})) as response:
        if response.status != 206:  # the whole file, whatever was asked for
            have = 0
        elif not response.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            raise ConnectionError(f"asked for bytes from {have}, got {response.headers.get('Content-Range')}")
        left = response.headers.get("Content-Length")
        total = have + int(left) if left is not None else 0
        with part.open("ab" if have else "wb") as file:
            while chunk := response.read(_CHUNK):
                file.write(chunk)
                have += len(chunk)
                if progress is not None:
                    progress(have, max(total, have), f"downloading {what}")
    return left is None or have == total


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
