"""A sum that shows its steps, in sections. Knows numbers and words, no price."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo.bench.cost import Line, figure

__all__ = ["Line", "Section", "Sheet", "figure"]


@dataclass
class Section:
    """Steps under a heading."""

    title: str
    lines: list[Line] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What was assumed, and what follows in words."""


class Sheet:
    """Every step writes its line when it is computed, so what is shown is what was reckoned."""

    def __init__(self) -> None:
        self.sections: list[Section] = []

    def section(self, title: str) -> None:
        """What comes next stands below this heading."""
        self.sections.append(Section(title))

    def line(self, name: str, text: str, value: float, unit: str) -> float:
        """A step: `text` has the numbers that make `value`. Gives the value back."""
        self._last.lines.append(Line(name, text, value, unit))
        return value

    def note(self, text: str) -> None:
        self._last.notes.append(text)

    @property
    def _last(self) -> Section:
        if not self.sections:
            self.section("")
        return self.sections[-1]
