"""Several servers on the command line: what is wrong with them is one sentence, what is right makes failures."""

from __future__ import annotations

from typing import Any

import pytest
import typer

from octavo.cli.simulate_fleet import Fleet, Split, fleet_of, places_table
from octavo.cli.simulate_options import _parse_rate
from octavo.errors import InvalidParameter
from octavo.simulation.asking import Asking
from octavo.simulation.failures import Failure
from octavo.simulation.ledger import Place
from octavo.simulation.scaling import Scaling


def test_failures_are_counted_from_one_and_may_last_for_ever() -> None:
    made = Fleet(3, "round-robin", ("replica 2 at 30s for 1min", "3 at 5ms")).failures(seed=0)
    assert made is not None
    assert made.after(1, 0) == Failure(1, 30_000_000, 90_000_000)
    assert made.after(2, 0) == Failure(2, 5_000, None)
    assert made.after(0, 0) is None and made.after(1, 30_000_001) is None
    assert Fleet(3, "round-robin").failures(seed=0) is None


@pytest.mark.parametrize(
    ("fail", "mtbf_s", "words"),
    [
        (("replica 4 at 3s",), None, "names replica 4, and there are 3"),
        (("replica 0 at 3s",), None, "counted from 1"),
        (("1 at 3s for 0s",), None, "has not died"),
        (("the second",), None, "write 'replica 2 at 30s for 60s'"),
        (("1 at 3s", "1 at 5s"), None, "when it is dead already"),
        (("1 at 3s",), 60.0, "drop one of them"),
        ((), 0.0, "--mtbf is 0"),
    ],
)
def test_what_is_wrong_is_said(fail: tuple[str, ...], mtbf_s: float | None, words: str) -> None:
    with pytest.raises(InvalidParameter, match=words):
        Fleet(3, "round-robin", fail, mtbf_s).failures(seed=0)


_DEFAULTS: dict[str, Any] = {
    "replicas": 1, "router": "least-loaded", "fail": None, "mtbf": None, "repair": 60.0, "autoscale": None,
    "scale_target": 16.0, "scale_every": 15.0, "cold_start": 60.0, "scale_down_after": 300.0,
    "prefill_replicas": 0, "decode_replicas": 0, "link": 25e9, "link_latency": 0.001,
}  # fmt: skip


def asked(**given: Any) -> Fleet:
    return fleet_of({**_DEFAULTS, **given}, frozenset(given))


def test_options_become_a_fleet() -> None:
    assert asked(replicas=3) == Fleet(3, "least-loaded")
    scaled = asked(autoscale="0:8", scale_target=4.0)
    assert scaled.scaling == Scaling(least=0, most=8, target=4.0)
    assert scaled.replicas == 8
    apart = asked(prefill_replicas=2, decode_replicas=3, link=50e9)
    assert apart.split == Split(2, 3, 50e9, 0.001)
    assert apart.replicas == 5
    assert [name for name, _ in (*scaled.facts(), *apart.facts())] == ["autoscaling", "disaggregated"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"autoscale": "8"}, "write the fewest and the most servers, such as 1:8"),
        ({"autoscale": "8:2"}, "the smaller number first"),
        ({"autoscale": "0:0"}, "such as 1:8"),
        ({"autoscale": "1:2", "scale_target": 0.0}, "--scale-target is 0"),
        ({"autoscale": "1:2", "scale_every": 1e-6}, "--scale-every is 1e-06 s; give at least 0.1 s"),
        ({"autoscale": "0:2", "cold_start": 1e9}, "at most a day"),
        ({"autoscale": "1:2", "replicas": 3}, "leave out --replicas"),
        ({"cold_start": 5.0}, "--cold-start is for --autoscale"),
        ({"prefill_replicas": 1}, "give --decode-replicas too"),
        ({"decode_replicas": 1}, "give --prefill-replicas too"),
        ({"link": 1e9}, "--link is for --prefill-replicas and --decode-replicas"),
        ({"prefill_replicas": 1, "decode_replicas": 1, "replicas": 2}, "leave out --replicas"),
        ({"prefill_replicas": 1, "decode_replicas": 1, "autoscale": "1:2"}, "not simulated together"),
        ({"prefill_replicas": 1, "decode_replicas": 1, "mtbf": 5.0}, "leave out --fail and --mtbf"),
    ],
)
def test_options_that_do_not_go_together_are_named(given: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidParameter, match=words):
        asked(**given)


def test_what_cannot_be_sent_on_is_said() -> None:
    apart = asked(prefill_replicas=1, decode_replicas=1)
    apart.check(Asking(), 1000.0)
    with pytest.raises(InvalidParameter, match="leave out --n"):
        apart.check(Asking(n=2), 1000.0)
    with pytest.raises(InvalidParameter, match="not known with a table"):
        apart.check(Asking(), None)


def test_rates_are_of_bytes_or_of_bits() -> None:
    assert (_parse_rate("25GB/s"), _parse_rate("200Gbit/s"), _parse_rate("1.5 MB/s")) == (25e9, 25e9, 1.5e6)
    for text in ("fast", "25GB", "0GB/s", "-1GB/s", "GB/s"):
        with pytest.raises(typer.BadParameter, match="is not a rate"):
            _parse_rate(text)


def test_of_many_servers_the_ends_and_the_middle_are_shown() -> None:
    places = [Place(float(n), 100.0, n, n, None) for n in range(40)]
    assert list(places_table(Fleet(40, "round-robin"), places).columns[0].cells) == ["1", "21", "40"]
    few = places_table(Fleet(3, "round-robin"), places[:3])
    assert list(few.columns[0].cells) == ["1", "2", "3"]
    assert list(few.columns[1].cells) == ["0%", "1%", "2%"]
