"""Reads a page as a browser's parser would, as far as tests need. Knows elements and text, no layout."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import msgspec

__all__ = ["Element", "read"]

_VOID = frozenset({"br", "hr", "img", "input", "link", "meta"})


class Element:
    """An element with its children; a child that is a str is text."""

    def __init__(self, name: str, attributes: dict[str, str | None]) -> None:
        self.name = name
        self.attributes = attributes
        self.children: list[Element | str] = []

    @property
    def text(self) -> str:
        return "".join(child if isinstance(child, str) else child.text for child in self.children)

    def all(self, name: str, **attributes: str) -> list[Element]:
        """Every element below with this name and these attributes, in the page's order."""
        wanted = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items()}
        found: list[Element] = []
        for child in self.children:
            if isinstance(child, Element):
                if child.name == name and wanted.items() <= child.attributes.items():
                    found.append(child)
                found += child.all(name, **attributes)
        return found

    def one(self, name: str, **attributes: str) -> Element:
        [found] = self.all(name, **attributes)
        return found

    def table(self, caption: str) -> list[list[str]]:
        """The cells of the table with this caption, its head first."""
        [found] = [one for one in self.all("table") if [c.text for c in one.all("caption")] == [caption]]
        return [[cell.text for cell in row.children if isinstance(cell, Element)] for row in found.all("tr")]

    def figures(self) -> list[Any]:
        """What the page's script would draw."""
        return list(msgspec.json.decode(self.one("script", id="figures").text.encode()))


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open = [Element("page", {})]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        made = Element(tag, dict(attrs))
        self.open[-1].children.append(made)
        if tag not in _VOID:
            self.open.append(made)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop().name == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)


def read(html: str) -> Element:
    """The page's tree. An element that is not closed, or in a wrong order, is an AssertionError."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    assert len(reader.open) == 1, f"<{reader.open[-1].name}> is not closed"
    return reader.open[0]
