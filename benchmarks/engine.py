"""How fast the engine steps on this machine: prompts, one stream, many streams, with the machine's limits beside them.

    python -m benchmarks.engine [--model smollm2|FILE.gguf] [--contexts 128 1024 4096] [--repeats 3] [--full]

A model may be one of random weights (python -m benchmarks.shapes).

Everything runs through the real engine (scheduler, plans, native backend) in this process. Compare figures of one run
only: machines are noisy, and the limits in the last rows were measured in the same minute: what the weights' bytes or
the products alone would take at the rate at which this machine reads memory, or multiplies registers.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from octavo.backends.native import load_kernels
from octavo.config import EngineConfig
from octavo.engine.build import build_engine
from octavo.engine.engine import Engine
from octavo.models.store import StoredModel, open_model
from octavo.sampling.params import SamplingParams
from octavo.scheduling.inputs import Add

PREFILL = (128, 512, 2048)
STREAMS = (1, 4, 8, 16, 32, 64)
DECODED = 64
MOST_PROMPTS = 20_000
"""Tokens of all the prompts of a row; longer rows take minutes, and are measured with --full."""
CHUNK = 512
"""Prompt tokens of the row whose limit is given."""


def outputs_of(streams: int, context: int) -> int:
    """Tokens that the first stream may give until the last one has given DECODED: it decodes while prompts are read."""
    return DECODED + 2 + streams + -(-streams * context // (CHUNK // 2))


def add(name: str, tokens: int, outputs: int, vocabulary: int) -> Add:
    ids = tuple(random.Random(name).choices(range(vocabulary), k=tokens))
    params = SamplingParams(temperature=0.0, max_tokens=outputs, ignore_eos=True, seed=0)
    return Add(name, ids, params, 0.0)


def prefill(engine: Engine, tokens: int, vocabulary: int) -> float:
    """Prompt tokens per second of one prompt, its first token chosen."""
    engine.add(add(f"p{tokens}", tokens, 1, vocabulary))
    began = time.perf_counter()
    while not engine.idle:
        engine.step()
    return tokens / (time.perf_counter() - began)


def decode(engine: Engine, streams: int, vocabulary: int, context: int = 128) -> float:
    """Output tokens per second of `streams` sequences, over DECODED steps in which all decode and nothing else.

    Each has `context` tokens before the decoded ones.
    """
    names = [f"d{number}" for number in range(streams)]
    for name in names:  # the first ones decode while the last ones' prompts are still read
        engine.add(add(name, context, outputs_of(streams, context), vocabulary))
    steps, seconds, together = 0, 0.0, False
    while steps < DECODED:
        began = time.perf_counter()
        outputs = engine.step()
        taken = time.perf_counter() - began
        if together:
            steps, seconds = steps + 1, seconds + taken
        together = sum(len(item.samples) for item in outputs.items) == streams
    for name in names:
        engine.abort(name)
    while not engine.idle:
        engine.step()
    return streams * steps / seconds


def best(repeats: int, measure: Callable[[], float]) -> tuple[float, float]:
    """Best and median: the best is what the machine can do, the median what it did."""
    runs = [measure() for _ in range(repeats)]
    return max(runs), statistics.median(runs)


def products_of(container: str, isa: str) -> int:
    """Products of a 4-bit weight that one weight costs: without VNNI, AVX2 makes an 8-bit product of two."""
    return 2 if isa == "avx2" and container.startswith("u8") else 1


def products(model: StoredModel, isa: str) -> tuple[float, float]:
    """Products a token costs: in the layers, and in the output matrix that only samples need."""
    layers = head = 0
    for tensor in model.tensors.values():
        if tensor.kind == "vector":
            continue
        cost = tensor.rows * tensor.cols * products_of(tensor.container, isa)
        if tensor.rows == model.spec.vocab_size:
            head = cost
        else:
            layers += cost
    return layers, head


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown processor"


def rows_of(contexts: list[int], full: bool) -> list[tuple[int, int]]:
    """Streams and contexts that are measured, the largest first."""
    pairs = [(streams, context) for context in contexts for streams in STREAMS]
    return sorted((pair for pair in pairs if full or pair[0] * pair[1] <= MOST_PROMPTS), reverse=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2", help="alias, path or hf: reference")
    parser.add_argument("--threads", type=int, help="worker threads (default: all cores)")
    parser.add_argument("--weights", default="auto", choices=("auto", "copy", "map"), help="where they lie")
    parser.add_argument("--kv-dtype", default="bf16", choices=("bf16", "fp32", "int8"))
    parser.add_argument("--contexts", type=int, nargs="+", default=[128, 1024, 4096], metavar="TOKENS")
    parser.add_argument(
        "--full", action="store_true", help="rows with very many prompt tokens too: minutes each"
    )
    parser.add_argument("--repeats", type=int, default=3, help="runs of each row")
    arguments = parser.parse_args()
    model = open_model(arguments.model)
    measured = rows_of(arguments.contexts, arguments.full)
    lengths = [(streams, context + outputs_of(streams, context)) for streams, context in measured]
    longest = max(*PREFILL, *(length for _, length in lengths)) + 1
    blocks = max(-(-longest // 16), *(streams * -(-length // 16) for streams, length in lengths))
    config = EngineConfig(
        speculation="off",  # one token of each stream a step
        model_dir=str(model.dir),
        num_blocks=blocks + 8,
        max_model_len=longest,
        threads=arguments.threads,
        weights=arguments.weights,
        kv_dtype=arguments.kv_dtype,
        prefix_cache=False,  # prompts are the same in every repeat
    )
    engine = build_engine(config)
    vocabulary, threads = model.spec.vocab_size, engine.info.threads
    kernels = load_kernels()
    title = (
        f"{model.spec.name}, {processor()}, {kernels.isa()}, {threads} threads, {arguments.kv_dtype} K and V"
    )
    table = Table("work", "best, tokens/s", "median, tokens/s", title=title)
    # Many streams first: a prompt in KV memory that was never used pays for the system's zeroing of it.
    streams = {
        pair: best(arguments.repeats, lambda pair=pair: decode(engine, pair[0], vocabulary, pair[1]))  # type: ignore[misc]
        for pair in track(measured, "streams", transient=True)
    }
    prompts = {n: best(arguments.repeats, lambda n=n: prefill(engine, n, vocabulary)) for n in PREFILL}  # type: ignore[misc]
    for tokens, (fast, usual) in prompts.items():
        table.add_row(f"prefill of {tokens}", f"{fast:.0f}", f"{usual:.0f}")
    for (count, context), (fast, usual) in sorted(streams.items(), key=lambda row: row[0][::-1]):
        table.add_row(f"{count} stream{'s' * (count > 1)} at {context} tokens", f"{fast:.0f}", f"{usual:.0f}")
    engine.close()
    weights = model.weights()
    layers, head = products(model, kernels.isa())
    table.add_section()

    def limit(work: str, best: float, usual: float, unit: str, token: float) -> None:
        """A row; the machine does `best` and `usual` of `unit` per second, of which a token takes `token`."""
        rates = [f"{rate / token:.0f} ({rate / 1e9:.1f} G{unit}/s)" for rate in (best, usual)]
        table.add_row(work, *rates)

    for count in sorted({1, threads}):
        seconds = kernels.ops.time_read(weights, threads=count, repeats=5 * arguments.repeats)
        rates = [weights.nbytes / each for each in seconds]
        what = f"limit of 1 stream: {weights.nbytes / 1e6:.0f} MB a token, {count} threads"
        limit(what, max(rates), statistics.median(rates), "B", weights.nbytes)
    rates = kernels.ops.time_products(threads=threads, repeats=20 * arguments.repeats)
    for what, token in (
        (f"limit of prefill of {CHUNK}: {layers / 1e6:.0f} M products a token", layers + head / CHUNK),
        (f"limit of many streams: {(layers + head) / 1e6:.0f} M products a token", layers + head),
    ):
        limit(what, max(rates), statistics.median(rates), "products", token)
    Console().print(table)


if __name__ == "__main__":
    main()
