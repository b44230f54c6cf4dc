"""One HTML file with words, tables and figures, that needs nothing beside it. Knows no measurement.

It works from a disk without a network, in light and dark, on a phone, on paper, and without JavaScript (each figure
has a table). Its scripts and styles are allowed by their hashes (Content-Security-Policy), and nothing else is. The
charts are drawn by uPlot (MIT), which is inside.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from collections.abc import Sequence
from importlib import resources

import msgspec

from octavo.charts.figure import Figure, Lanes
from octavo.charts.markup import Child, Markup, json_in_script, tag

__all__ = ["Code", "Facts", "Note", "Page", "Part", "Section", "Table", "Terms", "Text"]


class Text(msgspec.Struct, frozen=True, tag=True):
    """A paragraph."""

    text: str


class Note(msgspec.Struct, frozen=True, tag=True):
    """Something that a reader must not miss."""

    texts: Sequence[str]
    kind: str = "info"
    """`info`, `good` or `bad`."""


class Code(msgspec.Struct, frozen=True, tag=True):
    """Text as it is, such as a command line. `title`: it is folded under this."""

    text: str
    title: str = ""


class Facts(msgspec.Struct, frozen=True, tag=True):
    """Headline numbers: each a name, a value and a word beside it."""

    facts: Sequence[tuple[str, str, str]]


class Terms(msgspec.Struct, frozen=True, tag=True):
    """Definitions: each a term and what it means, in one paragraph or several."""

    terms: Sequence[tuple[str, Sequence[str]]]


class Table(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Rows of cells. The first cell of a row names it."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: Sequence[int] = (0,)
    """Columns of words, to the left; others are numbers, to the right."""
    bad: Sequence[int] = ()
    """Rows that are marked."""
    folded: bool = False


Part = Text | Note | Code | Facts | Terms | Table | Figure | Lanes


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """Parts under a heading."""

    title: str
    parts: Sequence[Part]


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """A whole page; equal pages are equal bytes."""

    title: str
    about: str = ""
    """One line under the title."""
    top: Sequence[Part] = ()
    """Before the sections."""
    sections: Sequence[Section]
    foot: str = ""

    def html(self) -> str:
        """The file's text."""
        figures: list[Figure | Lanes] = []
        body = _body(self, figures)
        specs = json_in_script(msgspec.json.encode([figure.spec() for figure in figures]))
        style, scripts = _style(), _scripts() if figures else ()
        policy = "; ".join(
            [
                "default-src 'none'",
                f"style-src {_hash(style)}",
                "script-src " + (" ".join(_hash(script) for script in scripts) or "'none'"),
                "base-uri 'none'",
                "form-action 'none'",
            ]
        )
        head = tag(
            "head",
            tag("meta", charset="utf-8"),
            tag("meta", http_equiv="Content-Security-Policy", content=policy),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("meta", name="color-scheme", content="light dark"),
            tag("title", self.title),
            tag("style", Markup(style)),
        )
        tail = (
            [
                tag("script", specs, type="application/json", id="figures"),
                *(tag("script", Markup(script)) for script in scripts),
            ]
            if figures
            else []
        )
        return "<!doctype html>\n" + tag("html", head, tag("body", body, tail), lang="en") + "\n"


def _body(page: Page, figures: list[Figure | Lanes]) -> list[Child]:
    links = [
        tag("a", section.title, href=f"#{_anchor(place, section.title)}")
        for place, section in enumerate(page.sections)
    ]
    top = [_part(part, figures) for part in page.top]  # in the page's order: figures are counted
    sections = [
        tag(
            "section",
            tag("h2", section.title, id=(anchor := _anchor(place, section.title))),
            [_part(part, figures) for part in section.parts],
            aria_labelledby=anchor,
        )
        for place, section in enumerate(page.sections)
    ]
    return [
        tag("header", tag("h1", page.title), tag("p", page.about) if page.about else None),
        tag("nav", links, aria_label="Sections") if len(links) > 1 else None,
        tag("main", top, sections),
        tag("footer", tag("p", page.foot)) if page.foot else None,
    ]


def _anchor(place: int, title: str) -> str:
    words = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
    return f"{words or 'section'}-{place + 1}"


def _part(part: Part, figures: list[Figure | Lanes]) -> Child:
    match part:
        case Text(text=text):
            return tag("p", text)
        case Note(texts=[text], kind=kind):
            return tag("div", tag("p", text), class_=f"note {kind}", role="note")
        case Note(texts=texts, kind=kind):
            return tag(
                "div", tag("ul", [tag("li", text) for text in texts]), class_=f"note {kind}", role="note"
            )
        case Code(text=text, title=""):
            return tag("pre", tag("code", text), tabindex=0)
        case Code(text=text, title=title):
            return tag("details", tag("summary", title), tag("pre", tag("code", text), tabindex=0))
        case Facts(facts=facts):
            return tag(
                "dl",
                [
                    tag(
                        "div",
                        tag("dt", name),
                        tag("dd", tag("b", _with_unit(value)), tag("span", beside) if beside else None),
                    )
                    for name, value, beside in facts
                ],
                class_="facts",
            )
        case Terms(terms=terms):
            return tag(
                "dl",
                [[tag("dt", term), tag("dd", [tag("p", line) for line in lines])] for term, lines in terms],
                class_="terms",
            )
        case Table(folded=True, caption=caption):
            return tag("details", tag("summary", caption), _table(part))
        case Table():
            return _table(part)
    return _figure(part, figures)


def _with_unit(value: str) -> Child:
    """A number with its unit smaller beside it; other words as they are."""
    number, space, unit = value.partition(" ")
    return value if not space else [number + space, tag("small", unit)]


def _table(table: Table) -> Markup:
    def cells(row: Sequence[str], *, head: bool) -> list[Markup]:
        return [
            tag(
                "th" if head or place == 0 else "td",
                cell,
                class_=None if place in table.words else "number",
                scope="col" if head else "row" if place == 0 else None,
            )
            for place, cell in enumerate(row)
        ]

    return tag(
        "div",
        tag(
            "table",
            tag("caption", table.caption, class_="unseen" if table.folded else None)
            if table.caption
            else None,
            tag("thead", tag("tr", cells(table.head, head=True))),
            tag(
                "tbody",
                [
                    tag("tr", cells(row, head=False), class_="bad" if place in table.bad else None)
                    for place, row in enumerate(table.rows)
                ],
            ),
        ),
        class_="wide",
        role="region",
        tabindex=0,
        aria_label=table.caption or "Table",
    )


def _figure(figure: Figure | Lanes, figures: list[Figure | Lanes]) -> Markup:
    place = len(figures)
    figures.append(figure)
    head, rows = figure.rows()
    table = Table(caption=f"{figure.title}: numbers", head=head, rows=rows, folded=True)
    return tag(
        "figure",
        tag("figcaption", tag("strong", figure.title), tag("span", figure.note) if figure.note else None),
        tag("div", class_="plot", data_figure=place),
        tag(
            "details",
            tag("summary", "Numbers", tag("span", f" of {figure.title}", class_="unseen")),
            _table(table),
        ),
    )


@functools.cache
def _file(name: str) -> str:
    return resources.files("octavo.charts").joinpath(name).read_text(encoding="utf-8")


def _style() -> str:
    return _file("uplot/uPlot.min.css") + "\n" + _file("page.css")


def _scripts() -> tuple[str, str]:
    return f"/*\nuPlot\n{_file('uplot/LICENSE')}*/\n{_file('uplot/uPlot.iife.min.js')}", _file("draw.js")


def _hash(text: str) -> str:
    """As a Content-Security-Policy names an inline element's text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
