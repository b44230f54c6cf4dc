"""GET /watch: what a server tells of its work while somebody looks."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import msgspec
import pytest

from octavo.cli.main import run
from octavo.protocol.watch import Answered, Asked, Gauges, Line, Server, Steps
from tests.server.conftest import Server as Running

Kind = TypeVar("Kind", bound=msgspec.Struct)


class Seen:
    """The lines of a watch so far."""

    def __init__(self) -> None:
        self.lines: list[Line] = []

    def of(self, kind: type[Kind]) -> list[Kind]:
        return [line for line in list(self.lines) if isinstance(line, kind)]


@contextmanager
def watching(server: Running) -> Iterator[Seen]:
    seen, stop = Seen(), threading.Event()

    def read() -> None:
        with server.client.stream("GET", "/watch?seconds=60") as response:
            assert response.headers["content-type"] == "application/x-ndjson"
            for line in response.iter_lines():
                seen.lines.append(msgspec.json.decode(line, type=Line))
                if stop.is_set():
                    return

    reader = threading.Thread(target=read)
    reader.start()
    try:
        server.until(lambda: bool(seen.lines))
        yield seen
    finally:
        stop.set()
        server.complete(prompt="the last", max_tokens=1)  # a line, for the reader to see that it is over
        reader.join()


def test_requests_and_steps_are_told_without_their_text(server: Running) -> None:
    with watching(server) as seen:
        prompt = list(range(40, 90))
        for added in ([], [7]):
            server.complete(prompt=[*prompt, *added], max_tokens=9, ignore_eos=True)
        server.until(lambda: len(seen.of(Answered)) == 2 and len(seen.of(Steps)) > 0)
    [settings] = seen.of(Server)
    assert (settings.policy, settings.block_size, settings.prefix_cache) == ("stall-free", 16, True)
    first, second = seen.of(Asked)[:2]
    assert (first.prompt_tokens, second.prompt_tokens, len(first.blocks)) == (50, 51, 3)
    assert first.blocks == second.blocks and 0 <= first.at_s < second.at_s
    done = seen.of(Answered)[0]
    assert (done.id, done.reason, done.output_tokens) == (first.id, "length", 9)
    assert sum(tokens for _, tokens in done.chunks) == 9
    assert first.at_s < done.chunks[0][0] <= done.chunks[-1][0] <= done.end_s
    assert len(done.blocks) == (50 + 9) // 16 - 3
    steps = [step for line in seen.of(Steps) for step in line.steps]
    assert steps[0].tokens == 50 and steps[0].pairs == 50 * 51 // 2  # the prompt
    assert all(one.began_s < one.ended_s for one in steps) and steps[-1].idle
    assert seen.of(Gauges)[-1].stats.steps >= len(steps)


def test_ids_of_two_watches_differ(server: Running) -> None:
    ids = []
    for _ in range(2):
        with watching(server) as seen:
            server.complete(prompt=list(range(100, 140)), max_tokens=2, ignore_eos=True)
            server.until(partial(_any, seen))
        ids.append(seen.of(Asked)[0].blocks)
    assert ids[0] != ids[1]


def _any(seen: Seen) -> bool:
    return bool(seen.of(Answered))


def test_nobody_is_told_of_steps_when_nobody_looks(server: Running) -> None:
    with watching(server):
        pass
    server.complete(prompt="unseen", max_tokens=2)
    with watching(server) as seen:
        server.complete(prompt="seen", max_tokens=2)
        server.until(partial(_any, seen))
    assert [one.id for one in seen.of(Asked)] == [1, 2]


def test_at_once_it_tells_how_the_server_is_set(server: Running) -> None:
    server.until_idle()
    first, *rest = server.client.get("/watch").text.splitlines()
    assert msgspec.json.decode(first, type=Line).__class__ is Server
    assert all(isinstance(msgspec.json.decode(line, type=Line), Gauges) for line in rest)
    for query in ("seconds=-1", "seconds=x", "minutes=1"):
        assert server.client.get(f"/watch?{query}").status_code == 400


@pytest.mark.slow
def test_the_plan_of_a_server_that_is_used(
    tiny_engine: dict[str, Any], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """One place only, and four clients: it is found, and the simulation tells the server as it is."""
    server = Running({**tiny_engine, "max_running": 1, "speculation": "off"})
    stop = threading.Event()

    def ask(number: int) -> None:
        chance = random.Random(number)
        with httpx2.Client(base_url=server.url, trust_env=False, timeout=60) as client:
            while not stop.is_set():
                prompt = [chance.randrange(40, 200) for _ in range(chance.randint(60, 120))]
                body = {"prompt": prompt, "max_tokens": 60, "ignore_eos": True}
                assert client.post("/v1/completions", json=body).status_code == 200

    clients = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for one in clients:
        one.start()
    page = tmp_path / "observed.html"
    try:
        code = run(
            ["plan", "--observe", server.url, "--for", "6s", "--json", "--html", str(page), "--workers", "1"]
        )
    finally:
        stop.set()
        for one in clients:
            one.join()
    told = json.loads(capsys.readouterr().out)
    assert code in (0, 3), told  # on a machine that is used by others, the check may fail
    [requests] = [words for name, words in told["load"] if name == "requests"]
    assert requests.startswith("4 clients")
    assert told["binds"]["kind"] == "queue" and told["fitted"]["steps"] > 60
    assert "What to change" in page.read_text()
    if code == 0:
        assert told["best"]["knob"] in ("sequences at once", "servers"), told["best"]
    assert server.stop() == 0
