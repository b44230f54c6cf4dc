"""A memory's account in words and rows."""

from __future__ import annotations

from octavo.bench.memory import memory_rows, memory_words


def test_the_words_sum_to_the_whole_memory() -> None:
    account = {"utilization": 0.5, "internal_waste": 0.2, "external_waste": 0.1, "sharing_saved": 0.25}
    assert memory_words(account) == (
        "Of the KV memory 40 % held tokens while steps ran; 10 % was held without one, 10 % was free in pieces too "
        "small, and 40 % was free. Sharing saved 25 % of what sequences would hold without it."
    )
    without = {**account, "external_waste": 0.0, "sharing_saved": 0.0}
    assert memory_words(without) == (
        "Of the KV memory 40 % held tokens while steps ran; 10 % was held without one, and 50 % was free."
    )


def test_rows_are_of_what_is_known_and_nothing_is_said_without_an_account() -> None:
    assert memory_rows({"internal_waste": 0.2}) == [
        ["internal waste: without a token, of what is held", "20 %"]
    ]
    assert memory_words({}) == "" and memory_rows({}) == []
