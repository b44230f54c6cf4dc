"""The load that all clients make, as our workload and as the others' file; and a server of our own. Knows no tool."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from octavo.bench.client import run
from octavo.bench.record import Run
from octavo.bench.target import discover
from octavo.models.store import open_model
from octavo.workload import Request, Workload, requests_of
from octavo.workload.arrivals import Closed, Constant
from octavo.workload.lengths import Fixed, Uniform

__all__ = ["Kind", "Load", "measure", "served", "tokenizer_folder"]

Kind = Literal["octavo", "paced"]
"""All of Octavo, or its server over an engine that computes nothing and keeps a pace."""


@dataclass(frozen=True)
class Load:
    """So many requests of `input` words (about a token each) at the mean, each answered by `output` tokens."""

    requests: int
    clients: int | None
    """In a closed loop; None for an open one."""
    rate: float | None
    """Requests a second, evenly, in an open loop."""
    input: int
    output: int
    chat: bool
    """Else plain completions."""

    def made(self, seed: int) -> list[Request]:
        """The requests of our workload. Another seed asks other words."""
        arrivals = Closed(clients=self.clients) if self.clients else Constant(rate=self.rate or 1.0)
        workload = Workload(
            seed=seed,
            requests=self.requests,
            arrivals=arrivals,
            input=Uniform(min=self.input // 2, max=self.input * 3 // 2),
            output=Fixed(tokens=self.output),
        )
        return list(requests_of(workload))

    def write(self, seed: int, path: Path) -> None:
        """The same prompts as JSON lines, under the names that the tools look for."""
        with path.open("w") as file:
            for request in self.made(seed):
                text = request.prompt_text()
                row = {"prompt": text, "text": text, "output_tokens": self.output}
                file.write(json.dumps(row) + "\n")

    def __str__(self) -> str:
        how = f"{self.clients} clients" if self.clients else f"{self.rate:g} requests/s"
        route = "chat" if self.chat else "completions"
        return f"{self.requests} requests of {self.input} words, {self.output} tokens each, {how}, {route}"


def measure(url: str, model: str, load: Load, seed: int) -> Run:
    """With our client. Raises BenchError for a server that cannot be measured, RuntimeError for a failed request."""

    async def measured() -> Run:
        target = await discover(
            url, model=model, api="chat" if load.chat else "completions", prompts="text", exact_output=True
        )
        return await run(
            target,
            load.made(seed),
            clients=load.clients,
            rate=load.rate,
            seed=seed,
        )

    done = asyncio.run(measured())
    failed = [one for one in done.exchanges if one.error is not None]
    if failed:
        raise RuntimeError(
            f"{len(failed)} requests failed, the first with {failed[0].error}: {failed[0].message}"
        )
    short = [one for one in done.exchanges if one.output_tokens not in (None, load.output)]
    if short:
        raise RuntimeError(
            f"{len(short)} answers have not {load.output} tokens; the loads would not be equal"
        )
    return done


@contextmanager
def served(model: str, kind: Kind) -> Iterator[str]:
    """The URL of a server of our own. The whole one keeps no prompts and guesses nothing: either would know the texts
    the second time."""
    module = ["octavo", "serve", model] if kind == "octavo" else ["benchmarks.bench_peers.paced", model]
    options = ["--no-prefix-cache", "--speculation", "off", "--no-access-log"] if kind == "octavo" else []
    with tempfile.TemporaryDirectory() as data:
        command = [sys.executable, "-m", *module, "--port", "0", "--data-dir", data, *options]
        log = Path(data) / "stderr.log"
        with log.open(
            "w"
        ) as output:  # the paced engine has no heart that beats, which the server tells again and again
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=output, text=True)
        assert process.stdout is not None
        try:
            greeting = process.stdout.readline().split()
            url = next((word for word in greeting if word.startswith("http://")), None)
            if url is None:
                raise RuntimeError(f"The server did not start: {log.read_text()[-500:]}")
            yield url
        finally:
            process.terminate()
            process.wait()


def tokenizer_folder(model: str, folder: Path) -> Path:
    """A folder as transformers reads it, of a model in our store, for tools that count tokens themselves."""
    folder.mkdir()
    shutil.copy(open_model(model).dir / "tokenizer.json", folder)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(
        json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]})
    )
    return folder
