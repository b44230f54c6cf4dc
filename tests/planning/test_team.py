"""A course's worked answers about a team and one machine, memory, and two ways to reckon an answer's time."""

from __future__ import annotations

import math
from typing import get_args

import pytest

from octavo.errors import InvalidParameter
from octavo.planning.hosted import Turn, cost_per_turn
from octavo.planning.prices import Prices
from octavo.planning.sheet import Sheet
from octavo.planning.team import Convention, Room, e2e_s, load, room
from octavo.planning.traffic import Traffic
from octavo.simulation.catalogue import model

TURN = Turn(input=1200, output=300)
TEAM = Traffic(turns_per_day=20 * 50, turn=TURN, hours=8, peak=3)
GB, GIB, MIB = 1e9, 1 << 30, 1 << 20


def test_twenty_people_and_fifty_questions_each() -> None:
    service_s = e2e_s(0, 0.040, 300, "tokens")
    assert service_s == pytest.approx(12.0)
    made = load(TEAM, service_s, (1, 4), Sheet())
    assert made.busy_hours == pytest.approx(3.33, abs=0.005)
    assert made.of_day == pytest.approx(0.139, abs=0.0005)
    assert made.of_hours == pytest.approx(0.417, abs=0.0005)
    assert made.peak_load == pytest.approx(1.25)
    assert math.isinf(made.waits[1])
    assert made.waits[4] == pytest.approx(0.2, abs=0.05)


@pytest.mark.parametrize(("weights_gb", "fits"), [(16, 0), (8.5, 25), (5, 43)])
def test_an_8b_model_in_sixteen_gib(weights_gb: float, fits: int) -> None:
    shape = model("llama-3-8b")
    assert (shape.layers, shape.kv_heads, shape.head_dim) == (32, 8, 128)
    sheet = Sheet()
    asked = Room(
        memory=16 * GIB,
        reserved=2 * GB,
        weights=weights_gb * GB,
        kv_per_token=shape.kv_bytes_per_token(16),
        tokens=1500,
    )
    assert room(asked, sheet) == fits
    assert sheet.sections[0].lines[0].value == 187.5


@pytest.mark.parametrize(("price", "a_day"), [("large:in=3,out=12", 7.20), ("small:in=0.25,out=0.80", 0.54)])
def test_the_same_team_hosted(price: str, a_day: float) -> None:
    name, hosted = Prices().hosted_model(price)
    assert 1000 * cost_per_turn(name, hosted, TURN, Sheet()) == pytest.approx(a_day)


def test_an_answers_time_by_both_conventions() -> None:
    assert set(get_args(Convention)) == {"gaps", "tokens"}
    short_s, long_s = 0.120, 0.120 * 4000 / 500
    assert long_s == pytest.approx(0.960)
    assert [e2e_s(ttft, 0.025, 150) for ttft in (short_s, long_s)] == pytest.approx([3.845, 4.685])
    assert [e2e_s(ttft, 0.025, 150, "tokens") for ttft in (short_s, long_s)] == pytest.approx([3.870, 4.710])


def test_kv_bytes_and_weights_of_the_course() -> None:
    llama = model("llama-7b")
    assert llama.kv_bytes_per_token(16) == 512 * 1024
    assert llama.kv_bytes_per_token(16) * 4096 == 2 * GIB
    thirteen = model("llama-13b").parameters * 2
    assert thirteen / GB == pytest.approx(26, abs=0.1)
    assert thirteen / (40 * GB) == pytest.approx(0.65, abs=0.005)


def test_what_is_no_size_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="memory is 0"):
        room(Room(memory=0, weights=1, kv_per_token=1, tokens=1), Sheet())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"turns_per_day": 0.0}, "turns_per_day is 0"),
        ({"turns_per_day": 5.0, "peak": 0.5}, "peak is 0.5"),
        ({"turns_per_day": 5.0, "days": 32.0}, "31 at most"),
        ({"turns_per_day": 5.0, "hours": 25.0}, "24 at most"),
        ({"turns_per_day": float("inf")}, "turns_per_day is inf"),
    ],
)
def test_traffic_that_cannot_be(settings: dict[str, float], said: str) -> None:
    with pytest.raises(InvalidParameter, match=said):
        Traffic(turn=TURN, **settings)
