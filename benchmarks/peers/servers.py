"""Starts a side's server, loads it over HTTP and stops it. Only processes that it started itself."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.peers.client import TIMEOUT_S, Load, closed_loop
from benchmarks.peers.sides import Flags, Side
from benchmarks.peers.tools import ROOT, Unusable, Workshop, reason_in
from benchmarks.peers.work import OUTPUTS, PROMPT, Work
from octavo.models.store import open_model

__all__ = ["measure_http", "texts"]

READY_S = 400.0
_REQUESTS = {1: 6, 32: 64}
"""How many requests a run of so many streams makes."""
_MOST = max(_REQUESTS.values()) + 2


@cache
def texts(count: int) -> list[str]:
    """Texts of exactly PROMPT tokens of SmolLM2's vocabulary, all different. llama.cpp's server takes no token ids."""
    tokenizer = open_model("smollm2").tokenizer()
    words = []
    for token in range(1000, 20_000):
        word = tokenizer.decode([token])
        if word.startswith(" ") and word[1:].isascii() and word[1:].islower() and word[1:].isalpha():
            words.append(word)
    chosen = random.Random(0)
    found: list[str] = []
    while len(found) < count:
        text = "".join(chosen.choices(words, k=PROMPT))
        if len(tokenizer.encode(text)) == PROMPT:
            found.append(text)
    return found


def measure_http(
    workshop: Workshop, side: Side, model: str, flags: Flags, works: list[Work], *, quick: bool = False
) -> dict[Work, Load]:
    """Each work's load, all from one fresh server. `quick`: a request a stream. Raises Unusable."""
    with _served(workshop, side, model, flags) as port:
        _check(port, side)
        loads = {}
        for work in works:
            count = work.streams if quick else _REQUESTS.get(work.streams, 2 * work.streams)
            bodies = [side.body(text, OUTPUTS) for text in texts(_MOST)[:count]]
            try:
                loads[work] = asyncio.run(closed_loop(port, bodies, work.streams))
            except* (OSError, RuntimeError, EOFError, TimeoutError) as group:
                raise Unusable(f"{work.name}: {group.exceptions[0]}") from None
        return loads


@contextmanager
def _served(workshop: Workshop, side: Side, model: str, flags: Flags) -> Iterator[int]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command, variables = side.server(workshop, model, port, flags)
    log = Path(workshop.folder) / f"{side.name.replace(':', '-')}-server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **variables},
            cwd=ROOT,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + READY_S
        while not _listens(port):
            if process.poll() is not None:
                raise Unusable(f"the server ended: {reason_in(log.read_text(errors='replace'))}")
            if time.monotonic() > deadline:
                raise Unusable(f"the server was not ready after {READY_S:.0f} s")
            time.sleep(0.1)
        yield port
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # its own session: itself and its children
            process.wait()


def _listens(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=5) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def _check(port: int, side: Side) -> None:
    """Warm up, and see that prompts and outputs have the length they should."""
    for text in texts(_MOST)[-2:]:
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/completions",
            json.dumps(side.body(text, OUTPUTS)).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                usage: Mapping[str, Any] = json.load(answer)["usage"]
        except urllib.error.HTTPError as error:
            raise Unusable(f"the server answered {error.code}: {error.read()[:200]!r}") from None
        except (OSError, ValueError, KeyError) as error:
            raise Unusable(f"the first request failed: {type(error).__name__}: {error}") from None
        counts = usage["prompt_tokens"], usage["completion_tokens"]
        if counts != (PROMPT, OUTPUTS):
            raise Unusable(
                f"the server counted {counts[0]} in and {counts[1]} out, not {PROMPT} and {OUTPUTS}"
            )
