"""Pace files: read as they were written, refused in one sentence, and honest about what lies outside."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from octavo.backends.base import Limits
from octavo.errors import BenchError, InvalidParameter
from octavo.simulation.calibrated import (
    CalibratedPace,
    Calibration,
    Fitted,
    HostWork,
    Machine,
    Watched,
    read_pace,
    saved_at,
)
from octavo.timing.step_time import StepLoad

PACE = CalibratedPace(per_step_s=0.01, tokens=(0, 4, 8), token_s=(0.0, 0.0, 0.004), per_pair_s=1e-6)
CALIBRATION = Calibration(
    octavo="1.2.3",
    date="2026-01-02T03:04:05Z",
    machine=Machine(processor="abacus", cores=2, system="Linux 6"),
    model="small",
    source="engine",
    pace=PACE,
    host=HostWork(per_request_s=0.001),
    fitted=Fitted(
        low={"per_step_s": 0.009},
        high={"per_step_s": 0.011},
        error_p50=0.01,
        error_p95=0.05,
        steps=60,
        kinds=20,
    ),
    seen={"tokens": (1, 8), "samples": (0, 4), "kv_tokens": (0, 100), "pairs": (0, 50), "sequences": (1, 4)},
    limits=Limits(num_blocks=64, block_size=16, max_slots=8, max_step_tokens=64, max_model_len=512),
    kv_bytes_per_token=1024,
)


def test_seconds_by_hand() -> None:
    """Nothing up to four tokens, a millisecond for each after them, and so on behind the last point."""
    assert [round(PACE.seconds(StepLoad(tokens)), 9) for tokens in (1, 4, 6, 8, 12)] == [
        0.010, 0.010, 0.012, 0.014, 0.018,
    ]  # fmt: skip
    assert PACE.seconds(StepLoad(1, 0, 0, 1000)) == pytest.approx(0.011)
    assert CalibratedPace(per_sequence_s=0.5, per_sample_s=0.25).seconds(StepLoad(9, 2, 0, 0, 3)) == 2.0


def test_a_calibration_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "new" / "small.json"
    CALIBRATION.write(path)
    assert read_pace(path) == CALIBRATION
    assert sorted(one.name for one in path.parent.iterdir()) == ["small.json"]


def test_a_table_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("per_step_s = 0.01\ntokens = [0, 4, 8]\ntoken_s = [0, 0, 0.004]\nper_pair_s = 1e-6\n")
    assert read_pace(path) == PACE


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.toml", "per_step_s = ", "is damaged"),
        ("a.json", "{", "is damaged"),
        ("a.json", "[]", "holds no table"),
        ("a.toml", "per_stepp_s = 1", "unknown field 'per_stepp_s'; did you mean per_step_s"),
        ("a.toml", "per_step_s = -1", "per_step_s"),
        ("a.toml", "tokens = [1, 2]\ntoken_s = [0.1]", "tokens has 2 numbers and token_s 1"),
        ("a.toml", "tokens = [1, 2]\ntoken_s = [0.2, 0.1]", "token_s must not fall"),
        ("a.toml", "per_step_s = 0.0", "a step would take no time"),
        ("a.json", '{"format": "octavo-pace-9"}', "has the format 'octavo-pace-9'"),
        ("a.json", '{"format": "octavo-pace-1"}', "missing required field"),
    ],
)
def test_a_bad_file_is_one_sentence(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(
        InvalidParameter, match=r"^The pace file [^\n]*\.$|^The pace file [^\n]*\?$"
    ) as raised:
        read_pace(path)
    assert message in str(raised.value)


def test_an_unknown_field_deep_inside_and_a_missing_file(tmp_path: Path) -> None:
    raw = msgspec.to_builtins(CALIBRATION)
    raw["host"]["per_day_s"] = 1
    path = tmp_path / "a.json"
    path.write_bytes(msgspec.json.encode(raw))
    with pytest.raises(InvalidParameter, match="per_day_s"):
        read_pace(path)
    with pytest.raises(InvalidParameter, match="cannot be read"):
        read_pace(tmp_path / "none.json")
    with pytest.raises(BenchError, match="cannot be written"):
        CALIBRATION.write(path / "below.json")


def test_steps_outside_of_what_was_seen_are_counted_by_quantity() -> None:
    watched = Watched(PACE, CALIBRATION.seen)
    for load in (StepLoad(8, 4, 100, 50, 4), StepLoad(9, 1, 101, 0, 1), StepLoad(30, 1, 0, 0, 1)):
        assert watched.seconds(load) == PACE.seconds(load)
    assert (watched.steps, watched.outside) == (3, {"tokens": (2, 30), "kv_tokens": (1, 101)})


def test_each_model_has_its_place_in_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path))
    places = {saved_at(name) for name in ("small", "a/b", "a-b", "../x", "x" * 300)}
    assert len(places) == 5 and {one.parent for one in places} == {tmp_path / "pace"}
