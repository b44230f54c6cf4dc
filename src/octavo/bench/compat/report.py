"""What a recomputation gives back, and what all tools' clients have in common. Knows no tool."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from octavo.bench.record import Exchange, Kind

__all__ = ["WHOLE", "CompatReport", "Value", "began_us", "content_us", "has_content", "linear", "seen"]

CONTENT = int(Kind.ANSWER | Kind.REASONING | Kind.TOOL)
"""An event with something of the answer in it."""

WHOLE = (None, "stream")
"""Errors of answers that came to their end as HTTP has it: none, or one that an event of the stream tells of."""


class Value(msgspec.Struct, frozen=True):
    """One number as the tool reports it."""

    name: str
    """As in the tool's JSON."""
    value: float
    unit: str
    note: str = ""
    """What this record cannot tell exactly, or what the name does not say."""


class CompatReport(msgspec.Struct, frozen=True):
    """What a tool would have reported of a run."""

    tool: str
    version: str
    """Of the tool whose definitions these are."""
    values: list[Value]
    notes: list[str]
    """What holds for all of them."""

    def value(self, name: str) -> float:
        """Raises KeyError for a name that the tool does not report, or not of this run."""
        for one in self.values:
            if one.name == name:
                return one.value
        raise KeyError(name)


def seen(exchanges: Sequence[Exchange]) -> list[Exchange]:
    """Those that a tool would have begun: not such as were skipped, since an answer before them failed."""
    return [one for one in exchanges if one.error != "skipped"]


def began_us(exchange: Exchange) -> int:
    """When a tool that looks at its clock before it asks for a connection says that the request began."""
    if exchange.started_us is not None:
        return exchange.started_us
    return exchange.sent_us if exchange.sent_us is not None else exchange.intended_us


def content_us(exchange: Exchange) -> list[int]:
    """When the events with something of the answer in them came."""
    return [chunk.at_us for chunk in exchange.chunks if chunk.kind & CONTENT]


def has_content(exchange: Exchange) -> bool:
    """Whether any came."""
    return any(chunk.kind & CONTENT for chunk in exchange.chunks)


def linear(values: Sequence[float], percents: Sequence[float]) -> list[float]:
    """Percentiles between two neighbours on a straight line, as numpy does by default. `values` [n], not empty."""
    return [float(one) for one in np.percentile(np.asarray(values, dtype=np.float64), percents)]
