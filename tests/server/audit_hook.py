"""Put on the path of a Python process as `sitecustomize`: it writes down what the process reaches for.

`OCTAVO_AUDIT` names the file: a JSON list for each event, its name and its first argument as a text.
"""

from __future__ import annotations

import json
import os
import sys

_PREFIXES = (
    "open",
    "os.",
    "shutil.",
    "socket.",
    "subprocess.",
    "sqlite3.connect",
    "ctypes.dlopen",
    "glob.",
    "pty.",
)
_handle = os.open(os.environ["OCTAVO_AUDIT"], os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _hook(event: str, arguments: tuple[object, ...]) -> None:
    if not event.startswith(_PREFIXES) or not arguments:
        return
    first = arguments[1] if event in ("subprocess.Popen", "socket.connect") else arguments[0]
    if isinstance(first, bytes):
        first = os.fsdecode(first)
    elif isinstance(first, os.PathLike):
        first = os.fspath(first)
    if isinstance(first, int):
        return  # a descriptor, or a socket's family
    os.write(_handle, (json.dumps([event, first if isinstance(first, str) else repr(first)]) + "\n").encode())


sys.addaudithook(_hook)
