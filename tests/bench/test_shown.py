"""Values in words: each metric in its own unit."""

from __future__ import annotations

import pytest

from octavo.bench.definitions import DEFINITIONS
from octavo.bench.intervals import Interval
from octavo.bench.shown import axis_of, label_of, show, show_interval, show_load, show_spread


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("ttft_p99", 0.0123, "12.3 ms"),
        ("tpot_mean", 0.02, "20 ms"),
        ("goodput", 0.5, "50 %"),
        ("output_rate", 1234.5, "1,234 tokens/s"),
        ("request_rate", 2.5, "2.50 requests/s"),
        ("client_cpu", 0.25, "0.25 cores"),
        ("preemptions", 3.0, "3"),
        ("itl_p50", None, "–"),
    ],
)
def test_a_value_has_its_metric_s_unit(name: str, value: float | None, text: str) -> None:
    assert show(name, value) == text


def test_a_load_is_told_in_whole_digits() -> None:
    assert show_load(1e6, None) == "1,000,000 requests/s" and show_load(2.5, None) == "2.5 requests/s"
    assert show_load(999_999.4, None) == "999999 requests/s"


def test_every_metric_has_an_axis_with_its_label() -> None:
    for one in DEFINITIONS:
        axis = axis_of(one.name)
        assert axis.label.startswith(one.label)
        assert (axis.quantity == "time") == (one.unit in ("s", "s/token"))


def test_labels_of_metrics_and_of_their_values() -> None:
    assert label_of("ttft_intended_p99_9") == "TTFT from arrival p99.9"
    assert label_of("ttft") == "TTFT" and label_of("tpot") == "TPOT/token"
    assert label_of("goodput") == "Goodput"


def test_an_interval_has_its_unit_once_where_both_ends_have_the_same() -> None:
    assert show_interval("output_rate", Interval(5, 4, 6, 0.95)) == "4 to 6 tokens/s"
    assert show_interval("ttft_p50", Interval(0.9, 0.8, 1.2, 0.95)) == "800 ms to 1.20 s"
    assert show_interval("ttft_p50", None) == ""
    assert show_spread("output_rate", 5, Interval(5, 4, 6, 0.95)) == "5 ±1 tokens/s"
    assert show_spread("ttft_p50", 1.5, Interval(1.5, 1.4, 1.6, 0.95)) == "1.50 s ±100 ms"
    assert show_spread("preemptions", 5, Interval(5, 4, 6, 0.95)) == "5 ±1"
    assert show_spread("goodput", 0.5, None) == "50 %"


def test_a_load_is_a_rate_or_clients() -> None:
    assert show_load(2.5, None) == "2.5 requests/s"
    assert show_load(None, 32) == "32 clients" and show_load(None, 1) == "1 client"
    assert show_load(None, None) == "the workload's own times"
