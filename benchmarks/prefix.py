"""What the prefix cache is worth: the time to the first token of requests that begin alike, with and without it.

    python -m benchmarks.prefix [--requests 32] [--shared 800] [--own 24] [--at-once 32] [--outputs 8]

Starts `octavo serve` twice, the second time with --no-prefix-cache, sends the requests (all at once, or so many at a
time), and prints the median time to the first token, the output tokens a second, and how much of the prompts was found.
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


def ids(seed: object, count: int) -> list[int]:
    return random.Random(str(seed)).choices(range(1000, 40_000), k=count)


def connect(greeting: str) -> httpx2.Client:
    """To the server that printed this line. One client for all requests: another for each would cost the machine as
    much as the answers do."""
    url = next(word for word in greeting.split() if word.startswith("http://"))
    return httpx2.Client(base_url=url, timeout=600, trust_env=False)


def ask(client: httpx2.Client, prompt: list[int], outputs: int) -> tuple[float, int]:
    """Seconds to the first token, and the prompt tokens that were found."""
    body = {
        "prompt": prompt,
        "max_tokens": outputs,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    first, found = 0.0, 0
    began = time.perf_counter()
    with client.stream("POST", "/v1/completions", json=body) as reply:
        for line in reply.iter_lines():
            if not line.startswith("data: {"):
                continue
            first = first or time.perf_counter() - began
            if usage := json.loads(line.removeprefix("data: ")).get("usage"):
                found = usage["prompt_tokens_details"]["cached_tokens"]
    return first, found


def measure(
    model: str, requests: int, shared: int, own: int, at_once: int, outputs: int, *options: str
) -> tuple[float, float, float]:
    """Median time to the first token in seconds, output tokens a second, and the share of all prompt tokens found."""
    command = [sys.executable, "-m", "octavo", "serve", model, "--port", "0", *options]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        prompts = [ids("shared", shared) + ids(number, own) for number in range(requests)]
        with connect(server.stdout.readline()) as client, ThreadPoolExecutor(at_once) as pool:
            ask(client, ids("warm", 32), 8)
            began = time.perf_counter()
            answers = list(pool.map(lambda prompt: ask(client, prompt, outputs), prompts))
            rate = requests * outputs / (time.perf_counter() - began)
    finally:
        server.terminate()
        server.wait()
    seconds = statistics.median(first for first, _ in answers)
    return seconds, rate, sum(found for _, found in answers) / (requests * (shared + own))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="smollm2", help="alias, path or hf: reference")
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--shared", type=int, default=800, help="tokens that all prompts begin with")
    parser.add_argument("--own", type=int, default=24, help="tokens after them")
    parser.add_argument("--at-once", type=int, help="requests that are open at a time; the default is all")
    parser.add_argument("--outputs", type=int, default=8, help="tokens of each answer")
    options = parser.parse_args()
    at_once = options.at_once or options.requests
    sizes = (options.model, options.requests, options.shared, options.own, at_once, options.outputs)
    table = Table("prefix cache", "first token, median, s", "output tokens/s", "prompt tokens found")
    rows = [("on", measure(*sizes)), ("off", measure(*sizes, "--no-prefix-cache"))]
    for name, (seconds, rate, share) in rows:
        table.add_row(name, f"{seconds:.2f}", f"{rate:.0f}", f"{100 * share:.0f} %")
    Console().print(table)
    print(f"{rows[1][1][0] / rows[0][1][0]:.1f} times as fast")


if __name__ == "__main__":
    main()
