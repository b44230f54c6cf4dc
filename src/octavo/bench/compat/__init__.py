"""Numbers as other benchmark clients define them, from our own raw record. Each tool has its own words, units and
oddities; a module for each knows them, and this one only chooses.

Nothing of the tools is used or asked: what they would have made of the same events is computed. docs/bench.md says
in a table how they differ.
"""

from __future__ import annotations

from typing import Literal, get_args

from octavo.bench.compat import aiperf, guidellm, vllm
from octavo.bench.compat.report import CompatReport, Value
from octavo.bench.record import Run
from octavo.errors import InvalidParameter

__all__ = ["TOOLS", "CompatReport", "Tool", "Value", "recompute"]

Tool = Literal["vllm", "guidellm", "aiperf"]
TOOLS: tuple[Tool, ...] = get_args(Tool)

_RECOMPUTE = {"vllm": vllm.recompute, "guidellm": guidellm.recompute, "aiperf": aiperf.recompute}


def recompute(run: Run, tool: Tool) -> CompatReport:
    """A run's numbers by a tool's definitions, with its names and units.

    Raises InvalidParameter for a tool that is not known.
    """
    if tool not in _RECOMPUTE:
        raise InvalidParameter(f"compat is {tool!r}; it must be one of {', '.join(TOOLS)}.", "compat")
    return _RECOMPUTE[tool](run)
