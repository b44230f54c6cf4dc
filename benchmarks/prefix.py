"""What the prefix cache is worth: the time to the first token of requests that begin alike, with and without it.

    python -m benchmarks.prefix [--requests 32] [--shared 800] [--own 24] [--at-once 32] [--outputs 8]

Starts `octavo serve` twice, the second time with --no-prefix-cache, sends the requests (all at once, or so many at a
time), and prints the median time to the first token, the output tokens a second, and how much of the prompts was found.
Random prompts make answers that loop, so nothing is guessed. Beside them: the same requests through the engine in this
process, and what the products of the weights allow at most.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx2
from rich.console import Console
from rich.table import Table

from benchmarks.engine import products_of
from octavo.backends.native import load_kernels
from octavo.config import EngineConfig
from octavo.engine.build import build_engine
from octavo.models.store import open_model
from octavo.sampling.params import SamplingParams
from octavo.scheduling.inputs import Add


def ids(seed: object, count: int) -> list[int]:
    return random.Random(str(seed)).choices(range(1000, 40_000), k=count)


@contextmanager
def served(model: str, *options: str) -> Iterator[httpx2.Client]:
    """Asks a new server. One client for all requests: another for each would cost the machine as much as the answers
    do."""
    command = [sys.executable, "-m", "octavo", "serve", model, "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        greeting = process.stdout.readline().split()
        url = next(word for word in greeting if word.startswith("http://"))
        with httpx2.Client(base_url=url, timeout=600, trust_env=False) as client:
            yield client
    finally:
        process.terminate()
        process.wait()


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
    prompts = [ids("shared", shared) + ids(number, own) for number in range(requests)]
    with served(model, "--speculation", "off", *options) as client, ThreadPoolExecutor(at_once) as pool:
        ask(client, ids("warm", 32), 8)
        began = time.perf_counter()
        answers = list(pool.map(lambda prompt: ask(client, prompt, outputs), prompts))
        rate = requests * outputs / (time.perf_counter() - began)
    seconds = statistics.median(first for first, _ in answers)
    return seconds, rate, sum(found for _, found in answers) / (requests * (shared + own))


def alone(
    model_name: str, requests: int, shared: int, own: int, at_once: int, outputs: int
) -> tuple[float, float]:
    """The same through the engine in this process, without HTTP: output tokens a second, and the most that the products
    of their weights alone would allow, at the rate at which this machine multiplies registers."""
    model = open_model(model_name)
    sizes = {
        "model_dir": str(model.dir),
        "kv_memory_bytes": 1 << 30,
        "max_model_len": 2048,
        "speculation": "off",
    }
    engine = build_engine(EngineConfig(**sizes))  # type: ignore[arg-type]
    params = SamplingParams(max_tokens=outputs, ignore_eos=True, seed=0)
    waiting = [
        Add(str(number), tuple(ids("shared", shared) + ids(number, own)), params, 0.0)
        for number in range(requests)
    ]
    engine.add(Add("warm", tuple(ids("warm", 32)), params, 0.0))
    while not engine.idle:
        engine.step()
    began, open_requests = time.perf_counter(), 0
    while waiting or not engine.idle:
        while waiting and open_requests < at_once:
            engine.add(waiting.pop(0))
            open_requests += 1
        open_requests -= sum(item.finish_reason is not None for item in engine.step().items)
    seconds = time.perf_counter() - began
    kernels = load_kernels()
    products = statistics.median(kernels.ops.time_products(threads=engine.info.threads, repeats=20))
    engine.close()
    each = [
        (tensor.rows * tensor.cols * products_of(tensor.container, kernels.isa()), tensor.rows)
        for tensor in model.tensors.values()
        if tensor.kind != "vector"
    ]
    head = next(count for count, rows in each if rows == model.spec.vocab_size)
    body = sum(count for count, _ in each) - head
    made = (shared + requests * (own + outputs)) * body + requests * outputs * head
    return requests * outputs / seconds, requests * outputs * products / made


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
    inside, limit = alone(*sizes)
    table.add_row("on, without HTTP", "", f"{inside:.0f}", "")
    table.add_row("the registers' limit", "", f"{limit:.0f}", "")
    Console().print(table)
    print(f"{rows[1][1][0] / rows[0][1][0]:.1f} times as fast")


if __name__ == "__main__":
    main()
