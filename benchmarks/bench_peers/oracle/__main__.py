"""Makes tests/bench/compat/*.json: the tools' own numbers of the tests' run.

    python -m benchmarks.bench_peers.oracle --vllm VENV --aiperf VENV --guidellm VENV

The run's events are written as the bytes that a server would send. In each tool's virtual environment its own reader of
streams gets them, with its clock set to the events' times, and its own functions compute the numbers.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path
from typing import Any

from octavo.bench.compat import TOOLS
from octavo.bench.record import Chunk, Exchange, Kind
from tests.bench.compat.examples import varied

ROOT = Path(__file__).parents[3]
WORD = "abcd"
"""The text of a token."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    for tool in TOOLS:
        parser.add_argument(f"--{tool}", type=Path, metavar="VENV", help=f"where {tool} is installed")
    options = parser.parse_args()
    told = json.dumps([_told(one) for one in varied().exchanges if one.error != "skipped"])
    for tool in TOOLS:
        home = getattr(options, tool)
        if home is None:
            continue
        command = [
            str(home.absolute() / "bin" / "python"),
            "-m",
            f"benchmarks.bench_peers.oracle.from_{tool}",
        ]
        done = subprocess.run(command, input=told, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
        numbers = json.loads(done.stdout.splitlines()[-1])
        target = ROOT / "tests" / "bench" / "compat" / f"{tool}.json"
        target.write_text(json.dumps(numbers, indent=1) + "\n")
        print(f"{target}: {len(numbers)} numbers")


def _told(exchange: Exchange) -> dict[str, Any]:
    """What a tool would see of a request, and when."""
    return {
        "started_us": exchange.started_us,
        "connected_us": exchange.connected_us,
        "end_us": exchange.end_us,
        "status": exchange.status,
        "cut": exchange.error == "cut",
        "prompt_tokens": exchange.wanted_input,
        "events": [[chunk.at_us, _event(chunk, exchange)] for chunk in exchange.chunks],
    }


def _event(chunk: Chunk, exchange: Exchange) -> str:
    kind, text = Kind(chunk.kind), WORD * chunk.tokens
    body: dict[str, Any] = {"object": "chat.completion.chunk", "choices": []}
    if kind & Kind.DONE:
        return "data: [DONE]\n\n"
    if kind & Kind.ERROR:
        body = {"error": {"message": "out of memory"}}
    elif kind & Kind.USAGE:
        body["usage"] = {"prompt_tokens": exchange.input_tokens, "completion_tokens": exchange.output_tokens}
    else:
        delta: dict[str, Any] = {}
        if kind & Kind.ROLE:
            delta |= {"role": "assistant", "content": ""}
        if kind & Kind.ANSWER:
            delta["content"] = text
        if kind & Kind.REASONING:
            delta["reasoning_content"] = text
        if kind & Kind.TOOL:
            delta["tool_calls"] = [{"index": 0, "function": {"arguments": text}}]
        if kind & Kind.EMPTY:
            delta["content"] = ""
        reason = "stop" if kind & Kind.FINISH else None
        body["choices"] = [{"index": 0, "delta": delta, "finish_reason": reason}]
    return f"data: {json.dumps(body)}\n\n"


if __name__ == "__main__":
    main()
