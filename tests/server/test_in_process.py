"""Requests from within the server: the same answers, as whom they are asked, and whoever waits may leave."""

from __future__ import annotations

import asyncio
import logging

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from octavo.server import errors
from octavo.server.access import Access, keys_of
from octavo.server.auth import KeyCheck
from octavo.server.in_process import PROFILE, ask
from octavo.server.keys import CACHE_SCOPE, OWNER, READS, TENANT, Keys

ACCESS = Access(api_keys=("one", "two"))
KEYS = Keys(ACCESS, keys_of(ACCESS))


async def echo(request: Request) -> Response:
    """What arrived."""
    names = (TENANT, OWNER, READS, CACHE_SCOPE, PROFILE)
    told = {name: request.scope.get(name) for name in names}
    return JSONResponse({"body": (await request.body()).decode(), **told}, headers={"X-Request-Id": "r"})


async def fail(request: Request) -> Response:
    """An error that nobody expects."""
    raise LookupError


async def stream(request: Request) -> Response:
    """In pieces."""
    return StreamingResponse((part for part in (b"a", b"b")), 201)


def app(keys: Keys | None = None) -> Starlette:
    made = Starlette(
        routes=[Route("/echo", echo, methods=["POST"]), Route("/fail", fail), Route("/stream", stream)],
        middleware=[Middleware(KeyCheck, keys=keys or Keys())],
    )
    errors.install(made)
    return made


async def test_the_app_is_asked_as_somebody() -> None:
    one, two = KEYS.identities.values()
    reply = await ask(app(KEYS), "/echo", b"{}", identity=two)
    assert (reply.status, reply.headers["x-request-id"]) == (200, "r")
    names = (TENANT, OWNER, READS, CACHE_SCOPE)
    told = JSONResponse({"body": "{}", **{name: two[name] for name in names}, PROFILE: "batch"}).body
    assert reply.body == told
    assert one[TENANT] != two[TENANT] and one[OWNER] != two[OWNER] and one[CACHE_SCOPE] != two[CACHE_SCOPE]


async def test_without_an_identity_it_is_a_request_without_a_key() -> None:
    assert (await ask(app(KEYS), "/echo", b"{}", identity={})).status == 401
    reply = await ask(app(), "/echo", b"{}", identity={}, profile=None)
    assert reply.status == 200 and b'"octavo.profile":null' in reply.body


async def test_errors_and_streams_are_whole_answers(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.CRITICAL):
        reply = await ask(app(), "/fail", b"", identity={}, method="GET")
    assert reply.status == 500 and b'"internal_error"' in reply.body
    assert (await ask(app(), "/stream", b"", identity={}, method="GET"))[::2] == (201, b"ab")
    assert (await ask(app(), "/nowhere", b"", identity={})).status == 404


async def test_who_waits_may_leave() -> None:
    begun, left = asyncio.Event(), asyncio.Event()

    async def endless(request: Request) -> Response:
        begun.set()
        try:
            while (await request.receive())["type"] != "http.disconnect":
                pass
        finally:
            left.set()
        return Response()

    task = asyncio.create_task(
        ask(Starlette(routes=[Route("/", endless)]), "/", b"", identity={}, method="GET")
    )
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert left.is_set()
