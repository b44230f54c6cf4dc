"""Pages of other sites: which may ask, what a browser is told, and that errors can be read too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from octavo.errors import SettingsError
from octavo.server.edge import check_origins
from tests.server.conftest import Server

PAGE = "https://app.example.org"
OTHER = "http://localhost:5173"
KEY = {"authorization": "Bearer secret"}
_ASKS = {
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-stainless-lang",
}


@pytest.fixture(scope="module")
def open_to_pages(tiny_engine: dict[str, Any]) -> Iterator[Server]:
    server = Server(tiny_engine, access={"api_keys": ["secret"]}, edge={"origins": [PAGE, OTHER]})
    yield server
    assert server.stop() == 0


def _preflight(server: Server, origin: str, **headers: str) -> httpx2.Response:
    return server.client.options("/v1/chat/completions", headers={"origin": origin, **_ASKS, **headers})


def test_a_browser_may_ask_before_it_shows_a_key(open_to_pages: Server) -> None:
    for page in (PAGE, OTHER):
        told = _preflight(open_to_pages, page)
        assert told.status_code == 200
        assert told.headers["access-control-allow-origin"] == page
        assert "POST" in told.headers["access-control-allow-methods"]
        assert "authorization" in told.headers["access-control-allow-headers"]
        assert "access-control-allow-credentials" not in told.headers


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", f"{PAGE}.evil.example", "http://app.example.org"]
)
def test_other_pages_may_not(open_to_pages: Server, origin: str) -> None:
    told = _preflight(open_to_pages, origin)
    assert told.status_code == 400
    assert "access-control-allow-origin" not in told.headers
    answer = open_to_pages.client.get("/v1/models", headers={"origin": origin, **KEY})
    assert answer.status_code == 200
    assert "access-control-allow-origin" not in answer.headers


def test_a_page_can_read_answers_streams_and_every_error(open_to_pages: Server) -> None:
    client, headers = open_to_pages.client, {"origin": PAGE, **KEY}
    body = {"prompt": "Hello", "max_tokens": 2}
    for answer, status in (
        (client.post("/v1/completions", json=body, headers=headers), 200),
        (client.post("/v1/completions", json={**body, "stream": True}, headers=headers), 200),
        (client.post("/v1/completions", json=body, headers={"origin": PAGE}), 401),
        (client.post("/v1/completions", json={"prompt": 5}, headers=headers), 400),
        (client.post("/v1/completions", content=b"", headers={**headers, "content-encoding": "br"}), 415),
        (client.get("/nowhere", headers=headers), 404),
        (client.get("/v1/completions", headers=headers), 405),
        (client.get("/health", headers={"origin": PAGE}), 200),
    ):
        assert answer.status_code == status
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert "origin" in answer.headers["vary"].lower()
        exposed = answer.headers["access-control-expose-headers"]
        assert all(
            name in exposed
            for name in ("x-request-id", "retry-after", "x-ratelimit-remaining-tokens", "x-octavo-tier")
        )


def test_without_an_origin_of_its_own_nothing_is_said(server: Server) -> None:
    told = _preflight(server, PAGE)
    assert told.status_code == 403
    answer = server.client.get("/v1/models", headers={"origin": OTHER})
    assert answer.status_code == 200
    assert not [name for name in (*told.headers, *answer.headers) if name.startswith("access-control")]


def test_origins_are_what_browsers_send() -> None:
    given = [PAGE, OTHER, PAGE, '["http://[::1]:80", "*"]'.replace(":80", ":81"), "chrome-extension://abcdef"]
    assert check_origins(given) == (PAGE, OTHER, "http://[::1]:81", "*", "chrome-extension://abcdef")
    for wrong, reason in (
        ("https://a.example/", "slash"),
        ("https://A.example", "lower case"),
        ("https://a.example:443", "leave the port out"),
        ("a.example", "scheme"),
        ("https://a.example/path", "scheme"),
        ("https://*.example", "scheme"),
        ("null", "scheme"),
        ("", "scheme"),
        ("[1]", "JSON list"),
    ):
        with pytest.raises(SettingsError, match=reason):
            check_origins([wrong])
