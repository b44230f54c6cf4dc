"""Pages of other sites and names that others gave the server: refused where no key says who asks."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from octavo.errors import SettingsError
from octavo.server.access import Access
from octavo.server.edge import Edge, check_hosts
from octavo.server.keys import Keys
from octavo.server.pages import PageCheck
from tests.server.conftest import Server
from tests.server.test_errors import error_of

BODY = b'{"prompt": "Hello", "max_tokens": 1}'


def _blind(server: Server, **headers: str) -> httpx2.Response:
    """What any page can send without asking first: a form, or text."""
    return server.client.post(
        "/v1/completions", content=BODY, headers={"content-type": "text/plain", **headers}
    )


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "http://evil.example:8000",
        "null",
        "chrome-extension://abcdef",
        "http://localhost.evil.example",
        "http://127.0.0.1.evil.example",
        "http://localhost@evil.example",
        "http://192.168.0.1",
        "",
        "http://[",
    ],
)
def test_a_page_of_another_site_computes_and_stores_nothing(server: Server, origin: str) -> None:
    before = server.metrics()
    error = error_of(_blind(server, origin=origin), 403)
    assert error["code"] == "origin_not_allowed"
    assert "--cors-origin" in error["message"]
    form = server.client.post(
        "/v1/files",
        files={"file": ("a.txt", b"x")},
        data={"purpose": "user_data"},
        headers={"origin": origin},
    )
    error_of(form, 403)
    after = server.metrics()
    refused = 'octavo_requests_refused_total{,reason="page"}'
    assert after[refused] == before[refused] + 2
    assert after["vllm:prompt_tokens_total"] == before["vllm:prompt_tokens_total"]


def test_programs_of_this_machine_and_the_server_s_own_page_may_ask(server: Server) -> None:
    own = server.url
    for origin in (
        own,
        "http://localhost:5173",
        "https://127.0.0.1",
        "http://[::1]:9",
        "app://obsidian.md",
        "vscode-webview://0a1b",
    ):
        assert _blind(server, origin=origin).status_code == 200
    assert _blind(server).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8000",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "",
        ":8000",
        "[",
    ],
)
def test_a_name_that_was_made_to_mean_this_machine_reads_nothing(server: Server, host: str) -> None:
    """DNS rebinding: to the browser it is the page's own site, so there may be no origin at all."""
    for path in ("/v1/models", "/v1/files", "/metrics", "/docs"):
        error = error_of(server.client.get(path, headers={"host": host}), 403)
        assert error["code"] == "host_not_allowed"
        assert "--allowed-host" in error["message"]
    error_of(_blind(server, host=host, origin=f"http://{host}"), 403)


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:8000",
        "localhost.",
        "a.localhost",
        "[::1]:8000",
        "192.168.1.7",
        "host.docker.internal:8000",
        "desk.local",
        socket.gethostname(),
    ],
)
def test_names_that_nobody_else_can_give_are_answered(server: Server, host: str) -> None:
    assert server.client.get("/v1/models", headers={"host": host}).status_code == 200


def test_a_request_without_a_host_is_no_browser_s(server: Server) -> None:
    address = httpx2.URL(server.url)
    assert address.port is not None
    with socket.create_connection((address.host, address.port)) as connection:
        connection.sendall(b"GET /version HTTP/1.0\r\n\r\n")
        assert b" 200 " in connection.makefile("rb").readline()


@pytest.fixture(scope="module")
def named(tiny_engine: dict[str, Any]) -> Iterator[Server]:
    edge = {"hosts": ["LLM.example.org"], "origins": ["https://app.example.org"]}
    server = Server(tiny_engine, edge=edge)
    yield server
    assert server.stop() == 0


def test_what_is_allowed_may_ask(named: Server) -> None:
    assert _blind(named, host="llm.example.org", origin="https://llm.example.org").status_code == 200
    assert _blind(named, origin="https://app.example.org").status_code == 200
    error_of(_blind(named, origin="https://other.example.org"), 403)
    error_of(_blind(named, host="other.example.org"), 403)
    assert named.client.get("/v1/models").status_code == 200


async def _asks(headers: dict[bytes, bytes], *, keyed: bool = False, local: bool = True, **edge: Any) -> bool:
    """Whether a request with these headers comes through."""
    came = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        came.append(scope)

    async def nothing(message: Any = None) -> Any:
        return message

    keys = Keys()
    keys.keyed = keyed
    check = PageCheck(app, keys=keys, edge=Edge(**edge), local=local, told=lambda reason: None)
    await check({"type": "http", "path": "/", "headers": list(headers.items())}, nothing, nothing)
    return bool(came)


async def test_a_key_is_enough_and_comes_and_goes_while_the_server_runs() -> None:
    assert await _asks({b"host": b"evil.example", b"origin": b"http://evil.example"}, keyed=True)
    assert not Access().keyed
    assert not await _asks({b"host": b"evil.example", b"origin": b"http://evil.example"})


async def test_a_server_for_other_machines_has_names_that_it_does_not_know() -> None:
    assert await _asks({b"host": b"octavo:8000"}, local=False)
    assert not await _asks({b"host": b"octavo.example:8000"}, local=False, hosts=("llm.example.org",))
    assert not await _asks({b"host": b"octavo:8000", b"origin": b"http://evil.example"}, local=False)
    assert await _asks({b"host": b"x.example", b"origin": b"https://y.example"}, hosts=("*",), origins=("*",))


def test_hosts_are_names_alone() -> None:
    assert check_hosts(["a.example", "B", "*", "a.example"]) == ("a.example", "B", "*")
    for wrong in ("http://a.example", "a.example:80", "a.example/", "", "*.example", "a b"):
        with pytest.raises(SettingsError, match="--allowed-host"):
            check_hosts([wrong])
