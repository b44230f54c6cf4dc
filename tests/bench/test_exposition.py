"""Samples of wanted names out of a text: what the format allows, what it does not, and as much of both as may come."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as modern_families
from prometheus_client.parser import text_string_to_metric_families

from octavo.bench.exposition import Sample, samples

NAMES = frozenset({b"a", b"a_total", b"b:c", b"b_c", b"h_sum", b"h_count"})


def read(text: str) -> list[tuple[str, Mapping[str, str], float]]:
    return [(sample.name, sample.labels, sample.value) for sample in samples(text.encode(), NAMES)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a 1", [("a", {}, 1.0)]),
        ("a 1\n", [("a", {}, 1.0)]),
        ("a{} 1.5e+06 1700000000000\n", [("a", {}, 1.5e6)]),
        ("a -0.25\r\nb:c 2\r\n", [("a", {}, -0.25), ("b:c", {}, 2.0)]),
        ("  a\t1 \n\n a { } \t 2", [("a", {}, 1.0), ("a", {}, 2.0)]),
        ('a{x="1",y="2",} 3', [("a", {"x": "1", "y": "2"}, 3.0)]),
        ('a{ x = "1" , y = "2" } 3', [("a", {"x": "1", "y": "2"}, 3.0)]),
        (r'a{x="q\"}{ \\ \n \d é"} 3', [("a", {"x": 'q"}{ \\ \n \\d é'}, 3.0)]),
        ('a{x="# HELP"} 3 # {trace_id="KOO5"} 0.67 1.6', [("a", {"x": "# HELP"}, 3.0)]),
        ('a_total 17 # {trace_id="KOO5"} 0.67\n# EOF\n', [("a_total", {}, 17.0)]),
        ("a NaN\na +Inf\na -Inf\na Nan\nb:c 1", [("b:c", {}, 1.0)]),
        ("aa 1\na_ 1\nA 1\n# a 1\n#a 1\nxa 1", []),
        ('a\na \na{ 1\na{x} 1\na{x=1} 1\na{x="1} 1\na one\na{x="1" y="2"} 1\nb:c 1', [("b:c", {}, 1.0)]),
        ("<html><body>a 1</body></html>", []),
        ('{"a": 1}', []),
        ("", []),
    ],
)
def test_lines(text: str, found: list[tuple[str, dict[str, str], float]]) -> None:
    assert read(text) == found


def test_groups_are_passed_over_as_a_whole_but_nothing_wanted_is() -> None:
    text = """# HELP h Words.
# TYPE h histogram
h_bucket{le="1.0"} 3
h_bucket{le="+Inf"} 4
h_sum 2.5
h_count 4
# HELP other Words.
# TYPE other histogram
other_bucket{le="+Inf"} 4
b:c 5
# HELP a Words.
# a comment
# TYPE a counter
a_total{x="1"} 6
# TYPE empty counter
# TYPE z gauge
z 1
a 7
"""
    assert [(sample.name, sample.value) for sample in samples(text.encode(), NAMES)] == [
        ("h_sum", 2.5),
        ("h_count", 4.0),
        ("b:c", 5.0),
        ("a_total", 6.0),
        ("a", 7.0),
    ]


labels = st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=6)


@settings(max_examples=40)
@given(st.lists(st.tuples(labels, labels, st.floats()), max_size=4), st.floats(), st.booleans())
def test_what_the_client_library_writes_is_read(
    series: list[tuple[str, str, float]], value: float, modern: bool
) -> None:
    """Against the library's own parser: names, labels and values are the same, but for those that are not finite."""
    registry = CollectorRegistry()
    gauge = Gauge("a", "Words, \\ and\n lines.", ("x", "y"), registry=registry)
    for x, y, number in series:
        gauge.labels(x, y).set(number)
    Gauge("b:c", "Words.", registry=registry).set(value)
    Histogram("h", "Words.", registry=registry).observe(2)
    Counter("unwanted", "Words.", ("x",), registry=registry).labels("a 1\na 1").inc()
    text = (openmetrics if modern else generate_latest)(registry)
    parse = modern_families if modern else text_string_to_metric_families
    expected = [
        Sample(sample.name, sample.labels, sample.value)
        for family in parse(text.decode())
        for sample in family.samples
        if sample.name.encode() in NAMES and math.isfinite(sample.value)
    ]
    assert sorted(samples(text, NAMES), key=repr) == sorted(expected, key=repr)


@given(st.binary(max_size=300))
def test_no_bytes_are_an_error(data: bytes) -> None:
    for sample in samples(b'a{x="' + data, NAMES):
        assert math.isfinite(sample.value)
    for sample in samples(data + b'"} 1\na 2', NAMES):
        assert math.isfinite(sample.value)
