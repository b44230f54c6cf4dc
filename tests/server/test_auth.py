"""Case 34: no route but health answers without a key, whatever the method, and every one does with one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from octavo.server.app import ROUTES
from tests.server.conftest import Server

HEALTH = ("/health", "/health/live", "/health/ready")
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND")
WRONG: tuple[dict[str, str], ...] = (
    {},
    {"authorization": ""},
    {"authorization": "Bearer"},
    {"authorization": "Bearer wrong-key"},
    {"authorization": "Bearer first-ke"},
    {"authorization": "Bearer first-keyy"},
    {"authorization": "Bearer first-key second-key"},
    {"authorization": "Basic first-key"},
    {"authorization": "first-key"},
    {"x-api-key": ""},
    {"x-api-key": "wrong-key"},
    {"x-api-key": "Bearer first-key"},
    {"cookie": "api_key=first-key"},
)
RIGHT: tuple[dict[str, str], ...] = (
    {"authorization": "Bearer first-key"},
    {"authorization": "bearer   second-key"},
    {"x-api-key": "second-key"},
)


@pytest.fixture(scope="module")
def keyed(tiny_engine: dict[str, Any]) -> Iterator[Server]:
    server = Server(tiny_engine, access={"api_keys": ["first-key", "second-key"]})
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="module")
def document(keyed: Server) -> dict[str, Any]:
    made: dict[str, Any] = keyed.client.get("/openapi.json", headers=RIGHT[0]).json()
    return made


def filled(path: str) -> str:
    return re.sub(r"\{[^}]*\}", "some-id", path)


def is_refusal(server: Server, method: str, path: str, headers: dict[str, str]) -> bool:
    """A 401, and then in the words of the API that was asked, without a trace of what is there."""
    reply = server.client.request(method, path, headers=headers)
    if reply.status_code != 401:
        return False
    assert reply.headers["www-authenticate"] == "Bearer"
    if method != "HEAD":
        error = reply.json()["error"]
        told = error if isinstance(error, str) else (error.get("code") or error["type"])
        assert told in ("invalid_api_key", "authentication_error") or "key is missing" in told
    return True


def test_the_document_names_the_key_of_every_operation(document: dict[str, Any]) -> None:
    assert document["security"] == [{"bearer": []}, {"header": []}]
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert (operation.get("security") == []) == (path in HEALTH)
            assert ("401" in operation["responses"]) == (path not in HEALTH)


def test_every_operation_wants_a_key(keyed: Server, document: dict[str, Any]) -> None:
    asked = [
        (method.upper(), filled(path)) for path, methods in document["paths"].items() for method in methods
    ]
    assert len(asked) >= 40
    for method, path in asked:
        for headers in WRONG[:4] + WRONG[-3:-2]:
            assert is_refusal(keyed, method, path, headers) == (path not in HEALTH), (method, path, headers)
        for headers in RIGHT:
            assert not is_refusal(keyed, method, path, headers), (method, path)


def test_so_does_all_that_the_document_does_not_have(keyed: Server) -> None:
    """Its page, routes beside it, methods that no route has, paths that are none, and paths that are almost health."""
    routes = {filled(re.sub(r":[a-z_]+\}", "}", route.path)) for route in ROUTES}
    strange = (
        "/",
        "/docs/swagger-ui.css",
        "/nothing",
        "/health/",
        "//health",
        "/Health",
        "/health/x",
        "/v1",
        "/metrics/",
    )
    for path in {*routes, *strange}:
        for method in METHODS:
            expected = path not in HEALTH
            assert is_refusal(keyed, method, path, {}) == expected, (method, path)
            assert not is_refusal(keyed, method, path, RIGHT[0]), (method, path)


def test_a_key_is_right_or_wrong_as_a_whole(keyed: Server) -> None:
    assert all(is_refusal(keyed, "GET", "/v1/models", headers) for headers in WRONG)
    assert not any(is_refusal(keyed, "GET", "/v1/models", headers) for headers in RIGHT)
    with keyed.openai(api_key="second-key") as client:
        assert client.models.list().data[0].id == "tiny"
    with keyed.openai(api_key="third-key") as client, pytest.raises(openai.AuthenticationError):
        client.models.list()


def test_refusals_are_counted(keyed: Server) -> None:
    def counted() -> float:
        lines = keyed.client.get("/metrics", headers=RIGHT[0]).text.splitlines()
        [line] = [
            line for line in lines if line.startswith("octavo_requests_refused_total") and '"key"' in line
        ]
        return float(line.rsplit(" ", 1)[1])

    before = counted()
    assert is_refusal(keyed, "GET", "/metrics", {})
    assert counted() == before + 1


def test_metrics_may_be_open(tiny_engine: dict[str, Any]) -> None:
    server = Server(tiny_engine, access={"api_keys": ["first-key"], "metrics_without_key": True})
    assert server.client.get("/metrics").status_code == 200
    for path in ("/report", "/metrics/", "/v1/models"):
        assert is_refusal(server, "GET", path, {})
    paths = server.client.get("/openapi.json", headers=RIGHT[0]).json()["paths"]
    assert paths["/metrics"]["get"]["security"] == [] and "security" not in paths["/report"]["get"]
    assert server.stop() == 0
