"""Who asks nearly the same again."""

from __future__ import annotations

from octavo.cli.route_check import reask_found
from octavo.routing.reask import Asking, ReAsks, alike


def test_on_the_labelled_pairs_it_is_hardly_ever_wrong_and_finds_most() -> None:
    for later in (False, True):
        found = reask_found(later=later)
        assert found.precision >= 0.95
        assert found.recall >= 0.75


def test_another_number_or_name_is_another_question() -> None:
    first = Asking.of("How far is it from Vienna to Prague?")
    assert not alike(first, Asking.of("How far is it from Vienna to Berlin?"))
    assert not alike(Asking.of("What is 2 + 2?"), Asking.of("What is 2 + 3?"))
    assert not alike(Asking.of(""), Asking.of(""))
    assert not alike(Asking.of("Continue"), Asking.of("continue"))
    essay = "It was a dark night. " * 300
    assert alike(Asking.of(essay), Asking.of(f"{essay}\n")) and not alike(
        Asking.of(essay), Asking.of(essay + "!")
    )
    long = " ".join(f"{one}{two}rule" for one in "abcdefgh" for two in "abcdefgh")
    assert not alike(Asking.of(f"{long} apples"), Asking.of(f"{long} pears"))


def test_only_the_same_user_s_last_minutes_count() -> None:
    reasks = ReAsks(minutes=10)
    assert reasks.ask("ann", "Why is the sky blue?", "r1", 0) is None
    assert reasks.ask("bob", "Why is the sky blue?", "r2", 1) is None
    assert reasks.ask("ann", "No. Why is the sky blue?", "r3", 60) == "r1"
    assert reasks.ask("ann", "Why is the sky blue?", "r4", 61 + 600) is None
