"""Gateways in front of scripted servers, on real sockets in virtual time. For tests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

import orjson

from octavo.routing.asked import CHAT, Asked
from octavo.routing.course import Attempt, Course
from octavo.routing.decider import Decider
from octavo.routing.gateway import Gateway
from octavo.routing.tier_file import read_tiers
from octavo.routing.tiers import Tiers
from tests.bench.scripted import (
    DONE,
    Reply,
    Script,
    ScriptedServer,
    Step,
    chat_event,
    clock_ns,
    in_virtual_time,
    scripted,
    usage_event,
)

__all__ = ["Stage", "asked", "gone", "played", "stream", "tiers_of", "whole"]

T = TypeVar("T")
PRICES = {"small": (1.0, 2.0), "large": (10.0, 20.0), "hosted": (100.0, 200.0)}


class Stage:
    """A gateway with its tiers' servers, and all that its observer was told."""

    def __init__(self, gateway: Gateway, servers: Mapping[str, ScriptedServer], seen: Seen) -> None:
        self.gateway = gateway
        self.servers = servers
        self.attempts = seen.attempts
        self.ended = seen.ended

    async def ask(self, request: Asked | None = None) -> tuple[bytes, Course]:
        """The whole answer, and its way."""
        course = await self.gateway.decide(request or asked(at_s=self.gateway.now_s()))
        answering = await self.gateway.answer(course)
        parts = []
        while piece := await answering.read():
            parts.append(piece)
        return b"".join(parts), course

    def counts(self) -> dict[str, int]:
        """How often each tier was asked for an answer."""
        return {name: len(server.of("completions")) for name, server in self.servers.items()}


class Seen:
    """An observer."""

    def __init__(self) -> None:
        self.attempts: list[Attempt] = []
        self.ended: list[Course] = []

    def on_attempt(self, attempt: Attempt) -> None:
        self.attempts.append(attempt)

    def on_end(self, course: Course) -> None:
        self.ended.append(course)


def played(
    scripts: Mapping[str, Script | None],
    use: Callable[[Stage], Awaitable[T]],
    folder: Path,
    *,
    more: Mapping[str, str] | None = None,
    general: str = "",
    rules: str = "",
    decider: Decider | None = None,
) -> T:
    """What `use` finds. `scripts`: by tier, the cheapest first; None is a tier whose server is not there. `more`: lines
    of each tier's table."""

    async def main() -> T:
        seen = Seen()
        async with AsyncExitStack() as stack:
            servers = {
                name: await stack.enter_async_context(scripted(script or _nothing))
                for name, script in scripts.items()
            }
            for name, script in scripts.items():
                if script is None:
                    await servers[name].stop()
            tiers = tiers_of(
                folder,
                {name: server.url for name, server in servers.items()},
                more=more,
                general=general,
                rules=rules,
            )
            gateway = Gateway(tiers, decider, observers=(seen,), now_s=lambda: clock_ns() / 1e9)
            try:
                return await use(Stage(gateway, servers, seen))
            finally:
                await gateway.close()
                for name, script in scripts.items():
                    if script is None:  # to be stopped again
                        await servers[name].start()

    return in_virtual_time(main)


def tiers_of(
    folder: Path,
    urls: Mapping[str, str],
    *,
    more: Mapping[str, str] | None = None,
    general: str = "",
    rules: str = "",
) -> Tiers:
    """Read from a file, as it would be."""
    text = f"[gateway]\n{general}\n"
    for name, url in urls.items():
        text += f'[tiers.{name}]\nurl = "{url}"\nmodel = "{name}-model"\n'
        own = (more or {}).get(name, "")
        if "price" not in own and name in PRICES:
            text += "price = {{ input = {}, output = {} }}\n".format(*PRICES[name])
        text += own + "\n"
    file = folder / "tiers.toml"
    file.write_text(text + rules)
    return read_tiers(file, {"A_KEY": "secret-1"})


def asked(said: str = "What is an octavo?", *, at_s: float = 0.0, path: str = CHAT, **more: Any) -> Asked:
    """A request; `headers` among `more` are its headers, `key` the name of its API key."""
    headers, key = more.pop("headers", {}), more.pop("key", None)
    body = {"model": "auto", "messages": [{"role": "user", "content": said}], **more}
    return Asked.read(path, orjson.dumps(body), headers, key, at_s)


def whole(
    text: str = "yes", *, input_tokens: int = 1000, output_tokens: int = 100, after_s: float = 0.0
) -> Script:
    """A script of a server that answers in one piece."""
    answer = {
        "choices": [{"index": 0, "message": {"content": text}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": input_tokens, "completion_tokens": output_tokens},
    }
    data = orjson.dumps(answer)
    return lambda _: Reply((Step(after_s, data),), 200, "application/json", "length")


def stream(*steps: Step, usage: bool = True, done: bool = True) -> Script:
    """A script of a server that streams: these steps, the count of tokens, the end."""
    given = steps or (Step(0.1, chat_event("a")), Step(0.1, chat_event("b", finish="stop")))
    end = (usage_event(1000, 100) if usage else b"") + (DONE if done else b"")
    return lambda _: Reply((*given, Step(0.0, end)) if end else given)


async def gone(task: asyncio.Task[Any]) -> None:
    """Cancel it and see it end."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _nothing(_: object) -> Reply:
    raise AssertionError("it is not there")
