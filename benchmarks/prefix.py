"""What the prefix cache is worth: the time to the first token of requests that begin alike, with and without it.

    python -m benchmarks.prefix [--requests 32] [--shared 800] [--own 24]

Starts `octavo serve` twice, the second time with --no-prefix-cache, sends all requests at once, and prints the median
time to the first token and how much of the prompts was found.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import httpx2
from rich.console import Console
from rich.table import Table

OUTPUTS = 8


def ids(seed: object, count: int) -> list[int]:
    return random.Random(str(seed)).choices(range(1000, 40_000), k=count)


def ask(url: str, prompt: list[int]) -> tuple[float, int]:
    """Seconds to the first token, and the prompt tokens that were found."""
    body = {
        "prompt": prompt,
        "max_tokens": OUTPUTS,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    first, found = 0.0, 0
    began = time.perf_counter()
    with (
        httpx2.Client(base_url=url, timeout=600, trust_env=False) as client,
        client.stream("POST", "/v1/completions", json=body) as reply,
    ):
        for line in reply.iter_lines():
            if not line.startswith("data: {"):
                continue
            first = first or time.perf_counter() - began
            if usage := json.loads(line.removeprefix("data: ")).get("usage"):
                found = usage["prompt_tokens_details"]["cached_tokens"]
    return first, found


def measure(model: str, requests: int, shared: int, own: int, *options: str) -> tuple[float, float]:
    """Median time to the first token in seconds, and the share of all prompt tokens that was found."""
    command = [sys.executable, "-m", "octavo", "serve", model, "--port", "0", *options]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        url = next(word for word in server.stdout.readline().split() if word.startswith("http://"))
        ask(url, ids("warm", 32))
        prompts = [ids("shared", shared) + ids(number, own) for number in range(requests)]
        with ThreadPoolExecutor(requests) as pool:
            answers = list(pool.map(lambda prompt: ask(url, prompt), prompts))
    finally:
        server.terminate()
        server.wait()
    seconds = statistics.median(first for first, _ in answers)
    return seconds, sum(found for _, found in answers) / (requests * (shared + own))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="smollm2", help="alias, path or hf: reference")
    parser.add_argument("--requests", type=int, default=32, help="sent at once")
    parser.add_argument("--shared", type=int, default=800, help="tokens that all prompts begin with")
    parser.add_argument("--own", type=int, default=24, help="tokens after them")
    options = parser.parse_args()
    sizes = (options.model, options.requests, options.shared, options.own)
    table = Table("prefix cache", "first token, median, s", "prompt tokens found")
    rows = [("on", measure(*sizes)), ("off", measure(*sizes, "--no-prefix-cache"))]
    for name, (seconds, share) in rows:
        table.add_row(name, f"{seconds:.2f}", f"{100 * share:.0f} %")
    Console().print(table)
    print(f"{rows[1][1][0] / rows[0][1][0]:.1f} times as fast")


if __name__ == "__main__":
    main()
