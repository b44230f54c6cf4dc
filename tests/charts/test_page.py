"""Pages: one file, nothing from elsewhere, everything escaped, each figure a table too."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib import resources

import pytest

from octavo.charts.figure import Axis, Figure, Lanes, Series
from octavo.charts.page import Code, Facts, Note, Page, Part, Section, Table, Terms, Text
from tests.charts.reading import Element, read

HOSTILE = "</script></title><img src=x onerror=alert(1)>\"'&amp;<!--"


def _figure(name: str = "curve") -> Figure:
    return Figure(
        title=name,
        note=name,
        x=Axis(label=name, unit=name),
        y=Axis(label=name),
        series=[Series(name=name, x=[1, 2], y=[3, 4], labels=[name, name])],
    )


def _parts(word: str) -> list[Part]:
    lanes = Lanes(
        title=word,
        x=Axis(label=word, quantity="time"),
        classes=[(word, 1)],
        names=[word],
        lane=[0],
        start=[0],
        end=[1],
        of=[0],
    )
    return [
        Text(word),
        Note([word], "bad"),
        Note([word, word]),
        Code(word),
        Code(word, title=word),
        Facts([(word, word, word)]),
        Terms([(word, [word, word])]),
        Table(caption=word, head=[word, word], rows=[[word, word]], bad=[0]),
        Table(caption=word, head=[word], rows=[[word]], folded=True),
        _figure(word),
        lanes,
    ]


def _page(word: str) -> Page:
    return Page(
        title=word,
        about=word,
        top=_parts(word),
        sections=[Section(title=word, parts=_parts(word)), Section(title="", parts=[])],
        foot=word,
    )


def _shape(element: Element) -> list[object]:
    inner = [_shape(child) for child in element.children if isinstance(child, Element)]
    return [element.name, sorted(element.attributes), inner]


def test_hostile_words_change_no_element() -> None:
    plain, hostile = read(_page("some word").html()), read(_page(HOSTILE).html())
    assert _shape(plain) == _shape(hostile)
    assert hostile.one("title").text == HOSTILE
    seen, wanted = (
        "\n".join(page.one(name).text for name in ("header", "nav", "main", "footer"))
        for page in (hostile, plain)
    )
    assert seen.count(HOSTILE) == wanted.count("some word") > 60
    assert hostile.figures()[0]["series"][0]["name"] == HOSTILE


def test_scripts_and_styles_are_allowed_by_their_hashes_and_nothing_is_loaded() -> None:
    html = _page("word").html()
    page = read(html)
    [meta] = page.all("meta", http_equiv="Content-Security-Policy")
    policy = meta.attributes["content"] or ""
    inline = [*page.all("style"), *(one for one in page.all("script") if "type" not in one.attributes)]
    assert len(inline) == 3
    for one in inline:
        digest = base64.b64encode(hashlib.sha256(one.text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'; ") and "unsafe" not in policy
    for name in ("link", "img", "iframe", "object", "form"):
        assert not page.all(name)
    assert not re.search(r"\s(src|style|on\w+)=", re.sub(r"(?s)<(script|style).*?</\1>", "", html))


def test_every_figure_has_a_place_a_spec_and_a_table() -> None:
    page = read(_page("word").html())
    places = [one.attributes["data-figure"] for one in page.all("div", class_="plot")]
    specs = page.figures()
    assert places == ["0", "1", "2", "3"] and [one["kind"] for one in specs] == ["series", "lanes"] * 2
    for figure in page.all("figure"):
        assert len(figure.one("details").one("table").all("tr")) >= 2


def test_a_page_without_figures_has_no_script() -> None:
    page = read(Page(title="t", sections=[Section(title="s", parts=[Text("x")])]).html())
    assert not page.all("script")
    assert "script-src 'none'" in str(page.all("meta", http_equiv="Content-Security-Policy")[0].attributes)


def test_sections_are_linked_and_their_anchors_differ() -> None:
    sections = [Section(title=title, parts=[]) for title in ("Latency", "Latency", "ß?")]
    page = read(Page(title="t", sections=sections).html())
    links = [str(one.attributes["href"]).removeprefix("#") for one in page.one("nav").all("a")]
    assert (
        links == [one.attributes["id"] for one in page.all("h2")] == ["latency-1", "latency-2", "section-3"]
    )


def test_a_fact_s_unit_stands_beside_its_number() -> None:
    facts = Facts([("Output", "234 tokens/s", ""), ("Load", "none", "")])
    page = read(Page(title="t", sections=[Section(title="s", parts=[facts])]).html())
    assert [one.text for one in page.all("b")] == ["234 tokens/s", "none"]
    assert [one.text for one in page.all("small")] == ["tokens/s"]


def test_a_table_is_told_to_those_who_hear_it() -> None:
    table = Table(caption="c", head=["name", "p50"], rows=[["TTFT", "1 ms"], ["ITL", "2 ms"]], bad=[1])
    page = read(Page(title="t", sections=[Section(title="s", parts=[table])]).html())
    assert page.table("c") == [["name", "p50"], ["TTFT", "1 ms"], ["ITL", "2 ms"]]
    assert [one.text for one in page.all("th", scope="row")] == ["TTFT", "ITL"]
    assert [one.text for one in page.all("th", scope="col")] == ["name", "p50"]
    assert page.one("tr", class_="bad").text == "ITL2 ms"
    assert [one.text for one in page.all("td", class_="number")] == ["1 ms", "2 ms"]


def test_equal_pages_are_equal_bytes_and_small() -> None:
    assert _page("word").html() == _page("word").html()
    assert len(_page("word").html().encode()) < 100_000


@pytest.mark.parametrize("name", ["uPlot.iife.min.js", "uPlot.min.css", "LICENSE"])
def test_uplot_is_as_it_was_published(name: str) -> None:
    folder = resources.files("octavo.charts") / "uplot"
    digest = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    assert f"| `{name}` | `{digest}` |" in (folder / "README.md").read_text()


def test_the_licence_of_what_is_inside_is_in_the_page() -> None:
    licence = (resources.files("octavo.charts") / "uplot" / "LICENSE").read_text()
    assert licence in _page("word").html()
