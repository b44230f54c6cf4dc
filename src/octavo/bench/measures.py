"""The numbers of a run: every metric of octavo.bench.definitions, and whether they can be trusted.

Pure functions of a `Run`: nothing is measured here, so every number can be computed again from the raw events.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TypeVar

import msgspec
import numpy as np

from octavo.bench.backlog import Backlog, backlog
from octavo.bench.definitions import DISTRIBUTIONS, STATS, definition, split
from octavo.bench.distribution import Distribution, Floats, Summary
from octavo.bench.events import Bools
from octavo.bench.readings import client_scalars, server_scalars
from octavo.bench.record import Run
from octavo.bench.slo import Slo
from octavo.bench.times import Times
from octavo.bench.validity import judge
from octavo.bench.window import Window, choose

__all__ = ["ErrorCount", "Group", "Measures", "distributions", "measure", "within"]


_Key = TypeVar("_Key", str, int)


class ErrorCount(msgspec.Struct, frozen=True, kw_only=True):
    """How often requests failed in one way."""

    error: str
    status: int | None
    count: int
    message: str | None
    """What the first of them said."""


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the requests: a tenant's, a priority's, a turn's, or all."""

    requests: int
    """Meant to be sent in the window."""
    answered: int
    good: int
    summaries: dict[str, Summary]
    """Of each distribution that has values."""

    @property
    def goodput(self) -> float | None:
        return self.good / self.requests if self.requests else None

    @property
    def error_share(self) -> float | None:
        return 1 - self.answered / self.requests if self.requests else None


class Measures(msgspec.Struct, frozen=True, kw_only=True):
    """All numbers of one run. Times in seconds, rates per second, shares 0 to 1."""

    window: Window
    all: Group
    scalars: dict[str, float | None]
    tenants: dict[str, Group] = {}
    """By name, "" for requests without one; nothing where none has one."""
    priorities: dict[int, Group] = {}
    """Nothing where all have the same."""
    turns: dict[int, Group] = {}
    """Nothing where every session has one turn."""
    errors: list[ErrorCount] = []
    """Of the window, the most frequent first."""
    failed_late: dict[str, float | None] = {}
    """By name, the percentiles and maxima that are others when failed requests count as infinitely late; None:
    infinite. Nothing where none failed."""
    backlog: Backlog | None = None
    """Whether the server kept up; None for a closed loop and for a short run."""
    targeted: bool = False
    """Whether `good` means within a target, or just answered."""
    problems: list[str] = []
    """What a reader must know before he believes the numbers, a sentence each."""
    valid: bool = True
    """False where a problem falsifies them."""

    @property
    def answered(self) -> bool:
        """Whether a request of the window had a good answer, or there was none."""
        return self.value("error_share") != 1.0

    def value(self, name: str) -> float | None:
        """A number by its name ("ttft_p99", "goodput"); None where the run has none.

        Raises InvalidParameter for a name that there is not.
        """
        metric, stat = split(name)
        if stat is None:
            return self.scalars.get(name)
        summary = self.all.summaries.get(metric.name)
        return None if summary is None else float(getattr(summary, stat))

    def late(self, name: str) -> float | None:
        """As `value`, but with failed requests as infinitely late in percentiles and maxima of what answers took."""
        if name not in self.failed_late:
            return self.value(name)
        value = self.failed_late[name]
        return math.inf if value is None else value


def measure(run: Run, *, window: Window | None = None, slo: Slo | None = None) -> Measures:
    """Every number of a run, over `window` or the steady part of it.

    Latencies are of the requests whose intended arrival lies in the window and that were answered; rates count what
    was received in it.
    """
    window = choose(run) if window is None else window
    times = Times(run)
    inside = _inside(times, window)
    good = times.ok if slo is None else times.ok & within(times, slo)
    found = {name: times.distribution(name, inside) for name in DISTRIBUTIONS}
    everyone = _group(times, inside, good, found)
    scalars = {
        **_rates(times, window),
        **_shares(times, inside, everyone),
        "goodput_rate": everyone.good / window.length_s,
        "offered_rate": everyone.requests / window.length_s,
        **server_scalars(run.server, window),
        **client_scalars(run.client, window),
    }
    if scalars["cached_share"] is None:
        scalars["cached_share"] = scalars["prefix_hit_share"]
    growth = backlog(run, window)
    problems, valid = judge(run, times, window, everyone.summaries, scalars, growth)
    tenants = [one.tenant or "" for one in run.exchanges]
    priorities = [one.priority for one in run.exchanges]
    turns = [one.turn for one in run.exchanges]
    return Measures(
        window=window,
        all=everyone,
        scalars=scalars,
        tenants=_by(times, inside, good, tenants) if any(tenants) else {},
        priorities=_by(times, inside, good, priorities) if len(set(priorities)) > 1 else {},
        turns=_by(times, inside, good, turns) if any(turns) else {},
        errors=_errors(times, inside),
        failed_late=_failed_late(found, everyone),
        backlog=growth,
        targeted=slo is not None and bool(slo.requests),
        problems=problems,
        valid=valid,
    )


def distributions(run: Run, window: Window) -> dict[str, Distribution]:
    """The whole distributions behind the summaries of `Measures.all`, to draw them; without the empty ones."""
    times = Times(run)
    inside = _inside(times, window)
    found = {name: times.distribution(name, inside) for name in DISTRIBUTIONS}
    return {name: one for name, one in found.items() if one.count}


def _inside(times: Times, window: Window) -> Bools:
    return (times.intended_us >= window.start_us) & (times.intended_us < window.end_us)


def within(times: Times, slo: Slo) -> Bools:
    """Whether each request keeps every bound, as `Slo.good` says it of one."""
    kept = np.ones(len(times.ok), dtype=bool)
    for bound in slo.requests:
        values = times.values(bound.metric, bound.share)
        none = np.isnan(values) & bound.keeps(None)
        kept &= none | (values < bound.bound if bound.sign == "<" else values <= bound.bound)
    return kept


def _group(times: Times, which: Bools, good: Bools, found: dict[str, Distribution]) -> Group:
    summaries = {name: one.summary() for name, one in found.items()}
    return Group(
        requests=int(which.sum()),
        answered=int((which & times.ok).sum()),
        good=int((which & good).sum()),
        summaries={name: one for name, one in summaries.items() if one is not None},
    )


def _by(times: Times, inside: Bools, good: Bools, keys: list[_Key]) -> dict[_Key, Group]:
    """A group for each key of a request in the window, in order; `keys` are of all requests."""
    here = sorted({key for key, one in zip(keys, inside, strict=True) if one})
    number = {key: place for place, key in enumerate(here)}
    group = np.array([number.get(key, -1) for key in keys], dtype=np.int64)
    group[~inside] = -1
    split = {name: times.by_group(name, group, len(here)) for name in DISTRIBUTIONS}
    return {
        key: _group(times, group == place, good, {name: found[place] for name, found in split.items()})
        for key, place in number.items()
    }


def _rates(times: Times, window: Window) -> dict[str, float | None]:
    """What was received in the window, over its length."""
    start, end, length = window.start_us, window.end_us, window.length_s
    ended = times.ok & (times.end_us >= start) & (times.end_us < end)
    output = 0.0
    for here, events in times.parts():
        received = times.ok[here][events.owner] & (events.at_us >= start) & (events.at_us < end)
        output += float(events.tokens[received].sum())
    # A count without events that it could be laid over: all of it came with the end.
    unplaced = ended & ~times.placed & (times.output_tokens > 0)
    output += float(times.output_tokens[unplaced].sum())
    uncounted = times.ok.any() and np.isnan(times.output_tokens[times.ok]).all()
    out = None if uncounted else output
    began_us = np.where(np.isnan(times.first_us), times.end_us, times.first_us)
    taken = times.ok & (began_us >= start) & (began_us < end)
    counts = times.input_tokens[taken]
    into = None if len(counts) and np.isnan(counts).all() else float(np.nansum(counts))
    flying = ~np.isnan(times.sent_us)
    sent, gone = times.sent_us[flying], times.end_us[flying].astype(np.float64)
    overlap = np.clip(np.minimum(gone, end) - np.maximum(sent, start), 0, None)
    return {
        "request_rate": float(ended.sum()) / length,
        "output_rate": None if out is None else out / length,
        "input_rate": None if into is None else into / length,
        "total_rate": None if into is None or out is None else (into + out) / length,
        "concurrency": float(overlap.sum()) / 1e6 / length,
        "concurrency_max": _most(sent, gone, window),
    }


def _most(sent: Floats, gone: Floats, window: Window) -> float:
    """How many were in flight at most; one that ends as another is sent is not beside it."""
    here = (gone > window.start_us) & (sent < window.end_us)
    at = np.concatenate((np.maximum(sent[here], window.start_us), gone[here]))
    step = np.concatenate((np.ones(int(here.sum())), -np.ones(int(here.sum()))))
    order = np.lexsort((step, at))
    return float(np.cumsum(step[order]).max(initial=0.0))


def _shares(times: Times, inside: Bools, everyone: Group) -> dict[str, float | None]:
    known = inside & times.ok & ~np.isnan(times.told_output)
    cached = inside & times.ok & ~np.isnan(times.cached_tokens) & ~np.isnan(times.told_input)
    asked = float(times.told_input[cached].sum())
    short = known & (times.told_output < times.wanted_output)
    return {
        "requests": float(everyone.requests),
        "goodput": everyone.goodput,
        "error_share": everyone.error_share,
        "short_share": float(short.sum() / known.sum()) if known.any() else None,
        "cached_share": float(times.cached_tokens[cached].sum()) / asked if asked else None,
    }


def _failed_late(values: dict[str, Distribution], everyone: Group) -> dict[str, float | None]:
    """Percentiles over all requests, those without an answer above all others.

    The p-th of all is one of the answered ones, further up by as many as failed. Of gaps between tokens, nobody knows
    how many a failed request would have had; they are taken to be as many as those of another.
    """
    failed = everyone.error_share
    if not failed:
        return {}
    found: dict[str, float | None] = {}
    for name, answered in values.items():
        if definition(name).better != "lower":
            continue  # of the measuring process, whatever became of the request
        if not answered.count and failed < 1.0:
            continue  # no answer has such a value, so that failed requests are not late in it either
        for stat in STATS:
            if stat == "max" or stat[0] == "p":
                p = 100.0 if stat == "max" else float(stat[1:].replace("_", "."))
                among = p / (1.0 - failed) if failed < 1.0 else math.inf
                inside_answered = among <= 100.0 * (1.0 + 1e-12)
                found[f"{name}_{stat}"] = answered.percentile(min(among, 100.0)) if inside_answered else None
    return found


def _errors(times: Times, inside: Bools) -> list[ErrorCount]:
    found: Counter[tuple[str, int | None]] = Counter()
    first: dict[tuple[str, int | None], str | None] = {}
    for place in np.flatnonzero(inside & ~times.ok):
        one = times.exchanges[place]
        key = (one.error or "", one.status)
        found[key] += 1
        first.setdefault(key, one.message)
    return [
        ErrorCount(error=error, status=status, count=count, message=first[error, status])
        for (error, status), count in found.most_common()
    ]
