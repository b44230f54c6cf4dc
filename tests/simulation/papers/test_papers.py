"""Each paper, with few requests: its directions, its sources, and that it tells of all that it does."""

from __future__ import annotations

import msgspec
import pytest

from octavo.errors import InvalidParameter
from octavo.simulation.papers import PAPERS, parts, reproduce
from octavo.simulation.papers.page import cells, page, shown
from octavo.simulation.papers.table import Published, Result, Row


def value(result: Result, group: str, name: str) -> float:
    [row] = [one for one in result.rows if one.group.startswith(group) and one.name == name]
    assert row.simulated is not None
    return row.simulated


def check(result: Result) -> None:
    """What holds for every paper."""
    assert result.rows and result.curves and result.settings and result.missing
    for row in result.rows:
        assert row.published is None or (0 < row.published.low <= row.published.high and row.published.where)
        assert row.agrees or row.why, f"{row.name} differs without a reason"
        assert row.simulated is None or row.least is None or row.least <= row.simulated <= (row.most or 0)
    assert msgspec.json.decode(msgspec.json.encode(result), type=Result) == result
    html = page(result).html()
    assert result.title in html and all(row.name in html for row in result.rows)


@pytest.mark.slow
@pytest.mark.parametrize("name", PAPERS)
def test_every_paper_runs_tells_of_each_part_and_is_the_same_again(name: str) -> None:
    told: list[str] = []
    result = reproduce(name, quick=True, told=told.append)
    check(result)
    assert len(told) == parts(name, True) < parts(name, False)
    assert reproduce(name, quick=True) == result


@pytest.mark.slow
def test_pages_hold_more_tokens_and_requests_and_sustain_more() -> None:
    result = reproduce("vllm", quick=True)
    systems = ["Orca (Max)", "Orca (Pow2)", "Orca (Oracle)", "vLLM"]
    shares = [value(result, "KV memory that holds tokens", name) for name in systems]
    assert shares == sorted(shares) and shares[0] < 0.3 < 0.9 < shares[-1]
    for data in ("ShareGPT", "Alpaca"):
        running = [value(result, f"requests in flight, OPT-13B, {data}", name) for name in systems]
        assert running[0] == min(running) and running[0] <= 7.0
    over_max = value(result, "sustained rate", "over Orca (Max)")
    assert over_max > value(result, "sustained rate", "over Orca (Oracle)") >= 1.0
    for data, kind in (("Alpaca", "2 samples"), ("ShareGPT", "2 samples")):
        samples = value(result, f"KV memory saved by sharing, OPT-13B, {data}", kind)
        beams = value(result, f"KV memory saved by sharing, OPT-13B, {data}", "beam width 2")
        assert 0 < samples < beams < 0.5


@pytest.mark.slow
def test_chunks_hold_a_limit_at_a_higher_rate_than_whole_prompts() -> None:
    result = reproduce("sarathi", quick=True)
    assert value(result, "capacity", "Sarathi-Serve over vLLM") > 1.2
    assert value(result, "capacity", "Sarathi-Serve over Orca") > 1.2


@pytest.mark.slow
def test_iterations_hold_a_level_at_a_higher_rate_than_batches() -> None:
    result = reproduce("orca", quick=True)
    assert value(result, "175B", "Orca over static, one request at a time") > 3
    assert value(result, "175B", "Orca over static") > 2


def row(simulated: float | None, low: float, high: float) -> Row:
    published = Published(low=low, high=high, where="figure 1", checked="text")
    return Row(group="g", name="n", unit="ratio", published=published, simulated=simulated)


def test_a_ratio_is_to_the_nearer_end_of_a_range_and_within_it_one() -> None:
    assert row(2.0, 1.7, 2.7).ratio == 1.0
    assert row(1.36, 1.7, 2.7).ratio == pytest.approx(0.8)
    assert row(5.4, 1.7, 2.7).ratio == pytest.approx(2.0)
    assert row(None, 1.7, 2.7).ratio is None
    assert row(2.0, 1.0, 1.6).agrees and not row(2.1, 1.0, 1.6).agrees


def test_cells_say_a_range_once_and_where_it_is_from() -> None:
    assert cells(row(2.0, 1.7, 2.7)) == (
        "n", "figure 1", "the paper's sentence", "1.70× to 2.70×", "2.00×", "", "1.00",
    )  # fmt: skip
    assert cells(row(None, 2.0, 2.0))[3:] == ("2.00×", "–", "", "")
    assert [shown(0.204, "share"), shown(0.0219, "s/token"), shown(6.81, "1/s"), shown(7.0, "count")] == [
        "20.4%", "21.9 ms/token", "6.81/s", "7.00",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("vlm", "did you mean vllm"),
        ("Saratti", "did you mean sarathi"),
        ("zzz", "there are vllm, sarathi, orca"),
    ],
)
def test_an_unknown_paper_is_told_with_those_that_are_near(name: str, hint: str) -> None:
    with pytest.raises(InvalidParameter, match=hint):
        reproduce(name)
