"""The ends of a range, simulated on another core: the same words, and what goes wrong there is said here."""

from __future__ import annotations

import pytest

from octavo.bench.measures import Measures, measure
from octavo.bench.record import Run
from octavo.cli import simulate_beside
from octavo.cli.main import run
from octavo.cli.simulate_beside import beside


def test_on_another_core_it_says_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["simulate", "--workload", "chat", "--requests", "30", "--rate", "4", "--replicas", "2"]
    monkeypatch.setattr(simulate_beside, "_MANY", 0)
    said = []
    for cores in (1, 2):
        monkeypatch.setattr(simulate_beside, "_cores", lambda cores=cores: cores)
        assert run(command) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
    assert "kernels reach most" in said[0]


def fails(name: str) -> Measures:
    raise ArithmeticError(f"{name} went wrong")


def test_what_goes_wrong_there_is_raised_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulate_beside, "_cores", lambda: 2)
    with (
        pytest.raises(ArithmeticError, match="low went wrong"),
        beside(["low"], fails, 10_000) as told,
    ):
        told()


def test_short_runs_and_one_core_need_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    nothing = measure(Run(seed=0, began="", end_us=0, exchanges=[]))

    def measured(name: str) -> Measures:
        made.append(name)
        return nothing

    monkeypatch.setattr(simulate_beside, "_cores", lambda: 2)
    with beside(["low", "high"], measured, 10) as told:
        assert made == ["low", "high"] == list(told())
    monkeypatch.setattr(simulate_beside, "_cores", lambda: 1)
    with beside(["low"], measured, 10_000) as told:
        assert made[2:] == ["low"] == list(told())
