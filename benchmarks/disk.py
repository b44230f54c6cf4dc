"""What the disk cache is worth: the time to the first token of one long prompt, computed, from memory, and from disk.

    python -m benchmarks.disk [--tokens 800] [--repeats 5] [--folder PATH]

Starts `octavo serve` with memory for two such prompts. "from disk" is asked after other prompts took all of it, and
once more of a new server on the same folder. The system keeps files that it wrote in memory where there is room;
--folder on another disk, or a machine with less memory, shows the disk itself.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from contextlib import AbstractContextManager

import httpx2
from rich.console import Console
from rich.table import Table

from benchmarks.prefix import ask, ids, served

OTHERS = 3
"""Prompts that take all of the memory."""


def server(model: str, tokens: int, *options: str) -> AbstractContextManager[httpx2.Client]:
    """Asks a new server; its memory holds two prompts of `tokens` tokens."""
    return served(model, "--num-blocks", str(2 * (tokens // 16 + 4)), *options)


def counted(client: httpx2.Client, name: str) -> float:
    """One of the server's metrics."""
    text = client.get("/metrics").text
    return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith(f"{name}{{"))


def measure(model: str, tokens: int, repeats: int, folder: str) -> dict[str, list[tuple[float, int, float]]]:
    """Per way: seconds to the first token, prompt tokens found, tokens that came from disk; one of each repeat."""
    told: dict[str, list[tuple[float, int, float]]] = {}

    def timed(way: str, client: httpx2.Client, prompt: list[int]) -> None:
        before = counted(client, "octavo_cache_disk_hit_tokens_total")
        seconds, found = ask(client, prompt, 8)
        fetched = counted(client, "octavo_cache_disk_hit_tokens_total") - before
        told.setdefault(way, []).append((seconds, found, fetched))

    prompts = [ids(("prompt", number), tokens) for number in range(repeats)]
    with server(model, tokens, "--cache-disk", folder) as client:
        ask(client, ids("warm", 32), 8)
        for number, prompt in enumerate(prompts):
            timed("computed", client, prompt)
            timed("from memory", client, prompt)
            for other in range(OTHERS):
                ask(client, ids(("other", number, other), tokens), 8)
            time.sleep(0.5)
            timed("from disk", client, prompt)
    with server(model, tokens, "--cache-disk", folder) as client:
        ask(client, ids("warm", 32), 8)
        for prompt in prompts:
            timed("from disk, by a new server", client, prompt)
    with server(model, tokens) as client:
        ask(client, ids("warm", 32), 8)
        for prompt in prompts:
            timed("computed, without --cache-disk", client, prompt)
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="smollm2", help="alias, path or hf: reference")
    parser.add_argument("--tokens", type=int, default=800, help="of the prompt")
    parser.add_argument("--repeats", type=int, default=5, help="prompts of each kind")
    parser.add_argument("--folder", help="where the blocks are kept; the default is a temporary folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        told = measure(options.model, options.tokens, options.repeats, folder)
    table = Table("prompt", "first token, median, ms", "found, tokens", "of it from disk")
    for way, runs in told.items():
        seconds, found, fetched = (statistics.median(column) for column in zip(*runs, strict=True))
        table.add_row(way, f"{1000 * seconds:.0f}", f"{found:.0f}", f"{fetched:.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()
