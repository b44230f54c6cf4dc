"""The table of metrics: every value of a run is in it, the page has it, and a wrong name is told."""

from __future__ import annotations

import subprocess
import sys

import pytest

from octavo.bench.definitions import (
    DEFINITIONS,
    DISTRIBUTIONS,
    SCALARS,
    STATS,
    Definition,
    definition,
    known,
    split,
)
from octavo.bench.measures import measure
from octavo.bench.times import GAPS, PER_REQUEST
from octavo.errors import InvalidParameter
from tests.bench.runs import answer, run
from tests.conftest import REPOSITORY


def test_every_value_of_a_run_is_defined_and_every_definition_has_a_value() -> None:
    found = measure(run([answer(place * 100, 50, 10, 5) for place in range(50)]))
    assert set(found.scalars) == set(SCALARS)
    assert set(DISTRIBUTIONS) == {*PER_REQUEST, *GAPS}
    assert {name for name in DISTRIBUTIONS if found.value(f"{name}_p50") is not None} == {*DISTRIBUTIONS} - {
        "connect"
    }
    for name in known():
        found.value(name)


def test_names_are_one_each_and_none_is_mistaken_for_a_stat_of_another() -> None:
    assert len({one.name for one in DEFINITIONS}) == len(DEFINITIONS)
    assert len({one.label for one in DEFINITIONS}) == len(DEFINITIONS)
    assert len(set(known())) == len(SCALARS) + len(DISTRIBUTIONS) * len(STATS)
    for name in known():
        metric, stat = split(name)
        assert name == (metric.name if stat is None else f"{metric.name}_{stat}")
        assert definition(name) is definition(metric.name) is metric


@pytest.mark.parametrize("one", DEFINITIONS, ids=lambda one: one.name)
def test_words_are_one_sentence_and_formulas_are_none(one: Definition) -> None:
    assert one.words[0].isupper()
    assert one.words.endswith(".")
    assert one.words.count(". ") == 0
    assert not one.formula.endswith(".")


def test_the_page_has_every_definition_word_for_word() -> None:
    page = (REPOSITORY / "docs" / "bench.md").read_text()
    section = " ".join(page.partition("## What is measured")[2].partition("\n## ")[0].split())
    for one in DEFINITIONS:
        name = f"`{one.name}_…`" if one.distribution else f"`{one.name}`"
        assert f"**{one.label}** {name}, {one.unit}: {one.words}" in section
        assert f"*{one.formula}*" in section
        assert one.source == "ours" or f"Source: {one.source}." in section
        assert not one.excluded or f"Left out: {one.excluded}." in section


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ttft_p98", r"ttft_p98 is no metric; did you mean ttft_p9\w+\?"),
        ("goodputs", r"goodputs is no metric; did you mean goodput\?"),
        ("colour", r"colour is no metric; docs/bench.md lists them\."),
        ("itl", r"itl is a distribution; say which value of it: itl_mean, itl_std, .*itl_p99_9\."),
        ("goodput_p99", r"goodput_p99 is no metric"),
    ],
)
def test_a_name_that_there_is_not_is_told(name: str, message: str) -> None:
    with pytest.raises(InvalidParameter, match=message) as found:
        split(name)
    assert found.value.param == name


def test_the_table_needs_no_arrays() -> None:
    code = "import octavo.bench.definitions, sys; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "False"
