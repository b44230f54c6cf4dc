"""Requests from within the server, through the same routes as those that come by HTTP. Knows ASGI, no route."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple

from starlette.types import ASGIApp, Message

from octavo.config import ProfileName

__all__ = ["PROFILE", "Reply", "ask"]

PROFILE = "octavo.profile"
"""Where the ASGI scope of a request from within says its profile, whatever its body says. It finds room in every queue:
who sends such requests bounds their number."""


class Reply(NamedTuple):
    """A whole answer."""

    status: int
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes


async def ask(
    app: ASGIApp,
    path: str,
    body: bytes,
    *,
    identity: Mapping[str, Any],
    profile: ProfileName | None = "batch",
    method: str = "POST",
) -> Reply:
    """What `app` answers, byte for byte what HTTP would give. Cancelled, it is a client that leaves.

    `identity`: who asks, see `auth.identities`; {} on a server without keys. `profile`: None is for one that waits in
    the queue like all others, and may be refused there. Streams are gathered: do not ask for one that has no end.
    Raises what the app raises before it answers.
    """
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())],
        "client": None,
        "server": None,
        "state": {},
        **identity,
    }
    if profile is not None:
        scope[PROFILE] = profile
    unread = [body]
    status, headers, parts = 0, dict[str, str](), list[bytes]()

    async def receive() -> Message:
        if unread:
            return {"type": "http.request", "body": unread.pop(), "more_body": False}
        await asyncio.Event().wait()  # who asks stays until it is answered
        raise AssertionError

    async def send(message: Message) -> None:
        nonlocal status, headers
        if message["type"] == "http.response.start":
            status = message["status"]
            headers = {
                name.decode("latin-1").lower(): value.decode("latin-1") for name, value in message["headers"]
            }
        else:
            parts.append(message.get("body", b""))

    try:
        await app(scope, receive, send)
    except Exception:
        if not status:  # else it has told: an error that nobody expected is answered, and then raised
            raise
    return Reply(status, headers, b"".join(parts))
