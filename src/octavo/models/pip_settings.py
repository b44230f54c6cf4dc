"""What pip is set up with, asked from pip through its own commands. Knows no package."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import urllib.parse
from dataclasses import dataclass

__all__ = ["PipSettings", "parse_pip_settings", "read_pip_settings"]

_LINE = re.compile(r"^(:env:|[\w-]+)\.([\w-]+)=(.+)$")
_PRECEDENCE = {"global": 0, "download": 1, ":env:": 2}
_DEFAULT_INDEX = re.compile(r"\(default\s+(https?://[^\s)]+)\)")
_ONLY_PIP = ("client-cert", "keyring-provider", "no-index", "trusted-host")
"""Settings that change how pip connects in ways that are its own."""


@dataclass(frozen=True)
class PipSettings:
    """How to reach the package indexes."""

    indexes: tuple[str, ...]
    """Addresses over HTTP(S), the first first; folders (`file:`) are left out."""
    cafile: str | None
    proxy: str | None
    timeout_s: float
    odd: str
    """Why only pip itself can use these settings, or ""."""


def read_pip_settings() -> PipSettings:
    """Ask this Python's pip. Never raises: what cannot be asked makes the settings odd."""
    config = _pip("config", "list")
    return parse_pip_settings(config, _pip("download", "--help") if ".index-url=" not in config else "")


def parse_pip_settings(config: str, download_help: str) -> PipSettings:
    """`config`: the lines of `pip config list`. `download_help`: those of `pip download --help`, which name
    the index that pip takes where no setting says another."""
    values: dict[str, str] = {}
    ranks: dict[str, int] = {}
    for section, key, literal in filter(None, (_parse_line(line) for line in config.splitlines())):
        rank = _PRECEDENCE.get(section, -1)
        if rank >= ranks.get(key, 0):
            values[key], ranks[key] = literal, rank

    index = values.get("index-url")
    if index is None:
        named = _DEFAULT_INDEX.search(" ".join(download_help.split()))
        index = named[1] if named else ""
    indexes = [index, *values.get("extra-index-url", "").split()]
    odd = next((f"{key} is set" for key in _ONLY_PIP if key in values), "")
    if any(urllib.parse.urlsplit(each).username for each in indexes):
        odd = "an index needs a login"
    over_http = tuple(each for each in indexes if each.startswith(("http://", "https://")))
    if not over_http:
        odd = odd or "no index over HTTP is known"
    return PipSettings(
        indexes=over_http,
        cafile=values.get("cert"),
        proxy=values.get("proxy"),
        timeout_s=_seconds(values.get("default-timeout") or values.get("timeout")),
        odd=odd,
    )


def _parse_line(line: str) -> tuple[str, str, str] | None:
    match = _LINE.match(line)
    if match is None:
        return None
    section, key, literal = match.groups()
    try:
        return section, key.lower().replace("_", "-"), str(ast.literal_eval(literal))
    except (ValueError, SyntaxError):
        return None


def _seconds(value: str | None) -> float:
    try:
        return float(value) if value else 15.0
    except ValueError:
        return 15.0


def _pip(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pip", *arguments],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    return done.stdout if done.returncode == 0 else ""
