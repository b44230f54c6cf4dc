"""Growth of counters and means of gauges over a window, by hand."""

from __future__ import annotations

import math

import pytest

from octavo.bench.readings import client_scalars, growth, server_scalars
from octavo.bench.record import ClientSample, ServerSample
from octavo.bench.window import Window


def window(start_s: float, end_s: float) -> Window:
    return Window(start_us=round(start_s * 1e6), end_us=round(end_s * 1e6), rule="")


def samples(name: str, *values: float | None) -> list[ServerSample]:
    """One a second, from 0."""
    return [
        ServerSample(second * 1_000_000, {} if value is None else {name: value})
        for second, value in enumerate(values)
    ]


def test_a_counter_grows_between_readings_on_a_straight_line() -> None:
    # 10 a second, then 30 a second: from 0.5 s to 1.5 s it grows by 5 + 15.
    assert growth(samples("x", 100, 110, 140), "x", window(0.5, 1.5)) == pytest.approx((20, 1.0))


def test_a_counter_that_falls_began_again_from_nothing() -> None:
    # 100 → 130, then the server started anew and counted to 7, then to 9: 30 + 7 + 2.
    assert growth(samples("x", 100, 130, 7, 9), "x", window(0, 3)) == pytest.approx((39, 3.0))


def test_a_window_wider_than_the_readings_is_as_wide_as_they_are() -> None:
    assert growth(samples("x", None, 5, None, 9, None), "x", window(0, 10)) == pytest.approx((4, 2.0))


@pytest.mark.parametrize("values", [(), (None, None), (3.0,), (math.nan, 3.0, math.inf)])
def test_a_counter_without_two_readings_says_nothing(values: tuple[float | None, ...]) -> None:
    assert growth(samples("x", *values), "x", window(0, 10)) is None


def test_readings_outside_the_window_say_nothing() -> None:
    assert growth(samples("x", 1, 2, 3), "x", window(5, 10)) is None
    assert server_scalars(samples("running", 1, 2, 3), window(5, 10))["server_running"] is None


def test_gauges_are_means_and_maxima_of_the_readings_in_the_window() -> None:
    found = server_scalars(samples("kv_use", 0.9, 0.2, 0.4, math.nan, 1.0), window(1, 4))
    assert found["kv_use"] == pytest.approx(0.3)
    assert found["kv_use_max"] == 0.4
    assert found["server_running"] is None


def test_busy_time_is_what_the_server_counts_or_what_is_left_of_its_idle_time() -> None:
    assert server_scalars(samples("busy_s", 10, 10.5, 11.25), window(0, 2))["busy_share"] == 0.625
    assert server_scalars(samples("idle_s", 10, 10.5, 11.25), window(0, 2))["busy_share"] == 0.375
    found = server_scalars(samples("running", 0, 3, 1, 0), window(0, 4))
    assert (found["busy_share"], found["busy_share_estimate"]) == (None, 0.5)


def test_rates_and_shares_of_counters() -> None:
    both = [
        ServerSample(0, {"prefix_queried_tokens": 1000, "prefix_hit_tokens": 900, "generated_tokens": 50}),
        ServerSample(
            4_000_000, {"prefix_queried_tokens": 1400, "prefix_hit_tokens": 1000, "generated_tokens": 250}
        ),
    ]
    found = server_scalars(both, window(0, 4))
    assert found["prefix_hit_share"] == 0.25
    assert found["server_output_rate"] == 50
    assert found["server_input_rate"] is None
    assert found["preemptions"] is None
    assert server_scalars(samples("preemptions", 3, 3, 8), window(0, 2))["preemptions"] == 5


def test_a_cache_that_nobody_asked_has_no_share() -> None:
    idle = {"prefix_queried_tokens": 10.0, "prefix_hit_tokens": 4.0}
    found = server_scalars([ServerSample(0, idle), ServerSample(1_000_000, idle)], window(0, 1))
    assert found["prefix_hit_share"] is None


def test_the_measuring_process_s_own_samples() -> None:
    own = [ClientSample(second * 1_000_000, 0.1 * second, 1000 * second, 1) for second in range(5)]
    found = client_scalars(own, window(1, 4))
    assert found["client_cpu"] == pytest.approx(0.2)
    assert found["client_cpu_max"] == pytest.approx(0.3)
    assert found["loop_lag_p50"] == 0.002
    assert found["loop_lag_p99"] == pytest.approx(0.00298)
    assert set(client_scalars([], window(0, 1)).values()) == {None}
