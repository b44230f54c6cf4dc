"""Suspects in halves: whoever ends the engine is found, nobody else is, and in few deaths."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from octavo.engine.suspicion import Suspicion

NAMES = [f"r{i}" for i in range(70)]


class World:
    """Requests of which some end the engine at a place of their own, each time that a step computes that."""

    def __init__(self, fatal: dict[str, int], count: int) -> None:
        self.suspicion = Suspicion()
        self.fatal = fatal
        self.tokens = dict.fromkeys(NAMES[:count], 0)
        self.deaths = 0
        self.quarantined: list[str] = []

    def run(self, length: int) -> None:
        """Until everybody has `length` tokens or is quarantined."""
        while self.tokens:
            step = [name for name in self.tokens if self.suspicion.allows(name)]
            assert step, "nobody may run"
            if any(self.fatal.get(name) == self.tokens[name] for name in step):
                self.die(step, outside=False)
                continue
            for name in step:
                self.tokens[name] += 1
                self.suspicion.passed(name)
                if self.tokens[name] == length:
                    del self.tokens[name]
                    self.suspicion.forget(name)

    def die(self, step: list[str], *, outside: bool) -> None:
        self.deaths += 1
        finding = self.suspicion.died(step, self.tokens, outside=outside)
        if finding.culprit is not None:
            assert finding.learned
            assert step == [finding.culprit], "it did not die alone"
            self.quarantined.append(finding.culprit)
            del self.tokens[finding.culprit]
            self.suspicion.forget(finding.culprit)


@given(
    st.integers(1, 64),
    st.dictionaries(st.integers(0, 63), st.integers(0, 9), max_size=5),
)
def test_exactly_those_that_end_the_engine_are_quarantined(count: int, fatal: dict[int, int]) -> None:
    culprits = {NAMES[i]: place for i, place in fatal.items() if i < count}
    world = World(culprits, count)
    world.run(10)
    assert sorted(world.quarantined) == sorted(culprits)
    assert not world.suspicion.searching
    # One with all, one for each halving, one beside those that passed, two alone.
    assert world.deaths <= len(culprits) * (count.bit_length() + 3)


def test_the_half_on_trial_runs_alone_and_then_the_next() -> None:
    suspicion, tokens = Suspicion(), dict.fromkeys(NAMES, 3)
    assert suspicion.died(NAMES[:5], tokens, outside=False).learned
    assert [name for name in NAMES if suspicion.allows(name)] == NAMES[:3]
    assert not suspicion.passed("r0")
    assert not suspicion.passed("r2")
    assert suspicion.forget("r1"), "it has left, and the others have passed"
    assert [name for name in NAMES if suspicion.allows(name)] == NAMES[:5]
    assert not suspicion.passed("r3")
    assert suspicion.passed("r4")
    assert suspicion.allows("r60")


def test_what_passed_in_the_same_step_is_not_suspected_again() -> None:
    suspicion, tokens = Suspicion(), dict.fromkeys(NAMES, 3)
    suspicion.died(NAMES[:4], tokens, outside=False)
    suspicion.passed("r0")
    suspicion.died(["r0", "r1"], tokens, outside=False)
    assert [name for name in NAMES if suspicion.allows(name)] == ["r1"], "alone: it is no strike yet"
    assert suspicion.died(["r1"], tokens, outside=False).culprit is None
    assert suspicion.died(["r1"], tokens, outside=False).culprit == "r1"
    assert all(map(suspicion.allows, NAMES))


def test_a_signal_from_outside_tells_nothing_until_the_same_step_dies_of_one_again() -> None:
    suspicion, tokens = Suspicion(), dict.fromkeys(NAMES, 3)
    assert not suspicion.died(NAMES[:4], tokens, outside=True).learned
    tokens["r1"] += 1
    assert not suspicion.died(NAMES[:4], tokens, outside=True).learned
    assert all(map(suspicion.allows, NAMES))
    assert not suspicion.died(NAMES[:4], tokens, outside=True, place=7).learned, "it had come further"
    assert suspicion.died(NAMES[:4], tokens, outside=True, place=7).learned
    assert [name for name in NAMES if suspicion.allows(name)] == NAMES[:2]
    assert not suspicion.died(NAMES[:1], tokens, outside=True).learned, (
        "in the middle of a trial, which begins again"
    )
    assert [name for name in NAMES if suspicion.allows(name)] == NAMES[:2]
    assert not suspicion.died([], tokens, outside=True).learned
    assert not suspicion.died([], tokens, outside=True).learned, "between two steps there is nobody to blame"


def test_those_on_trial_do_not_hold_up_others_for_ever() -> None:
    suspicion, tokens = Suspicion(), dict.fromkeys(NAMES, 3)
    suspicion.died(NAMES[:4], tokens, outside=False)
    assert suspicion.waited()
    assert [name for name in NAMES if suspicion.allows(name)] == NAMES[:4]
    assert suspicion.waited()
    assert all(map(suspicion.allows, NAMES))
