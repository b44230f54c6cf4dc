"""Who is measured: each side's worker, server, flags, and what the sweep may try. Knows no timing.

A side is a peer with a format of the weights, written `peer:format`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.tools import Unusable, Workshop
from benchmarks.peers.work import Kind

__all__ = ["PEERS", "SIDES", "Flags", "Peer", "Side", "parse_sides"]

Flags = Mapping[str, Any]

CORES = len(os.sched_getaffinity(0))
_THREADS = tuple(dict.fromkeys((CORES, max(CORES // 2, 1))))


@dataclass(frozen=True, eq=False)
class Peer:
    """What is known of a program. The first value of each option is where the sweep starts."""

    name: str
    options: Mapping[str, tuple[Any, ...]]
    serves: bool
    """Whether there is a server of its own to be measured over HTTP."""
    why: str
    """What the table says beside it."""


PEERS = {
    "octavo": Peer("octavo", {}, True, "its defaults"),
    "llama": Peer(
        "llama",
        {
            "threads": _THREADS,
            "threads_batch": _THREADS,
            "flash_attn": (True, False),
            "unified": (False, True),
            "ubatch": (512, 256, 128),
            "kv": ("f16", "q8_0"),
        },
        True,
        "llama-cpp-python, built for this processor; its server answers one request after another",
    ),
    "openvino": Peer(
        "openvino",
        {"threads": _THREADS, "kv": ("u8", "f32", "bf16"), "group": (32, 0, 64)},
        False,
        "openvino-genai, continuous batching; PyPI has no server for it",
    ),
    "vllm": Peer(
        "vllm",
        {"dtype": ("float32", "bfloat16"), "bind": (f"0-{CORES - 1}",), "batched": (512, 2048), "eager": (True, False)},
        True,
        "vllm-cpu; its CPU backend does not read GGUF, so the weights are widened",
    ),
}  # fmt: skip

SIDES = (
    "octavo:q4_1",
    "llama:q4_1",
    "llama:q4_0",
    "llama:q8_0",
    "llama:q4_k_m",
    "openvino:q4_1",
    "openvino:q8_0",
    "vllm:f32",
)
"""Who is measured when nothing else is asked for, Octavo first."""
SHAPE_PEERS = ("octavo", "llama")


@dataclass(frozen=True)
class Side:
    peer: Peer
    form: str
    """Of the weights: q4_1, q4_0, q8_0, q4_k_m, …"""

    @property
    def name(self) -> str:
        return f"{self.peer.name}:{self.form}"

    def model(self, workshop: Workshop, source: Path | None = None) -> str:
        """What its worker loads, made when it is not there: of SmolLM2, or of the GGUF file `source`."""
        # vLLM gets the same weights, widened
        file = source or workshop.gguf("q4_1" if self.peer.name == "vllm" else self.form)
        if self.peer.name == "openvino":
            return str(workshop.openvino(file))
        if self.peer.name == "vllm":
            return str(workshop.folder_of(file))
        return str(file)

    def options(self, kind: Kind, streams: int) -> dict[str, tuple[Any, ...]]:
        """What is worth trying for such a work."""
        options = dict(self.peer.options)
        if kind == "prefill":
            options.pop("threads", None) if self.peer.name == "llama" else None
        else:
            for name in ("threads_batch", "ubatch", "batched"):
                options.pop(name, None)
        if streams == 1:
            options.pop("unified", None)  # the same with one sequence
        return options

    def start(self) -> dict[str, Any]:
        """Flags before any sweep."""
        return {name: values[0] for name, values in self.peer.options.items()}

    def server(
        self, workshop: Workshop, model: str, port: int, flags: Flags
    ) -> tuple[list[str], dict[str, str]]:
        """The command of its server and its variables. Raises Unusable."""
        python = str(workshop.python(self.peer.name))
        if self.peer.name == "octavo":
            return (
                [
                    python,
                    "-m",
                    "octavo",
                    "serve",
                    model,
                    "--port",
                    str(port),
                    "--served-model-name",
                    "m",
                    "--no-prefix-cache",
                    "--speculation",  # as for the others: answers to random prompts loop, and loops guess themselves
                    "off",
                ],
                {},
            )
        if self.peer.name == "llama":
            kinds = {"f16": "1", "q8_0": "8"}  # ggml's numbers of the types
            options = {
                "model": model,
                "model_alias": "m",
                "port": port,
                "n_ctx": 2048,
                "n_batch": 512,
                "n_ubatch": flags["ubatch"],
                "n_threads": flags["threads"],
                "n_threads_batch": flags["threads_batch"],
                "flash_attn": flags["flash_attn"],
                "type_k": kinds[flags["kv"]],
                "type_v": kinds[flags["kv"]],
                "logits_all": False,  # on, a prompt's every token would get logits
                "interrupt_requests": False,  # on, a new request ends the running one
                "verbose": False,
            }
            arguments = [text for name, value in options.items() for text in (f"--{name}", str(value))]
            return [python, "-m", "llama_cpp.server", *arguments], {}
        if self.peer.name == "vllm":
            arguments = ["--served-model-name", "m", "--port", str(port), "--dtype", flags["dtype"], "--max-model-len",
                "2048", "--max-num-seqs", "64", "--max-num-batched-tokens", str(flags["batched"]),
                "--no-enable-prefix-caching", "--disable-log-stats"]  # fmt: skip
            if flags["eager"]:
                arguments.append("--enforce-eager")
            command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", model, *arguments]
            return command, {
                "VLLM_CPU_KVCACHE_SPACE": "2",
                "VLLM_CPU_OMP_THREADS_BIND": flags["bind"],
                "VLLM_LOGGING_LEVEL": "WARNING",
                "HF_HUB_OFFLINE": "1",
            }
        raise Unusable("PyPI has no server for it")

    def body(self, text: str, outputs: int) -> dict[str, Any]:
        """A completion request that gives exactly `outputs` tokens."""
        body: dict[str, Any] = {"model": "m", "prompt": text, "max_tokens": outputs, "temperature": 0}
        if (
            self.peer.name == "llama"
        ):  # it has no ignore_eos: forbid the two tokens that end a text in SmolLM2
            return {**body, "logit_bias": {"0": -100, "2": -100}, "logit_bias_type": "input_ids"}
        return {**body, "ignore_eos": True}


def parse_sides(names: list[str]) -> list[Side]:
    """Raises ValueError."""
    sides = []
    for name in names:
        peer, _, form = name.partition(":")
        if peer not in PEERS or not form:
            raise ValueError(f"{name!r} is no side; they are {', '.join(SIDES)}, and octavo:FORMAT")
        sides.append(Side(PEERS[peer], form))
    return sides
