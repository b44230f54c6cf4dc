"""The other clients: how each is started with our load, and where it puts its numbers. Knows their flags, not ours."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.bench_peers.load import Load, on, shares
from octavo.bench.compat import Tool

__all__ = ["COMPARED", "Job", "Unusable", "ask"]

COMPARED: dict[Tool, tuple[str, ...]] = {
    "vllm": (
        "median_ttft_ms",
        "median_tpot_ms",
        "median_itl_ms",
        "median_e2el_ms",
        "request_throughput",
        "output_throughput",
    ),
    "aiperf": (
        "time_to_first_token.p50",
        "inter_token_latency.p50",
        "inter_chunk_latency.p50",
        "request_latency.p50",
        "request_throughput.avg",
        "output_token_throughput.avg",
    ),
    "guidellm": (
        "time_to_first_token_ms.median",
        "time_per_output_token_ms.median",
        "inter_token_latency_ms.median",
        "request_latency.median",
        "requests_per_second.mean",
        "output_tokens_per_second.mean",
    ),
}
"""Numbers that are set beside ours, by the tools' names."""

# Its own command asks for the version of a package named vllm, which the CPU build does not have.
_VLLM = """
import argparse
from vllm.benchmarks.serve import add_cli_args, main
parser = argparse.ArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
_TIMEOUT_S = 1200


class Unusable(Exception):
    """A tool failed; the message is the last thing that it said."""


@dataclass(frozen=True)
class Job:
    """One run of one tool."""

    url: str
    model: str
    load: Load
    prompts: Path
    """JSON lines."""
    tokenizer: Path
    counted: bool
    """The server tells how many tokens an answer has."""
    folder: Path
    """For its output; new."""


def ask(tool: Tool, home: Path, job: Job) -> dict[str, float]:
    """Runs it from its virtual environment and returns COMPARED's numbers. Raises Unusable."""
    job.folder.mkdir()
    command = {"vllm": _vllm, "aiperf": _aiperf, "guidellm": _guidellm}[tool](home / "bin", job)
    variables = {
        name: value for name, value in os.environ.items() if name not in ("HF_HUB_OFFLINE", "VIRTUAL_ENV")
    }
    with on(shares()[1]):
        done = subprocess.run(
            command,
            cwd=job.folder,
            env={**variables, "TMPDIR": str(job.folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    (job.folder / "output.log").write_text(done.stdout)
    try:
        found = {"vllm": _read_vllm, "aiperf": _read_aiperf, "guidellm": _read_guidellm}[tool](job)
    except (OSError, KeyError, TypeError, ValueError) as error:
        lines = [line.strip() for line in done.stdout.splitlines() if "rror" in line] or done.stdout.split(
            "\n"
        )
        raise Unusable(
            f"{tool} left no numbers ({error!r}; exit code {done.returncode}): {lines[-1]}"
        ) from None
    return found


def _vllm(bin_folder: Path, job: Job) -> list[str]:
    load = job.load
    command = [
        *(str(bin_folder / "python"), "-c", _VLLM),
        *("--backend", "openai-chat" if load.chat else "openai"),
        *("--endpoint", "/v1/chat/completions" if load.chat else "/v1/completions"),
        *("--base-url", job.url, "--model", job.model, "--tokenizer", str(job.tokenizer)),
        *("--dataset-name", "custom", "--dataset-path", str(job.prompts), "--disable-shuffle"),
        *(
            "--skip-chat-template",
            "--custom-output-len",
            str(load.output),
            "--num-prompts",
            str(load.requests),
        ),
        *("--ignore-eos", "--extra-body", '{"temperature": 0}', "--disable-tqdm"),
        *("--percentile-metrics", "ttft,tpot,itl,e2el", "--save-result"),
        *("--result-dir", str(job.folder), "--result-filename", "result.json"),
    ]
    if load.clients:
        return [*command, "--max-concurrency", str(load.clients)]
    return [*command, "--request-rate", str(load.rate), "--burstiness", "inf"]


def _read_vllm(job: Job) -> dict[str, float]:
    result = json.loads((job.folder / "result.json").read_text())
    if result["completed"] != job.load.requests:
        raise ValueError(f"{result['completed']} of {job.load.requests} requests completed")
    return {name: float(result[name]) for name in COMPARED["vllm"]}


def _aiperf(bin_folder: Path, job: Job) -> list[str]:
    load = job.load
    command = [
        *(str(bin_folder / "aiperf"), "profile", "--model", job.model, "--url", job.url),
        *("--endpoint-type", "chat" if load.chat else "completions", "--streaming"),
        *("--tokenizer", str(job.tokenizer), *(["--use-server-token-count"] if job.counted else [])),
        *("--input-file", str(job.prompts), "--custom-dataset-type", "single_turn"),
        *("--dataset-sampling-strategy", "sequential", "--request-count", str(load.requests)),
        *("--extra-inputs", "ignore_eos:true", "--extra-inputs", f"max_tokens:{load.output}"),
        *("--extra-inputs", "temperature:0", "--ui", "none", "--no-gpu-telemetry", "--no-server-metrics"),
        *("--artifact-dir", str(job.folder / "artifacts")),
    ]
    if load.clients:
        return [*command, "--concurrency", str(load.clients)]
    return [*command, "--request-rate", str(load.rate), "--arrival-pattern", "constant"]


def _read_aiperf(job: Job) -> dict[str, float]:
    result = json.loads((job.folder / "artifacts" / "profile_export_aiperf.json").read_text())
    if result["request_count"]["avg"] != job.load.requests:
        raise ValueError(f"{result['request_count']['avg']} of {job.load.requests} requests completed")
    return {name: _at(result, name) for name in COMPARED["aiperf"]}


def _guidellm(bin_folder: Path, job: Job) -> list[str]:
    load = job.load
    profile: dict[str, Any] = {"kind": "constant", "rate": [load.rate]}
    if load.clients:
        profile = {"kind": "concurrent", "streams": [load.clients]}
    body = {"ignore_eos": True, "temperature": 0}
    spec = {
        "backend": {
            "kind": "openai_http",
            "target": job.url,
            "model": job.model,
            "request_format": "/v1/chat/completions" if load.chat else "/v1/completions",
            "max_tokens": load.output,
            "validate_backend": False,  # it would ask for /health, which not every server has
            "extras": {"body": body},
        },
        "profile": profile,
        "constraints": [{"kind": "max_requests", "count": load.requests}],
        "data": [{"kind": "json_file", "path": str(job.prompts)}],
        "tokenizer": {"kind": "hf_auto", "model": str(job.tokenizer)},
        "outputs": [{"kind": "json", "path": str(job.folder / "result.json")}],
    }
    scenario = job.folder / "scenario.json"
    scenario.write_text(json.dumps({"spec": spec}))
    return [str(bin_folder / "guidellm"), "run", "-c", str(scenario), "--disable-console"]


def _read_guidellm(job: Job) -> dict[str, float]:
    metrics = json.loads((job.folder / "result.json").read_text())["benchmarks"][0]["metrics"]
    done = metrics["request_totals"]["successful"]
    if done != job.load.requests:
        raise ValueError(f"{done} of {job.load.requests} requests completed")
    found = {}
    for name in COMPARED["guidellm"]:
        metric, _, statistic = name.partition(".")
        found[name] = float(metrics[metric]["successful"][statistic])
    return found


def _at(tree: Any, path: str) -> float:
    for name in path.split("."):
        tree = tree[name]
    return float(tree)
