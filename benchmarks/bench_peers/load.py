"""The load that all clients make, as our workload and as the others' file; and a server of our own. Knows no tool."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from octavo.bench.record import Record, Run
from octavo.models.store import open_model
from octavo.workload import Workload, requests_of
from octavo.workload.arrivals import Closed, Constant
from octavo.workload.lengths import Fixed, Uniform

__all__ = ["Kind", "Load", "measure", "on", "served", "shares", "tokenizer_folder"]

Kind = Literal["octavo", "paced"]
"""All of Octavo, or its server over an engine that computes nothing and keeps a pace."""
_MEASURED = (0, 3)
"""Exit codes: measured, and measured though the machine was busy."""


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

    def workload(self, seed: int) -> Workload:
        """As ours describes it. Another seed asks other words."""
        arrivals = Closed(clients=self.clients) if self.clients else Constant(rate=self.rate or 1.0)
        return Workload(
            seed=seed,
            requests=self.requests,
            arrivals=arrivals,
            input=Uniform(min=self.input // 2, max=self.input * 3 // 2),
            output=Fixed(tokens=self.output),
        )

    def write(self, seed: int, path: Path) -> None:
        """The same prompts as JSON lines, under the names that the tools look for."""
        with path.open("w") as file:
            for request in requests_of(self.workload(seed)):
                text = request.prompt_text()
                row = {"prompt": text, "text": text, "output_tokens": self.output}
                file.write(json.dumps(row) + "\n")

    def __str__(self) -> str:
        how = f"{self.clients} clients" if self.clients else f"{self.rate:g} requests/s"
        route = "chat" if self.chat else "completions"
        return f"{self.requests} requests of {self.input} words, {self.output} tokens each, {how}, {route}"


def measure(url: str, model: str, load: Load, seed: int, folder: Path) -> Run:
    """With `octavo bench`, which leaves its record in the folder. Raises RuntimeError, also for a failed request."""
    workload, record = folder / "workload.json", folder / "record.json.gz"
    workload.write_bytes(msgspec.json.encode(load.workload(seed)))
    command = [sys.executable, "-m", "octavo", "bench", url, "--workload", str(workload), "--model", model]
    command += [
        "--api",
        "chat" if load.chat else "completions",
        "--prompts",
        "text",
        "--quiet",
        "-o",
        str(record),
    ]
    with on(shares()[1]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in _MEASURED:
        raise RuntimeError(f"octavo bench: {done.stderr.strip()[-500:]}")
    run = Record.read(record).runs[0]
    failed = [one for one in run.exchanges if one.error is not None]
    if failed:
        raise RuntimeError(
            f"{len(failed)} requests failed, the first with {failed[0].error}: {failed[0].message}"
        )
    short = [one for one in run.exchanges if one.output_tokens not in (None, load.output)]
    if short:
        raise RuntimeError(
            f"{len(short)} answers have not {load.output} tokens; the loads would not be equal"
        )
    return run


def shares() -> tuple[set[int], set[int]]:
    """The cores of the server, and the one of the clients: else a client that works more makes the server slower."""
    cores = sorted(os.sched_getaffinity(0))
    return set(cores[:-1] or cores), set(cores[-1:])


@contextmanager
def on(cores: set[int]) -> Iterator[None]:
    """What is started meanwhile runs on these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def served(model: str, kind: Kind) -> Iterator[str]:
    """The URL of a server of our own. The whole one keeps no prompts and guesses nothing: either would know the texts
    the second time."""
    cores = shares()[0]
    module = ["octavo", "serve", model] if kind == "octavo" else ["benchmarks.bench_peers.paced", model]
    options = ["--no-prefix-cache", "--speculation", "off", "--threads", str(len(cores)), "--no-access-log"]
    with tempfile.TemporaryDirectory() as data:
        command = [sys.executable, "-m", *module, "--port", "0", "--data-dir", data]
        command += options if kind == "octavo" else []
        # To a file: the paced engine has no heart that beats, which its server tells again and again.
        log = Path(data) / "stderr.log"
        with log.open("w") as errors, on(cores):
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
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
