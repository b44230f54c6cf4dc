"""No request reaches a file, a program or an address that is not the server's own, whatever stands in which field."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import re
import site
import stat
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx2
import msgspec
import pytest

from octavo.server.app import ROUTES, _bodies
from tests.conftest import REPOSITORY
from tests.server.conftest import Server

SECRET = "what-only-the-owner-of-this-machine-may-read"


class Reach(NamedTuple):
    """A server whose processes write down what they reach for, and values that lead to a file beside its data."""

    server: Server
    log: Path
    values: tuple[str, ...]

    def events(self) -> list[tuple[str, str]]:
        return [tuple(json.loads(line)) for line in self.log.read_text().splitlines()]


@pytest.fixture(scope="module")
def reach(tiny_engine: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reach]:
    folder = tmp_path_factory.mktemp("reach")
    (folder / "path").mkdir()
    (folder / "path" / "sitecustomize.py").write_bytes(
        (REPOSITORY / "tests" / "server" / "audit_hook.py").read_bytes()
    )
    secret = folder / "secret.txt"
    secret.write_text(SECRET)
    log, data = folder / "log", folder / "data"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder / "path"))
        patch.setenv("OCTAVO_AUDIT", str(log))
        before = os.umask(0o022)
        server = Server(tiny_engine, data_dir=str(data))
        os.umask(before)
    stored = server.client.post("/v1/files", files={"file": ("a.txt", b"x")}, data={"purpose": "user_data"})
    assert stored.status_code == 200, stored.text
    for name in ("file-0", "batch_0", "resp_0"):
        (data / "files" / name).symlink_to(secret)
        (data / "batches" / name).symlink_to(secret)
    yield Reach(
        server,
        log,
        (
            str(secret),
            "../secret.txt",
            "../../secret.txt",
            "..%2f..%2fsecret.txt",
            "%2e%2e/%2e%2e/secret.txt",
            f"file://{secret}",
            "/etc/passwd",
            "../../../../../../../../etc/passwd",
            "file-0",
            f"{secret}\0.png",
            "\\\\127.0.0.1\\share\\secret.txt",
            "C:\\Windows\\win.ini",
            "http://127.0.0.1:9/secret",
            "ftp://localhost/secret",
            "/dev/zero",
            "/proc/self/environ",
            "CON",
            "| touch /tmp/octavo-was-here",
            "$(touch /tmp/octavo-was-here)",
            "{{ ''.__class__ }}",
            "octavo.cli.main",
            "~root/.ssh/id_rsa",
            "a/" * 2000,
        ),
    )
    for name in ("file-0", "batch_0", "resp_0"):
        (data / "batches" / name).unlink()
    assert server.stop() == 0


def _ask(
    server: Server, method: str, target: str, body: bytes | None = None, headers: dict[str, str] | None = None
) -> bytes:
    """As it stands: other clients would put `..` away."""
    url = httpx2.URL(server.url)
    connection = http.client.HTTPConnection(url.host, url.port or 0, timeout=60)
    try:
        connection.request(method, target, body, headers or {})
        answer = connection.getresponse()
        told = answer.read()
    finally:
        connection.close()
    assert answer.status != 500, (method, target, told)
    return told


def _targets(values: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Every route with every value for its parameters, as text and escaped, and in a query."""
    for route in ROUTES:
        methods = sorted((route.methods or {"GET"}) - {"HEAD"})
        for method, value in itertools.product(methods, values):
            if "{" in route.path:
                head, _, rest = route.path.partition("{")
                tail = rest.partition("}")[2]
                yield method, head + quote(value, safe="/%:.~") + tail
                yield method, head + quote(value, safe="") + tail
            elif method == "GET":
                yield method, f"{route.path}?after={quote(value)}&purpose={quote(value)}&model={quote(value)}"
    for value in values:
        yield "GET", "/" + quote(value, safe="/%:.~")


def _documents(values: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Every field of every body, and the places inside where another server would look something up."""
    texts = itertools.cycle(values)
    user = {"role": "user", "content": "Hello"}
    usual: dict[str, Any] = {"prompt": "Hello", "messages": [user], "input": "Hello", "max_tokens": 1}
    for path, body in _bodies().items():
        names = [field.encode_name for field in msgspec.structs.fields(body)]
        base = {name: value for name, value in usual.items() if name in names}
        for name in names:
            yield path, {**base, name: next(texts)}
            yield path, {**base, name: [next(texts)]}
        for text in values:
            schema = {"$ref": text}
            image = {"type": "image_url", "image_url": {"url": text}}
            source = {"type": "image", "source": {"type": "url", "url": text}}
            tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
            for more in (
                {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}},
                {"text": {"format": {"type": "json_schema", "name": "a", "schema": schema}}},
                {"format": schema},
                {"structured_outputs": {"grammar": f'start: "a"\n%import {text}'}},
                {"messages": [{"role": "user", "content": [image, source]}]},
                {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": text}]}]},
                {"messages": [{**user, "images": [text]}]},
                {"tools": [tool]},
                {"chat_template_kwargs": {"tools_path": text, "x": text}, "cache_salt": text},
            ):
                if more.keys() <= set(names):
                    yield path, base | more


def _roots(reach: Reach) -> list[str]:
    """Where a server has reason to look: its data, Octavo, Python and its packages."""
    places = {*sysconfig.get_paths().values(), *site.getsitepackages(), sys.prefix, sys.base_prefix + "/lib"}
    return [
        *(os.path.realpath(place) for place in places),
        str(REPOSITORY / "src"),
        str(REPOSITORY / "tests"),
        str(reach.server.data),
        str(reach.log.parent / "path"),
    ]


PROGRAMS = ("octavo.engine", "octavo.sampling.check")
"""What a server starts: a spare engine too, some time after its start."""
KERNEL = (
    "/dev/null",
    "/proc/meminfo",
    "/proc/cpuinfo",
    "/proc/self/",
    "/proc/stat",
    "/sys/fs/cgroup/",
    "/sys/devices/",
)


def _foreign(reach: Reach, events: list[tuple[str, str]]) -> set[tuple[str, str]]:
    roots = tuple(f"{root}/" for root in _roots(reach))

    def is_ours(event: str, text: str) -> bool:
        match event:
            case "os.putenv" | "os.unsetenv" | "os.fork" | "socket.gethostname" | "socket.__new__":
                return True
            case "subprocess.Popen":
                return any(f"'-P', '-m', '{name}'" in text for name in PROGRAMS)
            case "os.system" | "os.exec" | "os.posix_spawn":
                return False
            case "ctypes.dlopen":
                return text in ("None", "libc.so.6")
        if event.startswith(("socket.", "pty.")):
            return False
        if text == str(REPOSITORY) or text.startswith(KERNEL) or re.fullmatch(r"/proc/\d+/stat", text):
            return True
        return f"{os.path.realpath(text)}/".startswith(roots)

    return {one for one in events if not is_ours(*one)}


@pytest.mark.slow
def test_no_value_of_a_request_reaches_beyond_the_server(reach: Reach) -> None:
    server = reach.server
    known = len(reach.events())
    for method, target in _targets(reach.values):
        assert SECRET.encode() not in _ask(server, method, target)
    for path, document in _documents(reach.values):
        told = _ask(server, "POST", path, json.dumps(document).encode(), {"content-type": "application/json"})
        assert SECRET.encode() not in told
    for value in reach.values:
        text = value.replace("\0", "")
        for name in (
            "x-request-id",
            "content-type",
            "accept",
            "authorization",
            "host",
            "x-forwarded-for",
            "range",
        ):
            assert SECRET.encode() not in _ask(
                server, "GET", "/v1/files/file-0/content", None, {name: text[:500]}
            )
        form = {"file": (value, b"x"), "purpose": (None, b"user_data")}
        assert server.client.post("/v1/files", files=form).status_code in (200, 400)
    events = reach.events()[known:]
    assert any(event == "open" for event, _ in events)  # it is being written down
    assert _foreign(reach, events) == set()
    assert not Path("/tmp/octavo-was-here").exists()


def test_what_is_stored_is_for_this_user_alone(reach: Reach) -> None:
    data = reach.server.data
    found = [data, *data.rglob("*")]
    assert any(path.is_file() for path in found)
    for path in found:
        if path.is_symlink():
            continue
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), f"{path} has mode {mode:o}"
