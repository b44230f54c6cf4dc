"""What the command line says of several servers. Knows its spelling, and how they are put together."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from rich.table import Table

from octavo.cli.options import parse_duration
from octavo.config import RouterName
from octavo.errors import InvalidParameter
from octavo.simulation.asking import Asking
from octavo.simulation.cluster import Cluster
from octavo.simulation.disaggregated import Disaggregated, Link
from octavo.simulation.failures import Failure, Failures
from octavo.simulation.ledger import Place
from octavo.simulation.replica import Replica
from octavo.simulation.routers import ROUTERS
from octavo.simulation.scaling import Scaling
from octavo.timing.clock import microseconds

__all__ = ["Fleet", "Split", "Start", "fleet_of", "places_table"]

_SPELLING = re.compile(r"(?:replica )?(?P<number>\d+) at (?P<at>\S+?)(?: for (?P<lasts>\S+))?", re.IGNORECASE)
_LEAST_EVERY_S, _LONGEST_S = 0.1, 86_400.0
"""Of times of autoscaling: each look at the load is an event, while nothing else happens too."""
_SHOWN = 16
"""Replicas in a table; of more only the ends of the range are of interest."""
_OF_SCALING = {
    "scale_target": "target",
    "scale_every": "every_s",
    "cold_start": "cold_start_s",
    "scale_down_after": "down_after_s",
}
_OF_SPLIT = ("link", "link_latency")


class Start(Protocol):
    """Makes a new engine."""

    def __call__(self, place: int, *, receives: bool = False) -> Replica:
        """For this place; `receives`: K and V of prompts come from elsewhere."""


@dataclass(frozen=True)
class Split:
    """Some compute prompts, and others write answers."""

    prefill: int
    decode: int
    link_bytes_s: float
    latency_s: float


@dataclass(frozen=True)
class Fleet:
    """How many servers, who of them gets a request, and when they die, come and go."""

    replicas: int
    router: RouterName
    fail: tuple[str, ...] = ()
    mtbf_s: float | None = None
    repair_s: float = 60.0
    scaling: Scaling | None = None
    split: Split | None = None

    def __post_init__(self) -> None:
        if self.fail and self.mtbf_s is not None:
            raise InvalidParameter("--fail lists when replicas die, and --mtbf draws it; drop one of them.")
        if self.mtbf_s is not None and self.mtbf_s <= 0:
            raise InvalidParameter("--mtbf is 0, and a mean time between failures is more; drop it for none.")
        if self.split is not None and (self.fail or self.mtbf_s is not None):
            raise InvalidParameter(
                "Failures of servers that share the work by --prefill-replicas are not simulated; leave out --fail and "
                "--mtbf, or simulate --replicas."
            )

    def check(self, asking: Asking, kv_bytes_per_token: float | None) -> None:
        """Raise InvalidParameter where what is asked cannot be sent on."""
        if self.split is None:
            return
        if asking.n > 1 or asking.beam_width:
            raise InvalidParameter(
                "With --prefill-replicas each request has one answer; leave out --n and --beam-width."
            )
        if kv_bytes_per_token is None:
            raise InvalidParameter(
                "How large K and V of a token are is not known with a table of step times, so that sending them cannot "
                "be timed; take a machine of the catalogue, or a calibration."
            )

    def cluster(self, start: Start, seed: int, kv_bytes_per_token: float | None) -> Cluster | Disaggregated:
        """All of them, new, for what `check` lets through."""
        router = ROUTERS[self.router]
        if self.split is None:
            return Cluster(
                [start(place) for place in range(self.replicas)],
                router(),
                failures=self.failures(seed),
                scaling=self.scaling,
                restart=start,
            )
        split = self.split
        assert kv_bytes_per_token is not None
        link = Link(bytes_s=split.link_bytes_s, token_bytes=kv_bytes_per_token, latency_s=split.latency_s)
        prompts = Cluster([start(place) for place in range(split.prefill)], router())
        answers = Cluster(
            [start(split.prefill + place, receives=True) for place in range(split.decode)],
            ROUTERS["least-loaded"](),
        )
        return Disaggregated(prompts, answers, link)

    def failures(self, seed: int) -> Failures | None:
        """None where nobody dies. Each has draws of its own, so they are made anew for each run. Raises
        InvalidParameter."""
        if self.mtbf_s is not None:
            return Failures(mtbf_s=self.mtbf_s, repair_s=self.repair_s, seed=seed)
        return Failures([self._failure(text) for text in self.fail]) if self.fail else None

    def facts(self) -> list[tuple[str, str]]:
        """Words on what is beside an ordinary run."""
        facts = []
        if self.mtbf_s is not None:
            facts.append(
                ("failures", f"of a replica every {self.mtbf_s:g} s in the mean, for {self.repair_s:g} s")
            )
        elif self.fail:
            facts.append(("failures", "; ".join(self.fail)))
        if (rule := self.scaling) is not None:
            facts.append(
                (
                    "autoscaling",
                    (
                        f"{rule.least} to {rule.most} replicas for {rule.target:g} answers each, looked at "
                        f"every {rule.every_s:g} s; a start takes {rule.cold_start_s:g} s, and one goes when fewer "
                        f"were enough for {rule.down_after_s:g} s"
                    ),
                )
            )
        if (split := self.split) is not None:
            facts.append(
                (
                    "disaggregated",
                    (
                        f"{split.prefill} compute prompts, {split.decode} write answers; K and V go at "
                        f"{split.link_bytes_s / 1e9:g} GB/s and {1e3 * split.latency_s:g} ms"
                    ),
                )
            )
        return facts

    def label(self, place: int) -> str:
        """Of a replica in a table."""
        if self.split is None:
            return str(place + 1)
        return f"{place + 1} prompts" if place < self.split.prefill else f"{place + 1} answers"

    def _failure(self, text: str) -> Failure:
        found = _SPELLING.fullmatch(text.strip())
        if found is None:
            raise InvalidParameter(
                f"--fail is {text!r}; write 'replica 2 at 30s for 60s', or leave out the end where it stays dead."
            )
        number = int(found["number"])
        if not 1 <= number <= self.replicas:
            raise InvalidParameter(
                f"--fail names replica {number}, and there are {self.replicas}; they are counted from 1."
            )
        at_us = microseconds(parse_duration(found["at"]))
        if found["lasts"] is None:
            return Failure(number - 1, at_us, None)
        lasts_us = microseconds(parse_duration(found["lasts"]))
        if not lasts_us:
            raise InvalidParameter(
                f"--fail is {text!r}, and who is dead for no time has not died; write for how long."
            )
        return Failure(number - 1, at_us, at_us + lasts_us)


def fleet_of(options: Mapping[str, Any], given: frozenset[str]) -> Fleet:
    """From the values of options, of which `given` were typed. Raises InvalidParameter."""
    scaling, split = _scaling(options, given), _split(options, given)
    if scaling is not None and split is not None:
        raise InvalidParameter("--autoscale and --prefill-replicas are not simulated together; drop one.")
    replicas = options["replicas"]
    for name, other in (("autoscale", scaling), ("prefill-replicas", split)):
        if other is not None and "replicas" in given:
            raise InvalidParameter(f"--{name} says how many servers there are, so leave out --replicas.")
    if scaling is not None:
        replicas = scaling.most
    if split is not None:
        replicas = split.prefill + split.decode
    return Fleet(
        replicas,
        options["router"],
        tuple(options["fail"] or ()),
        options["mtbf"],
        options["repair"],
        scaling,
        split,
    )


def _scaling(options: Mapping[str, Any], given: frozenset[str]) -> Scaling | None:
    text = options["autoscale"]
    if text is None:
        _only_with("--autoscale", _OF_SCALING, given)
        return None
    found = re.fullmatch(r"(\d+):(\d+)", text.strip())
    if found is None or not 1 <= int(found[2]) <= 10_000:
        raise InvalidParameter(
            f"--autoscale is {text!r}; write the fewest and the most servers, such as 1:8, at most 10000."
        )
    if not options["scale_target"] > 0:
        raise InvalidParameter(f"--scale-target is {options['scale_target']:g}; give more than 0.")
    if options["scale_every"] < _LEAST_EVERY_S:
        raise InvalidParameter(
            f"--scale-every is {options['scale_every']:g} s; give at least {_LEAST_EVERY_S:g} s."
        )
    for name in ("scale_every", "cold_start", "scale_down_after"):
        if options[name] > _LONGEST_S:
            raise InvalidParameter(
                f"--{name.replace('_', '-')} is {options[name]:g} s; at most a day is simulated."
            )
    values = {field: options[name] for name, field in _OF_SCALING.items()}
    return Scaling(least=int(found[1]), most=int(found[2]), **values)


def _split(options: Mapping[str, Any], given: frozenset[str]) -> Split | None:
    prefill, decode = options["prefill_replicas"], options["decode_replicas"]
    if not prefill and not decode:
        _only_with("--prefill-replicas and --decode-replicas", _OF_SPLIT, given)
        return None
    if not prefill or not decode:
        missing = "--decode-replicas" if prefill else "--prefill-replicas"
        raise InvalidParameter(f"Some servers compute prompts and others write answers; give {missing} too.")
    return Split(prefill, decode, options["link"], options["link_latency"])


def _only_with(wanted: str, names: Mapping[str, str] | tuple[str, ...], given: frozenset[str]) -> None:
    for name in names:
        if name in given:
            raise InvalidParameter(f"--{name.replace('_', '-')} is for {wanted}; give that too, or drop it.")


def places_table(fleet: Fleet, places: list[Place]) -> Table:
    """What each server did; of many, who was busy least, in the middle and most."""
    table = Table(
        "server",
        "busy",
        "prompt tokens",
        "answer tokens",
        "from the cache",
        "paid for",
        box=None,
        pad_edge=False,
    )
    busy = sorted(range(len(places)), key=lambda place: places[place].busy_s)
    shown = range(len(places)) if len(places) <= _SHOWN else (busy[0], busy[len(busy) // 2], busy[-1])
    for number in shown:
        one = places[number]
        table.add_row(
            fleet.label(number),
            f"{one.busy_s / one.paid_s:.0%}" if one.paid_s else "-",
            f"{one.prompt_tokens:,}",
            f"{one.generated_tokens:,}",
            f"{one.hit_share:.0%}" if one.hit_share is not None else "-",
            f"{one.paid_s:,.0f} s",
        )
    return table
