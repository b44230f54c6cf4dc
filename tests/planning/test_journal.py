"""A journal takes over what is whole, and nothing of another version."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.errors import InvalidParameter
from octavo.planning.choice import Choice
from octavo.planning.journal import Journal
from octavo.planning.trying import Task, Tried
from octavo.simulation.deployment import Deployment
from octavo.workload.spec import load_workload

TRIED = Tried(seed=0, values={"ttft_p99": 0.25, "itl_p99": None}, lates={"ttft_p99": None})


def task(seed: int) -> Task:
    choice = Choice(deployment=Deployment(model="llama-3-8b", hardware="l4"))
    return Task(choice=choice, workload=load_workload("chat"), slo="ttft_p99<1s", seed=seed)


def taken_over(path: Path, version: str = "1.0") -> int:
    journal = Journal(path, version)
    journal.close()
    return journal.taken_over


def test_what_was_put_is_there_for_the_next(tmp_path: Path) -> None:
    path = tmp_path / "j"
    journal = Journal(path, "1.0")
    journal.put(task(0), TRIED)
    journal.close()
    again = Journal(path, "1.0")
    assert again.taken_over == 1 and again.get(task(0)) == TRIED and again.get(task(1)) is None
    again.put(task(1), TRIED)
    again.close()
    assert taken_over(path) == 2


def test_a_line_that_was_cut_is_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "j"
    journal = Journal(path, "1.0")
    journal.put(task(0), TRIED)
    journal.put(task(1), TRIED)
    journal.close()
    path.write_bytes(path.read_bytes()[:-5])
    again = Journal(path, "1.0")
    assert again.get(task(0)) == TRIED and again.get(task(1)) is None
    again.put(task(1), TRIED)
    again.close()
    assert taken_over(path) == 2


def test_another_versions_outcomes_are_not_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "j"
    journal = Journal(path, "1.0")
    journal.put(task(0), TRIED)
    journal.close()
    assert taken_over(path, "1.1") == 0
    assert taken_over(path, "1.1") == 0


def test_a_file_that_is_none_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "letter"
    path.write_text("Dear reader,\n")
    with pytest.raises(InvalidParameter, match="no journal"):
        Journal(path, "1.0")
    assert path.read_text() == "Dear reader,\n"
