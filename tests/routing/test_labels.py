"""Files of labels, and what is wrong with them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from octavo.errors import RoutingError
from octavo.routing.labels import read_labels
from tests.routing.samples import made_labels, write_csv

HEADER = "task,prompt,weak_correct,strong_correct\n"


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_csv_gzipped_csv_and_jsonl_are_the_same(tmp_path: Path) -> None:
    plain = write_csv(tmp_path / "labels.csv", made_labels(30))
    packed = tmp_path / "labels.csv.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    first = read_labels(plain)
    lines = [
        json.dumps(
            {"prompt": prompt, "small_correct": bool(right[0]), "large_correct": int(right[1]), "task": task}
        )
        for prompt, right, task in zip(first.prompts, first.correct, first.tasks or (), strict=True)
    ]
    records = write(tmp_path / "labels.jsonl", "\n".join(lines))
    for other in (read_labels(packed), read_labels(records)):
        assert (
            other.prompts == first.prompts
            and other.tiers == ("small", "large")
            and other.tasks == first.tasks
        )
        assert np.array_equal(other.correct, first.correct)
    assert first.costs is None and first.days is None


def test_tiers_may_be_named_in_the_order_of_their_cost(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "l.csv", made_labels(30), costs=(0.5, 2.0))
    labels = read_labels(path, tiers=["large_correct", "small"])
    assert labels.tiers == ("large", "small")
    assert labels.costs is not None and labels.costs[0].tolist() == [2.0, 0.5]


def test_times_are_seconds_or_iso(tmp_path: Path) -> None:
    text = "prompt,a_correct,b_correct,time\nx,1,0,2026-01-01T00:00:00+00:00\ny,0,1,1767398400\n"
    assert read_labels(write(tmp_path / "l.csv", text)).days == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no rows"),
        (
            HEADER + "t,a question,1,1\nt,another,0,1\n",
            "'strong_correct' is 1 in all 2 rows, so one class is missing",
        ),
        (HEADER + "t,a question,1,maybe\n", "row 1: 'strong_correct' is 'maybe'; a label is 1"),
        (HEADER + "t,,1,0\n", "row 1: 'prompt' is ''"),
        (HEADER + "t,a question,1\n", "another number of fields"),
        ("prompt,weak_correct\nx,1\n", "has labels of 'weak'; routing needs two or more"),
        ("question,weak_correct,strong_correct\nx,1,0\n", "has no column 'prompt'; it has 'question'"),
        ("prompt,a_correct,b_correct,a_cost\nx,1,0,1\ny,0,1,1\n", "no column 'b_cost'"),
        ("prompt,a_correct,b_correct,a_cost,b_cost\nx,1,0,1,-1\ny,0,1,1,1\n", "'b_cost' is '-1'"),
        ("prompt,a_correct,a_correct\nx,1,0\n", "more than once"),
        ('{"prompt": "x", "a_correct": 1\n', "line 1 is no JSON"),
        ("prompt,a_correct,b_correct,time\nx,1,0,then\ny,0,1,1\n", "'time' is 'then'"),
    ],
)
def test_what_is_wrong_is_one_sentence(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(RoutingError, match=r"\A.*\Z") as caught:
        read_labels(write(tmp_path / "l.csv", text))
    assert said in str(caught.value)


def test_unknown_tiers_and_columns_are_named(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "l.csv", made_labels(20))
    with pytest.raises(RoutingError, match="no column 'huge' or 'huge_correct'; it has 'task', 'prompt'"):
        read_labels(path, tiers=["small", "huge"])
    with pytest.raises(RoutingError, match="no column 'kind'"):
        read_labels(path, task="kind")
    with pytest.raises(RoutingError, match="cannot be read"):
        read_labels(tmp_path / "none.csv")
    (tmp_path / "cut.gz").write_bytes(gzip.compress(path.read_bytes())[:-20])
    with pytest.raises(RoutingError, match="damaged gzip"):
        read_labels(tmp_path / "cut.gz")
    (tmp_path / "latin.csv").write_bytes(HEADER.encode() + b"t,caf\xe9,1,0\n")
    with pytest.raises(RoutingError, match="not UTF-8"):
        read_labels(tmp_path / "latin.csv")
