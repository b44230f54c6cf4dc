"""The policies that came with Octavo, and files of one's own."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from octavo.errors import RoutingError
from octavo.routing.starting import NAMES, begin, load, read

MATHEMATICS = (
    "A train has 12 cars with 40 seats each, and a third of them are empty. How many people sit in it?"
)


@pytest.mark.parametrize("name", NAMES)
def test_each_says_what_it_is_for_and_from(name: str) -> None:
    file = load(name).file
    assert file.name == name and file.about and file.source and file.tiers == ("small", "large")


@pytest.mark.parametrize(
    ("prompt", "name"),
    [
        ("What is the capital of Peru?", "factual"),
        (MATHEMATICS, "mathematics"),
        ("Give feedback on my essay: Cities are loud.", "essay"),
    ],
)
def test_a_prompt_goes_to_the_policy_that_is_meant_for_it(prompt: str, name: str) -> None:
    decided = begin(prompt)
    assert f"'{name}'" in decided.reason and not decided.abstained
    assert all(0 < share < 1 for share in decided.probabilities.values())


def test_where_none_is_meant_the_large_tier_answers() -> None:
    decided = begin("def f(x): return x")
    assert decided.abstained and decided.tier == "large"


def test_a_threshold_decides() -> None:
    assert load("factual").decide("What is the capital of Peru?", -1.0).tier == "large"
    assert load("factual").decide("What is the capital of Peru?", 1.0).tier == "small"


def test_longer_mathematics_is_harder() -> None:
    policy = load("mathematics")
    longer = MATHEMATICS.replace(
        "How many", "At each of 7 stops 5 leave and 9 enter, of whom 2 stand. How many"
    )
    assert policy.decide(longer).score > policy.decide(MATHEMATICS).score


def test_own_files_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    raw = msgspec.to_builtins(load("essay").file)
    path.write_bytes(msgspec.json.encode(raw))
    assert read(path).decide("Mend my essay.") == load("essay").decide("Mend my essay.")
    for change, said in (
        ({"terms": {"mood": {"mean": 0, "deviation": 1, "weights": [1, 1]}}}, "names the sign 'mood'"),
        ({"bias": [1.0]}, "another number of weights"),
        ({"format": 2}, "is no starting policy"),
        ({"more": 1}, "is no starting policy"),
    ):
        path.write_bytes(msgspec.json.encode(raw | change))
        with pytest.raises(RoutingError, match=said):
            read(path)
    with pytest.raises(RoutingError, match="no starting policy 'poetry'"):
        load("poetry")
