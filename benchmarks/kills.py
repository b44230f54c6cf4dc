"""What streams feel of an engine that dies: kill -9 again and again under a mixed load, over HTTP.

    python -m benchmarks.kills [--kills 20] [--every 5] [--tokens 64]

32 clients stream from `octavo serve` with the default model: a quarter greedy, a quarter seeded, a quarter under a
JSON schema, a quarter with n = 2; what has ended is asked anew. For each kill the table says how long it took until the
first stream had its next token, the median one, and the last. Every answer is compared with that of an undisturbed run,
token for token (tests/faults/test_kills.py does the same without the clock).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx2
import orjson
import psutil
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

__all__ = ["Recovery", "Streams", "engine_of", "serving", "wait_until_ready"]

STREAMS = 32
TOKENS = 64
"""Of an answer at most. What has to be computed again after a kill grows with it."""

WORKS = (
    "Tell the story of a lighthouse keeper who finds a letter.",
    "Explain how bread rises, step by step.",
    "List the planets and say something about each of them.",
    "Write a letter to a friend about a walk in the rain.",
    "Describe a market on a Saturday morning.",
    "What should somebody know before they buy a bicycle?",
    "Say what a library is for, and for whom.",
    "Tell how a river begins and where it ends.",
)
SCHEMA = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "minLength": 10, "maxLength": 80},
        "chapters": {
            "type": "array",
            "items": {"type": "string", "minLength": 5, "maxLength": 60},
            "minItems": 3,
            "maxItems": 6,
        },
        "pages": {"type": "integer", "minimum": 10, "maximum": 900},
    },
    "required": ["title", "chapters", "pages"],
    "additionalProperties": False,
}

Answer = tuple[tuple[int, str, tuple[str, ...], tuple[float, ...], str], ...]
"""Per choice: its index, text, tokens by id, log-probabilities, and why it ended."""


def bodies(tokens: int = TOKENS) -> list[dict[str, Any]]:
    """32 requests: eight of each kind."""
    found = []
    for number in range(STREAMS):
        kind, place = divmod(number, len(WORKS))
        body: dict[str, Any] = {
            "messages": [{"role": "user", "content": WORKS[place]}],
            "stream": True,
            "logprobs": True,
            "return_tokens_as_token_ids": True,
            "max_tokens": tokens,
        }
        match kind:
            case 0:
                body |= {"temperature": 0, "ignore_eos": True}
            case 1:
                body |= {"seed": number, "temperature": 1.0, "top_p": 0.9, "ignore_eos": True}
            case 2:
                schema = {"name": "book", "schema": SCHEMA}
                body |= {"seed": number, "response_format": {"type": "json_schema", "json_schema": schema}}
            case _:
                body |= {"seed": number, "n": 2, "presence_penalty": 0.3, "ignore_eos": True}
        found.append(body)
    return found


class Recovery(NamedTuple):
    """Seconds from a kill to the next token of the first stream, the median one and the last."""

    first_s: float
    median_s: float
    last_s: float


class Streams:
    """Clients that ask the same again and again. `answers`: what each heard, per request."""

    def __init__(self, url: str, requests: list[dict[str, Any]]) -> None:
        self._client = httpx2.AsyncClient(
            base_url=url,
            timeout=120.0,
            trust_env=False,
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0),
        )
        self._requests = requests
        self.answers: list[list[Answer]] = [[] for _ in requests]
        self.heard_s = [0.0] * len(requests)
        """When the newest token came to each."""
        self._ending = False

    async def once(self) -> list[Answer]:
        """Each request one time."""
        return list(await asyncio.gather(*map(self._ask, range(len(self._requests)))))

    async def until(self, end: asyncio.Event) -> None:
        """Ask again and again until `end`; what runs then is heard out."""

        async def repeat(number: int) -> None:
            while not end.is_set():
                self.answers[number].append(await self._ask(number))

        await asyncio.gather(*map(repeat, range(len(self._requests))))

    async def recovered(self, killed_s: float) -> Recovery:
        """Wait until every client has heard something since."""
        while min(self.heard_s) <= killed_s:  # noqa: ASYNC110 - it comes from another process
            await asyncio.sleep(0.005)
        waits = sorted(heard - killed_s for heard in self._first_after)
        return Recovery(waits[0], waits[len(waits) // 2], waits[-1])

    async def goes_on(self) -> None:
        """Wait until somebody has heard something since the last kill."""
        while max(self.heard_s) <= self._killed_s:  # noqa: ASYNC110 - it comes from another process
            await asyncio.sleep(0.005)

    def killed(self) -> float:
        """Now; from here on it is noted when each client hears its next token."""
        self._first_after = [0.0] * len(self._requests)
        self._killed_s = time.monotonic()
        return self._killed_s

    _killed_s = 0.0
    _first_after: list[float] = []  # noqa: RUF012 - replaced, never changed

    async def _ask(self, number: int) -> Answer:
        choices: dict[int, tuple[list[str], list[str], list[float], list[str]]] = {}
        async with self._client.stream(
            "POST", "/v1/chat/completions", content=orjson.dumps(self._requests[number])
        ) as response:
            if response.status_code != 200:
                raise RuntimeError((await response.aread()).decode())
            async for line in response.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                event = orjson.loads(line[6:])
                if "error" in event:
                    raise RuntimeError(str(event["error"]))
                for choice in event["choices"]:
                    texts, tokens, scores, ends = choices.setdefault(choice["index"], ([], [], [], []))
                    texts.append(choice["delta"].get("content") or "")
                    for one in (choice["logprobs"] or {}).get("content") or ():
                        tokens.append(one["token"])
                        scores.append(one["logprob"])
                        self._note(number)
                    if choice["finish_reason"]:
                        ends.append(choice["finish_reason"])
        return tuple(
            (index, "".join(texts), tuple(tokens), tuple(scores), ends[0])
            for index, (texts, tokens, scores, ends) in sorted(choices.items())
        )

    def _note(self, number: int) -> None:
        now = time.monotonic()
        self.heard_s[number] = now
        if self._first_after and not self._first_after[number]:
            self._first_after[number] = now

    async def close(self) -> None:
        await self._client.aclose()


@contextlib.contextmanager
def serving(*options: str) -> Iterator[tuple[str, psutil.Process]]:
    """`octavo serve` with the default model: its address and process."""
    with tempfile.TemporaryDirectory() as data:
        command = [
            sys.executable,
            "-m",
            "octavo",
            "serve",
            "--port",
            "0",
            "--data-dir",
            data,
            "--no-access-log",
            *options,
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                found = re.search(r"http://\S+", process.stdout.readline())
                assert found is not None, "the server did not start"
                yield found[0], psutil.Process(process.pid)
            finally:
                process.terminate()
                process.wait(60)


def engine_of(server: psutil.Process) -> psutil.Process:
    """The engine process that runs now. Raises LookupError while there is none."""
    for child in server.children():
        with contextlib.suppress(psutil.Error):
            if child.name() == "octavo-engine" and child.status() != psutil.STATUS_ZOMBIE:
                return child
    raise LookupError("there is no engine process")


async def wait_until_ready(url: str) -> None:
    async with httpx2.AsyncClient(base_url=url, trust_env=False) as client:
        while (await client.get("/health/ready")).status_code != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def measure(kills: int, every_s: float, tokens: int) -> list[Recovery]:
    """Kill, wait, kill. Raises AssertionError for an answer that is not that of an undisturbed run."""
    dice = random.Random(1)
    found = []
    with serving() as (url, server), Progress(console=Console(stderr=True)) as progress:
        streams = Streams(url, bodies(tokens))
        undisturbed = await streams.once()
        end = asyncio.Event()
        task = asyncio.create_task(streams.until(end))
        await asyncio.sleep(2)
        for _ in progress.track(range(kills), description="killing"):
            killed_s = streams.killed()
            os.kill(engine_of(server).pid, signal.SIGKILL)
            recovery = asyncio.create_task(streams.recovered(killed_s))
            await asyncio.wait([recovery, task], return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                await task
            found.append(await recovery)
            await asyncio.sleep(max(0.0, killed_s + every_s * dice.uniform(1.0, 1.5) - time.monotonic()))
        end.set()
        await task
        await streams.close()
    for one, answers in zip(undisturbed, streams.answers, strict=True):
        assert all(answer == one for answer in answers), "an answer is another one"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two kills, at least")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of an answer, at most")
    arguments = parser.parse_args()
    found = asyncio.run(measure(arguments.kills, arguments.every, arguments.tokens))
    table = Table(
        title=f"{STREAMS} streams of {arguments.tokens} tokens, {arguments.kills} kills: seconds until …"
    )
    for name in ("", "the first goes on", "the median", "the last"):
        table.add_column(name, justify="right")
    for name, place in (("median kill", len(found) // 2), ("worst kill", -1)):
        values = [sorted(one[i] for one in found)[place] for i in range(3)]
        table.add_row(name, *(f"{value:.2f}" for value in values))
    Console().print(table)


if __name__ == "__main__":
    main()
