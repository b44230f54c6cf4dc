"""What two records did differently, and which of it makes them no comparison."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.bench.alike import differences
from octavo.bench.record import Record

WORKLOAD = {
    "description": "one",
    "seed": 1,
    "arrivals": {"kind": "poisson", "rate": 2.0},
    "input": {"kind": "lognormal", "parts": [{"median": 200, "sigma": 1.0}]},
}


def made(**fields: Any) -> Record:
    base: dict[str, Any] = {
        "octavo": "1", "url": "http://a", "model": "m", "api": "chat", "name": "chat", "workload": WORKLOAD,
        "machine": {"cores": 2}, "options": {"rate": 2.0, "prompts": "ids"},
    }  # fmt: skip
    return Record(**{**base, **fields})


def test_a_record_is_like_itself_and_what_a_run_chooses_does_not_count() -> None:
    assert differences(made(), made()) == []
    other = {**WORKLOAD, "description": "two", "seed": 9, "arrivals": {"kind": "poisson", "rate": 4.0}}
    assert differences(made(), made(workload=other, options={"rate": 4.0, "prompts": "ids"})) == []


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {
                "workload": {
                    **WORKLOAD,
                    "input": {"kind": "lognormal", "parts": [{"median": 300, "sigma": 1.0}]},
                }
            },
            "workload input.parts[0].median differs: 200 and 300",
        ),
        (
            {"workload": {**WORKLOAD, "arrivals": {"kind": "closed", "clients": 4}}},
            "workload arrivals.kind differs: poisson and closed",
        ),
        ({"workload": {**WORKLOAD, "output": 5}}, "workload output differs: none and 5"),
        ({"api": "completions"}, "api differs: chat and completions"),
    ],
)
def test_another_load_or_api_is_serious_and_told_by_its_place(fields: dict[str, Any], said: str) -> None:
    first = differences(made(), made(model="n", **fields))[0]
    assert (str(first), first.serious) == (said, True)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"model": "n"}, "model differs: m and n"),
        ({"url": "http://b"}, "url differs: http://a and http://b"),
        ({"server": "vllm"}, "server differs: none and vllm"),
        ({"machine": {"cores": 4}}, "measuring machine's cores differs: 2 and 4"),
        ({"options": {"prompts": "text"}}, "option prompts differs: ids and text"),
        ({"workload": {**WORKLOAD, "requests": 500}}, "workload requests differs: none and 500"),
        ({"octavo": "2"}, "Octavo's version differs: 1 and 2"),
    ],
)
def test_what_may_be_the_point_of_a_comparison_is_told_and_not_serious(
    fields: dict[str, Any], said: str
) -> None:
    [only] = differences(made(), made(**fields))
    assert (str(only), only.serious) == (said, False)


def test_without_descriptions_the_names_are_compared() -> None:
    assert differences(made(workload={}), made(workload={})) == []
    assert differences(made(workload={}), made(workload={}, name="rag"))[0].serious


def test_a_long_value_is_cut() -> None:
    assert len(str(differences(made(model="x" * 500), made())[0])) < 120
