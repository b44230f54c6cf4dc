"""A server under everything at once for minutes: what it takes must not grow, what it says must not change.

    python -m tests.faults.soak [--seconds 600] [--clients 64]

Clients of every API ask for texts of random sizes, streamed and whole, with schemas, with n = 2, for vectors; a fifth
of them leaves early, some read slowly, some send what must be refused. Each answer is compared with the first to the
same question, whatever else was going on. Memory, files and threads (of the server and all its processes) are counted
when nobody asks: after a warm-up that went through the whole pool, and at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import msgspec
import psutil

from tests.server.endpoints import ENDPOINTS, PROMPT
from tests.server.scripted import Case
from tests.server.scripted_engine import Script

__all__ = ["Report", "Soak", "Use", "served"]

BLOCKS = 512
OPTIONS = (
    *("--num-blocks", str(BLOCKS), "--max-model-len", "2048"),
    *("--send-timeout", "20", "--stream-buffer", "256KiB"),
)
LEAVING, SLOW, BAD = 0.2, 0.05, 0.1
"""Shares of requests."""
GROWTH = 0.02
"""Of memory, that is let pass."""
TIMEOUT_S = 600.0
SETTLE_S = 7.0
"""After the last client has gone: connections that are kept alive are closed after 5 s."""
WORDS = (
    "the",
    "octavo",
    "is",
    "a",
    "sheet",
    "folded",
    "into",
    "eight",
    "leaves",
    "that",
    "made",
    "books",
    "cheap",
)
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "pages": {"type": "integer"}},
    "required": ["name", "pages"],
    "additionalProperties": False,
}
REFUSED: tuple[tuple[str, dict[str, Any] | bytes, int], ...] = (
    ("/v1/completions", b"{", 400),
    ("/v1/completions", {"prompt": "a", "n": 100_000}, 400),
    ("/v1/completions", {"prompt": "a", "model": "another"}, 404),
    ("/v1/chat/completions", {"messages": []}, 400),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "temperature": "hot"}, 400),
    ("/v1/messages", {"messages": [{"role": "user", "content": "a"}]}, 400),
    ("/v1/responses", {"input": "a", "previous_response_id": "resp_none"}, 400),
    ("/api/chat", {"model": "another", "messages": []}, 404),
    ("/v1/embeddings", {"input": ""}, 400),
    ("/v1/completions", {"prompt": [1] * 5000}, 400),
    ("/v1/completions", {"prompt": "a", "guided_regex": "["}, 400),
    ("/nothing", {}, 404),
)


class Use(NamedTuple):
    """What the server and all its processes hold."""

    nbytes: int
    files: int
    threads: int
    processes: int


class Report(NamedTuple):
    """What came of it."""

    seconds: float
    before: Use
    after: Use
    done: Counter[str]
    """Requests, by how they ended."""
    faults: list[str]
    """What should not have been, in words."""


class Question(NamedTuple):
    """One that may be asked more than once."""

    name: str
    path: str
    body: dict[str, Any]
    read: Callable[[bytes, bool], Any]
    """What an answer says, from its bytes; True: it was streamed."""
    streams: bool = True


def questions(seed: int, count: int) -> list[Question]:
    """Of all APIs, of random sizes."""
    chance = random.Random(seed)
    made = []
    for _ in range(count):
        kind = chance.choice([*ENDPOINTS, "embeddings", "schema"])
        words = " ".join(chance.choices(WORDS, k=int(chance.expovariate(1 / 60)) + 1))
        if kind == "embeddings":
            made.append(Question(kind, "/v1/embeddings", {"input": words}, _vector, streams=False))
            continue
        tokens = min(int(chance.expovariate(1 / 40)) + 1, 300)
        choices = kind in ("completions", "chat") and chance.random() < 0.4
        case = Case(
            Script([]),
            tokens,
            n=2 if choices else 1,
            logprobs=3 if choices and chance.random() < 0.5 else None,
            stop=("leaves",) if chance.random() < 0.2 else (),
        )
        made.append(_question("chat" if kind == "schema" else kind, case, words, schema=kind == "schema"))
    return made


def _question(kind: str, case: Case, words: str, *, schema: bool) -> Question:
    endpoint = ENDPOINTS[kind]
    body = json.loads(json.dumps(endpoint.body(case)).replace(json.dumps(PROMPT)[1:-1], words))
    body["model"] = "smollm2"
    if endpoint.choices:
        body["stream_options"] = {"include_usage": True}
    if schema:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "book", "schema": SCHEMA}}
        body["max_tokens"] = 60
    if kind == "responses":
        body["store"] = len(words) % 2 == 0

    def read(data: bytes, streamed: bool) -> Any:
        return (endpoint.join(data, case) if streamed else endpoint.take(msgspec.json.decode(data))).parts

    return Question("schema" if schema else kind, endpoint.path, body, read)


def _vector(data: bytes, streamed: bool) -> Any:
    return json.loads(data)["data"][0]["embedding"]


class Soak:
    """Clients of one server."""

    def __init__(self, port: int, pid: int, *, clients: int = 64, seed: int = 0) -> None:
        self.done = Counter[str]()
        self.faults: list[str] = []
        self._port = port
        self._process = psutil.Process(pid)
        self._clients = clients
        self._chance = random.Random(seed)
        self._questions = questions(seed, 300)
        self._answers: dict[int, Any] = {}

    async def rush(self, seconds: float) -> None:
        """Let all clients ask for so long, and wait for the last answers."""
        ends = time.monotonic() + seconds
        url = f"http://127.0.0.1:{self._port}"
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=self._clients)
        async with httpx2.AsyncClient(
            base_url=url, timeout=TIMEOUT_S, limits=limits, trust_env=False
        ) as client:

            async def ask() -> None:
                while time.monotonic() < ends and len(self.faults) < 20:
                    await self._act(client)

            await asyncio.gather(*(ask() for _ in range(self._clients)))

    async def use(self) -> Use:
        """What is held when nobody asks."""
        await asyncio.sleep(SETTLE_S)
        processes = [self._process, *self._process.children(recursive=True)]
        return Use(
            sum(process.memory_info().rss for process in processes),
            sum(process.num_fds() for process in processes),
            sum(process.num_threads() for process in processes),
            len(processes),
        )

    async def metrics(self) -> dict[str, float]:
        """By name, the sum over labels; of what is counted by reason, also `name/reason`."""
        async with httpx2.AsyncClient(trust_env=False) as client:
            text = (await client.get(f"http://127.0.0.1:{self._port}/metrics")).text
        found = Counter[str]()
        for name, labels, value in re.findall(r"^([a-z_:]\w*(?::\w+)*)\{(.*)\} (\S+)$", text, re.MULTILINE):
            found[name] += float(value)  # type: ignore[assignment]
            if reason := re.search(r'reason="(\w+)"', labels):
                found[f"{name}/{reason[1]}"] += float(value)  # type: ignore[assignment]
        return dict(found)

    async def _act(self, client: httpx2.AsyncClient) -> None:
        """One request of a random kind."""
        chance, place = self._chance, self._chance.randrange(len(self._questions))
        question, streamed = self._questions[place], self._chance.random() < 0.6
        draw = chance.random()
        try:
            if draw < LEAVING:
                await self._leave(client, question, streamed=streamed and question.streams)
            elif draw < LEAVING + SLOW:
                await self._read_slowly()
            elif draw < LEAVING + SLOW + BAD:
                await self._be_refused(client, *chance.choice(REFUSED))
            else:
                await self._ask(client, place, streamed=streamed and question.streams)
        except Exception as error:  # noqa: BLE001 - all of it is to be told, with what was asked
            self.faults.append(f"{question.name}: {error!r}"[:500])

    async def _ask(self, client: httpx2.AsyncClient, place: int, *, streamed: bool) -> None:
        question = self._questions[place]
        response = await client.post(question.path, json={**question.body, **_streaming(question, streamed)})
        if response.status_code != 200:
            self.faults.append(f"{question.name}: {response.status_code} {response.text[:300]}")
            return
        said = question.read(response.content, streamed)
        if said != self._answers.setdefault(place, said):
            self.faults.append(f"{question.name}: {str(said)[:200]} is not {str(self._answers[place])[:200]}")
        self.done[question.name] += 1

    async def _leave(self, client: httpx2.AsyncClient, question: Question, *, streamed: bool) -> None:
        body = {**question.body, **_streaming(question, streamed)}
        if not streamed:
            asking = asyncio.create_task(client.post(question.path, json=body))
            await asyncio.wait([asking], timeout=self._chance.expovariate(2))
            asking.cancel()
            await asyncio.wait([asking])
        else:
            async with client.stream("POST", question.path, json=body) as response:
                left = self._chance.randrange(6)
                async for _ in response.aiter_raw():
                    if left == 0:
                        break
                    left -= 1
        self.done["left"] += 1

    async def _read_slowly(self) -> None:
        loop = asyncio.get_running_loop()
        body = {"prompt": "a", "max_tokens": 120, "stream": True, "logprobs": 40, "ignore_eos": True, "n": 2}
        data = json.dumps(body).encode()
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.setblocking(False)
            await loop.sock_connect(connection, ("127.0.0.1", self._port))
            head = b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(data)
            await loop.sock_sendall(connection, head + data)
            ends = time.monotonic() + self._chance.uniform(1, 25)
            try:
                while await loop.sock_recv(connection, 1024):
                    await asyncio.sleep(0.5)
                    if time.monotonic() > ends:
                        break
            except ConnectionResetError:
                self.done["dropped"] += 1
        self.done["slow"] += 1

    async def _be_refused(
        self, client: httpx2.AsyncClient, path: str, body: dict[str, Any] | bytes, status: int
    ) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        response = await client.post(path, content=content, headers={"content-type": "application/json"})
        if response.status_code != status:
            self.faults.append(f"{path} {content[:80]!r}: {response.status_code} {response.text[:200]}")
        self.done["refused"] += 1


def _streaming(question: Question, streamed: bool) -> dict[str, Any]:
    if not question.streams:
        return {}
    return {
        "stream": streamed,
        **({} if streamed or "stream_options" not in question.body else {"stream_options": None}),
    }


@contextmanager
def served(log: Path, *options: str) -> Iterator[tuple[int, int]]:
    """`octavo serve` with a small pool: its port and its process id. What it logs is in `log`."""
    with tempfile.TemporaryDirectory() as data, log.open("w") as errors:
        command = [sys.executable, "-m", "octavo", "serve", "smollm2", "--port", "0", "--data-dir", data]
        process = subprocess.Popen(
            [*command, *OPTIONS, *options], stdout=subprocess.PIPE, stderr=errors, text=True
        )
        assert process.stdout is not None
        match = re.search(r"http://127\.0\.0\.1:(\d+)", process.stdout.readline())
        assert match is not None, log.read_text()
        try:
            yield int(match[1]), process.pid
        finally:
            process.terminate()
            code = process.wait(120)
            process.stdout.close()
        assert code == 0, log.read_text()


async def soak(
    port: int, pid: int, seconds: float, *, clients: int = 64, tell: Callable[[str], None] = print
) -> Report:
    """A warm-up, and the time itself."""
    found = Soak(port, pid, clients=clients, seed=time.time_ns())
    warm_s = max(20.0, seconds / 5)
    await found.rush(warm_s)
    while (tokens := await _tokens(found)) < 3 * BLOCKS * 16 and len(found.faults) < 20:
        await found.rush(warm_s / 2)
    before = await found.use()
    tell(f"after the warm-up ({tokens:.0f} tokens): {before}, {dict(found.done)}")
    ends = time.monotonic() + seconds
    while (left := ends - time.monotonic()) > 0 and len(found.faults) < 20:
        await found.rush(min(left, max(60.0, seconds / 10)))
        tell(f"{seconds - left:.0f} s: {await found.use()}, {sum(found.done.values())} requests")
    after = await found.use()
    metrics = await found.metrics()
    for name, wanted in {
        "vllm:num_requests_running": 0,
        "vllm:num_requests_waiting": 0,
        "vllm:kv_cache_usage_perc": 0,
        "octavo_connections": 1,
        "octavo_engine_restarts_total": 0,
        "vllm:request_success_total/error": 0,
    }.items():
        if metrics.get(name) != wanted:
            found.faults.append(f"{name} is {metrics.get(name)}; it must be {wanted}.")
    tell(f"ended: {after}, {dict(found.done)}, {metrics}")
    return Report(seconds, before, after, found.done, found.faults)


async def _tokens(found: Soak) -> float:
    metrics = await found.metrics()
    return metrics["vllm:prompt_tokens_total"] + metrics["vllm:generation_tokens_total"]


def faults_of(report: Report, log: Path) -> list[str]:
    """What is wrong with it; [] for nothing. `log`: of the server."""
    faults = [*report.faults]
    before, after = report.before, report.after
    if after.nbytes > before.nbytes * (1 + GROWTH):
        faults.append(f"memory grew from {before.nbytes} to {after.nbytes} bytes")
    faults.extend(
        f"{name} grew from {getattr(before, name)} to {getattr(after, name)}"
        for name in ("files", "threads", "processes")
        if getattr(after, name) > getattr(before, name)
    )
    told = log.read_text()
    if re.search(r"ERROR|Traceback", told):
        faults.append(told[-3000:])
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--clients", type=int, default=64)
    options = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with served(log) as (port, pid):
            report = asyncio.run(
                soak(
                    port,
                    pid,
                    options.seconds,
                    clients=options.clients,
                    tell=lambda text: print(text, flush=True),
                )
            )
        faults = faults_of(report, log)
    before, after = report.before, report.after
    print(
        f"{report.seconds:g} s, {sum(report.done.values())} requests; memory {before.nbytes / 2**20:.1f} → "
        f"{after.nbytes / 2**20:.1f} MiB ({100 * (after.nbytes / before.nbytes - 1):+.2f} %), files {before.files} → "
        f"{after.files}, threads {before.threads} → {after.threads}"
    )
    for fault in faults:
        print("FAULT", fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
