"""What all tools' recomputations have in common, and that they give what the tools themselves gave.

vllm.json, aiperf.json and guidellm.json are what vLLM's client 0.32.0, aiperf 0.13.0 and GuideLLM 0.8.1 made of the
run `varied()`: `python -m benchmarks.bench_peers.oracle` gives each tool's own reader of streams the events as a
server's bytes, with its clock set to their times; its own functions compute the numbers.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from octavo.bench.compat import TOOLS, Tool, recompute
from octavo.errors import InvalidParameter
from tests.bench.compat.examples import run_of, varied


@pytest.mark.parametrize("tool", TOOLS)
def test_the_tool_itself_gave_these_numbers(tool: Tool) -> None:
    theirs = json.loads((Path(__file__).parent / f"{tool}.json").read_text())
    ours = {value.name: value.value for value in recompute(varied(), tool).values}
    if tool == "vllm":
        assert ours.pop("duration") == 1.451  # their functions are given it
    assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("tool", TOOLS)
def test_names_are_told_once_each_with_a_unit(tool: Tool) -> None:
    report = recompute(varied(), tool)
    names = [value.name for value in report.values]
    assert len(set(names)) == len(names)
    assert all(value.unit for value in report.values)
    assert report.tool == tool


@pytest.mark.parametrize("tool", TOOLS)
def test_a_run_without_requests_has_no_times(tool: Tool) -> None:
    for value in recompute(run_of(), tool).values:
        assert value.value == 0, value


def test_an_unknown_tool_is_named_with_those_that_there_are() -> None:
    with pytest.raises(InvalidParameter, match="'genai-perf'; it must be one of vllm, guidellm, aiperf"):
        recompute(varied(), "genai-perf")  # type: ignore[arg-type]
