"""What a paper published beside what was simulated: rows, curves, and where every number is from. Knows no run."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

__all__ = ["AGREES", "Checked", "Curve", "Published", "Result", "Row", "Unit"]

AGREES = (0.8, 1.25)
"""Ratios, simulated over published, that need no explanation."""

Unit = Literal["share", "count", "ratio", "1/s", "s", "s/token"]
Checked = Literal["text", "notes", "artifact", "memory"]
"""How a number was checked: against the paper's own sentence, against notes that others took of its figures, against
the files that the authors published beside it, or not at all."""


class Published(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A number of a paper, or the two ends of a range."""

    low: float
    high: float
    where: str
    """Section, figure or table."""
    checked: Checked

    @classmethod
    def one(cls, value: float, where: str, checked: Checked) -> Published:
        return cls(low=value, high=value, where=where, checked=checked)


class Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One number, published and simulated."""

    group: str
    """What experiment it is of."""
    name: str
    unit: Unit
    published: Published | None
    """None: the paper has no such number; it is here because it explains another."""
    simulated: Annotated[float, msgspec.Meta(ge=0)] | None
    """With kernels that reach a typical part of the peaks; None where no rate was good enough."""
    least: float | None = None
    most: float | None = None
    """Of all efficiencies that were tried; None where one was."""
    why: str = ""
    """What in the simulation makes the difference."""

    @property
    def ratio(self) -> float | None:
        """Simulated over published; over the nearer end of a range, and 1 within it."""
        if self.published is None or self.simulated is None:
            return None
        nearest = min(max(self.simulated, self.published.low), self.published.high)
        return self.simulated / nearest

    @property
    def agrees(self) -> bool:
        return self.ratio is None or AGREES[0] <= self.ratio <= AGREES[1]


class Curve(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One system over its load. Curves with the same `figure` are drawn together."""

    figure: str
    name: str
    x_label: str
    y_label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    bound: float | None = None
    """The level of y at which systems are compared."""


class Result(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A paper's experiments, run again."""

    paper: str
    title: str
    source: str
    settings: tuple[tuple[str, str], ...]
    """What was set, and by what source."""
    missing: tuple[str, ...]
    """What the paper's machine has and the simulated one does not, a sentence each."""
    rows: tuple[Row, ...]
    curves: tuple[Curve, ...]
    quick: bool
    """With few requests: directions hold, numbers do not."""
