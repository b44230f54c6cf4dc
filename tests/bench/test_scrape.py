"""Reading a server's metrics: what comes, what does not, and at which times, against scripted servers."""

from __future__ import annotations

import asyncio
import gzip
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from octavo.bench.address import Address
from octavo.bench.scrape import MAX_TEXT_BYTES, Scraper
from octavo.bench.target import discover
from octavo.models.store import open_model
from tests.bench.scripted import (
    Answers,
    Asked,
    Cut,
    Hang,
    Reply,
    Script,
    ScriptedServer,
    Step,
    error_reply,
    json_reply,
)
from tests.bench.test_projects import LLAMA_CPP, LLAMA_CPP_READ, VLLM, VLLM_READ
from tests.bench.virtual_time import clock_ns, in_virtual_time
from tests.server.conftest import Server


def text_reply(text: str | bytes, after_s: float = 0.0, framing: str = "length", **more: Any) -> Reply:
    data = text.encode() if isinstance(text, str) else text
    return Reply((Step(after_s, data),), content_type="text/plain; version=0.0.4", framing=framing, **more)


class Case:
    """A scripted server, and what a scraper makes of it."""

    def __init__(self, script: Script, path: str = "", **settings: Any) -> None:
        self.server = ScriptedServer(script)
        self.path = path
        self.settings = settings
        self.scraper: Scraper

    def run(self, main: Callable[[Scraper], Coroutine[Any, Any, Any]]) -> Any:
        async def with_server() -> Any:
            await self.server.start()
            try:
                address = Address.parse(self.server.url + self.path)
                self.scraper = Scraper(address, clock_ns=clock_ns, **self.settings)
                return await main(self.scraper)
            finally:
                await self.scraper.close()
                await self.server.stop()

        return in_virtual_time(with_server)

    def read(self, times: int = 1) -> list[dict[str, float] | None]:
        """So many readings, a second apart."""

        async def main(scraper: Scraper) -> list[dict[str, float] | None]:
            found = []
            for _ in range(times):
                found.append(await scraper())
                await asyncio.sleep(1)
            return found

        found: list[dict[str, float] | None] = self.run(main)
        return found


@pytest.mark.parametrize("framing", ["length", "chunked", "close"])
def test_readings(framing: str) -> None:
    case = Case(lambda asked: text_reply(VLLM, framing=framing))
    assert case.read() == [VLLM_READ]
    assert case.scraper.notes == []
    assert case.scraper.project is not None and case.scraper.project.name == "vLLM"


def test_what_is_asked() -> None:
    case = Case(lambda asked: text_reply(VLLM), path="/behind/v1", key="the-key")
    assert case.read() == [VLLM_READ]
    [asked] = case.server.asked
    assert (asked.method, asked.path) == ("GET", "/behind/metrics")
    assert asked.headers["authorization"] == "Bearer the-key"
    assert asked.headers["accept"] == "text/plain; version=0.0.4"


def test_all_readings_come_over_one_connection() -> None:
    case = Case(lambda asked: text_reply(f"vllm:num_requests_running {asked.index}\n"))
    assert case.read(4) == [{"running": float(count)} for count in range(4)]
    assert case.server.connections == 1


def test_a_connection_that_the_server_closed_is_opened_again() -> None:
    case = Case(lambda asked: text_reply(VLLM, keep_alive=asked.index != 0))
    assert case.read(4) == [VLLM_READ] * 4
    assert case.server.connections == 2
    assert case.scraper.notes == []


def test_failures_between_readings_are_counted_in_one_note() -> None:
    def script(asked: Asked) -> Reply:
        match asked.index:
            case 1:
                return error_reply(503, "busy")
            case 2:
                return Reply((Step(0.0, Cut(reset=True)),))
            case 3:
                return text_reply("nothing of ours, but the-key")
            case _:
                return text_reply(VLLM)

    case = Case(script, key="the-key")
    assert case.read(6) == [VLLM_READ, None, None, None, VLLM_READ, VLLM_READ]
    [note] = case.scraper.notes
    assert note.startswith(
        "3 of 6 readings of /metrics failed; the last one: /metrics has no metric of Octavo, vLLM"
    )
    assert note.endswith("it begins with 'nothing of ours, but ***'.")


@pytest.mark.parametrize(
    ("reply", "note"),
    [
        (error_reply(401, "no"), "/metrics is not open to this key (401)"),
        (error_reply(403, "no"), "/metrics is not open to this key (403)"),
        (error_reply(404, "no"), "llama.cpp has it with --metrics, SGLang with --enable-metrics."),
        (error_reply(501, "no"), "/metrics is not served (501)"),
        (text_reply(b"<!DOCTYPE html><html>\n<body>vllm"), "begins with '<!DOCTYPE html><html> <body>vllm'"),
        (json_reply({"vllm:num_requests_running": 1}), "no metric of Octavo, vLLM, SGLang, llama.cpp, TGI"),
        (text_reply(gzip.compress(VLLM.encode())), "no metric of"),
        (text_reply(b""), "begins with ''"),
        (text_reply("go_goroutines 5\n"), "begins with 'go_goroutines 5'"),
        (text_reply("vllm:num_requests_running NaN\n"), "no metric of"),
        (text_reply(VLLM + "# " + "x" * MAX_TEXT_BYTES), "at most 4,194,304 are read."),
    ],
)
def test_a_server_without_metrics_is_asked_once_and_gives_one_note(reply: Reply, note: str) -> None:
    case = Case(lambda asked: reply)
    assert case.read(3) == [None] * 3
    assert len(case.server.asked) == 1
    [told] = case.scraper.notes
    assert note in told and told.endswith(".")


@pytest.mark.parametrize(
    ("reply", "note"),
    [
        (Reply((Step(0.0, Hang()),)), "no answer within 5 s"),
        (error_reply(500, "no"), "status 500"),
        (Reply((Step(0.0, b"garbage\r\n\r\n"),), raw=True), "no HTTP/1.1"),
        (Reply((Step(0.0, Cut()),), raw=True), "closed the connection"),
    ],
)
def test_what_may_pass_is_asked_again(reply: Reply, note: str) -> None:
    case = Case(lambda asked: reply)
    assert case.read(2) == [None, None]
    [told] = case.scraper.notes
    assert told.startswith("/metrics could not be read: ") and note in told
    case = Case(lambda asked: reply if asked.index == 0 else text_reply(VLLM))
    assert case.read(2) == [None, VLLM_READ]
    [told] = case.scraper.notes
    assert told.startswith("1 of 2 readings of /metrics failed; ") and note in told


def test_nobody_is_there() -> None:
    async def main() -> list[str]:
        server = ScriptedServer(lambda asked: text_reply(""))
        await server.start()
        await server.stop()
        scraper = Scraper(Address.parse(server.url), clock_ns=clock_ns)
        assert await scraper() is None
        return scraper.notes

    assert in_virtual_time(main) == ["/metrics could not be read: connection refused."]


def test_a_target_s_own_settings_are_used() -> None:
    async def main(scraper: Scraper) -> dict[str, float] | None:
        target = await discover(case.server.url, key="the-key", model="m")
        own = Scraper.of(target, clock_ns)
        try:
            return await own()
        finally:
            await own.close()

    def script(asked: Asked) -> Reply:
        if asked.headers.get("authorization") != "Bearer the-key":
            return error_reply(401, "no")
        both = VLLM + VLLM.replace('model_name="m"', 'model_name="n"')
        return Answers(models=("n", "m"), metrics=lambda: both)(asked)

    case = Case(script)
    assert case.run(main) == VLLM_READ


def test_of_several_models_the_one_that_is_measured() -> None:
    both = VLLM + VLLM.replace('model_name="m"', r'model_name="other\n\"m\""')
    assert Case(lambda asked: text_reply(both), model="m").read() == [VLLM_READ]
    assert Case(lambda asked: text_reply(VLLM), model="an alias").read() == [VLLM_READ]
    case = Case(lambda asked: text_reply(both), model="x")
    assert case.read() == [None]
    assert case.scraper.notes == ["/metrics tells of 2 models (m, other\n\"m\"), and none of them is 'x'."]


def test_llama_cpps_router_wants_to_know_the_model() -> None:
    def script(asked: Asked) -> Reply:
        if "?" not in asked.path:
            return error_reply(400, "model name is missing from the request")
        return text_reply(LLAMA_CPP)

    case = Case(script, model="org/a model")
    assert case.read() == [LLAMA_CPP_READ]
    assert [asked.path for asked in case.server.asked] == ["/metrics", "/metrics?model=org%2Fa%20model"]


def test_octavo_itself(tiny_model_path: Path, tmp_path: Path) -> None:
    """A server with a key, before and after a load whose counts are known."""
    model = open_model(tiny_model_path, cache=tmp_path, packed=False)
    engine = {"model_dir": str(model.dir), "backend": "reference", "num_blocks": 200}
    server = Server(engine, access={"api_keys": ["a-key"]})

    async def read(key: str) -> tuple[Scraper, dict[str, float]]:
        scraper = Scraper(Address.parse(f"{server.url}/v1"), model="alias", key=key)
        found = await scraper()
        await scraper.close()
        return scraper, found or {}

    try:
        _, before = asyncio.run(read("a-key"))
        began = time.monotonic()
        body = {"prompt": [70 + place for place in range(40)], "max_tokens": 20, "ignore_eos": True}
        for _ in range(2):
            answer = server.client.post(
                "/v1/completions", json=body, headers={"authorization": "Bearer a-key"}
            )
            assert answer.status_code == 200, answer.text
        took_s = time.monotonic() - began
        scraper, after = asyncio.run(read("a-key"))
        refused, nothing = asyncio.run(read("another"))
    finally:
        assert server.stop() == 0
    assert scraper.project is not None and scraper.project.name == "Octavo"
    assert scraper.notes == []
    grown = {name: after[name] - before[name] for name in after}
    assert 0 < grown.pop("busy_s") <= took_s
    assert grown == {
        "running": 0,
        "waiting": 0,
        "kv_use": 0,
        "prompt_tokens": 80,
        "generated_tokens": 40,
        "prefix_queried_tokens": 80,
        "prefix_hit_tokens": 32,
        "preemptions": 0,
        "drafted_tokens": grown["drafted_tokens"],
        "accepted_tokens": grown["accepted_tokens"],
    }
    assert not nothing and "(401)" in refused.notes[0]
