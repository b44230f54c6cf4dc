"""The times of every request of a run, from its raw events: one place for every per-request definition.

Knows events, not windows, targets or sums over requests. Everything is made in whole arrays, once for a run: a run of
100,000 requests has tens of millions of events.

**The first token** of an answer is there with the first event that has text: of the answer, of reasoning, or a piece
of a tool call. A role, an empty event or a count of tokens alone is no token. Tokens that a server has told of before
(their text was held back, since it might have become a stop string or was half a character) count as come with that
event: before it nobody could read anything, and the time does not depend on whether the server counts tokens. From
there on a token comes with the event that tells of it.
"""

from __future__ import annotations

from itertools import chain
from operator import attrgetter

import msgspec
import numpy as np
from numpy.typing import NDArray

from octavo.bench.distribution import Distribution, Floats, Ints
from octavo.bench.record import Chunk, Exchange, Kind, Run

__all__ = ["GAPS", "PER_REQUEST", "ExchangeTimes", "Times"]

PER_REQUEST = (
    "ttft", "ttft_intended", "ttfa", "ttfs", "tpot", "e2e", "e2e_intended", "normalized", "lag", "connect",
)  # fmt: skip
"""The metrics of which each request has one value, or none."""
GAPS = ("itl", "icl")
"""Those of which each has many."""

_TEXT = int(Kind.ANSWER | Kind.REASONING | Kind.TOOL)
_REPLY = int(Kind.ANSWER | Kind.TOOL)

Bools = NDArray[np.bool_]


class ExchangeTimes(msgspec.Struct, frozen=True, kw_only=True):
    """One request's times, in seconds; None where there is none. See octavo.bench.definitions for each."""

    index: int
    error: str | None
    ttft_s: float | None
    ttft_intended_s: float | None
    ttfa_s: float | None
    ttfs_s: float | None
    tpot_s: float | None
    e2e_s: float | None
    e2e_intended_s: float | None
    normalized_s: float | None
    max_itl_s: float | None
    """The longest gap between two tokens."""
    itl: Distribution
    """The gaps between its tokens."""
    icl: Distribution
    """The gaps between its events."""

    def value(self, metric: str, share: float | None = None) -> float | None:
        """Of a metric by its name; of gaps the quantile `share` (0 to 1), or the longest."""
        if metric in GAPS:
            gaps: Distribution = getattr(self, metric)
            return gaps.percentile(100 if share is None else 100 * share)
        found: float | None = getattr(self, f"{metric}_s")
        return found


class Times:
    """Arrays with one value for each request [requests], and gaps for all of them together [gaps].

    A failed request has no times but its lateness: `ok` is False, and its values are NaN. A value that there is none
    of is NaN.
    """

    def __init__(self, run: Run) -> None:
        exchanges = run.exchanges
        self.exchanges = exchanges
        self.ok: Bools = np.array([one.error is None for one in exchanges], dtype=bool)
        self.intended_us = _whole(exchanges, "intended_us")
        self.end_us = _whole(exchanges, "end_us")
        self.sent_us = _maybe(exchanges, "sent_us")
        """NaN for what was never sent."""
        self.told_input = _maybe(exchanges, "input_tokens")
        """As the server counted."""
        self.cached_tokens = _maybe(exchanges, "cached_tokens")
        asked = _maybe(exchanges, "wanted_input")
        self.input_tokens = np.where(np.isnan(self.told_input), asked, self.told_input)
        """As the server counted, else as the workload asked for; NaN where neither is known."""
        self.wanted_output = _whole(exchanges, "wanted_output")

        counts = np.fromiter((len(one.chunks) for one in exchanges), np.int64, len(exchanges))
        total = int(counts.sum())
        self.at_us = _column(exchanges, "at_us", total)
        """When each event came [events], in the order of requests."""
        self.tokens = _column(exchanges, "tokens", total)
        kind = _column(exchanges, "kind", total)
        self.owner: Ints = np.repeat(np.arange(len(exchanges)), counts)
        """Which request each event is of [events]."""

        summed = np.bincount(self.owner, weights=self.tokens, minlength=len(exchanges))
        told = _maybe(exchanges, "output_tokens")
        self.output_tokens: Floats = np.where(summed > 0, summed, told)
        """Of each request; NaN where nobody knows."""
        self.placed: Bools = summed > 0
        """Its tokens are in its events, and not only counted as a whole."""

        text = (kind & _TEXT) != 0
        first = self._first(text)
        started = first >= 0
        self.first_us = self._time(first)
        """When the first token came; NaN where none did."""
        reply_us = self._time(self._first((kind & _REPLY) != 0))
        self._gaps(first, text)

        intended, sent, end = (
            self.intended_us.astype(np.float64),
            self.sent_us,
            self.end_us.astype(np.float64),
        )
        end[~self.ok] = np.nan
        begun = _maybe(exchanges, "started_us")
        begun = np.where(np.isnan(begun), sent, begun)
        opened = np.array([one.connected_us is not None for one in exchanges], dtype=bool)

        answered = self._first((kind & int(Kind.ANSWER)) != 0) >= 0
        finish_us = self._time(self._first((kind & int(Kind.FINISH)) != 0))
        sentence_us = self._time(self._first((kind & int(Kind.SENTENCE)) != 0))
        whole_us = np.where(np.isnan(finish_us), end, finish_us)
        sentence_us = np.where(np.isnan(sentence_us) & answered, whole_us, sentence_us)

        self.columns: dict[str, Floats] = {
            "ttft": self.first_us - sent,
            "ttft_intended": self.first_us - intended,
            "ttfa": reply_us - sent,
            "ttfs": sentence_us - sent,
            "tpot": self._tpot(first),
            "e2e": end - sent,
            "e2e_intended": end - intended,
            "normalized": (end - intended) / np.where(self.output_tokens > 0, self.output_tokens, np.nan),
        }
        """Each of `PER_REQUEST`, in microseconds, so that sums and differences have no rounding."""
        for column in self.columns.values():
            column[~self.ok] = np.nan
        self.columns["lag"] = begun - intended
        self.columns["connect"] = np.where(opened, sent - begun, np.nan)
        self.silent: Bools = self.ok & ~started
        """Answered without an error, but with no text at all."""

    def distribution(self, metric: str, which: Bools) -> Distribution:
        """Of a metric, over the requests for which `which` [requests] holds; in seconds."""
        if metric not in GAPS:
            return Distribution(self.columns[metric][which], scale=1e6)
        gaps_us, owner, zeros = self._gaps_of(metric)
        if not which.all():
            gaps_us = gaps_us[which[owner]]
        return Distribution.of_gaps(gaps_us, int(zeros[which].sum()))

    def by_group(self, metric: str, group: Ints, groups: int) -> list[Distribution]:
        """Of a metric, one for each group; `group` [requests] has numbers below `groups`, or -1 for none."""
        if metric not in GAPS:
            return [self.distribution(metric, group == number) for number in range(groups)]
        gaps_us, owner, zeros = self._gaps_of(metric)
        of_gap = group[owner]
        # numpy sorts 16 bits by radix, ten times as fast as 64.
        small = of_gap.astype(np.int16) if groups < 1 << 15 else of_gap
        gaps_us = gaps_us[np.argsort(small, kind="stable")]
        ends = np.cumsum(np.bincount(of_gap + 1, minlength=groups + 1))
        return [
            Distribution.of_gaps(gaps_us[ends[number] : ends[number + 1]], int(zeros[group == number].sum()))
            for number in range(groups)
        ]

    def values(self, metric: str, share: float | None = None) -> Floats:
        """Of each request, in seconds, as `ExchangeTimes.value` has it; NaN for None."""
        if metric not in GAPS:
            return self.columns[metric] / 1e6
        gaps_us, owner, zeros = self._gaps_of(metric)
        # Sorted within each request by one sort of all: a gap has 40 bits (12 days), its request the ones above.
        ordered = np.sort(owner << 40 | gaps_us) & ((1 << 40) - 1)
        many = np.bincount(owner, minlength=len(zeros))
        begin = np.cumsum(many) - many
        total = many + zeros
        place = (total - 1) * (1.0 if share is None else 100 * share / 100)
        low = place.astype(np.int64)

        def at(number: Ints) -> Floats:
            number = number - zeros
            found = np.zeros(len(number))
            real = number >= 0
            found[real] = ordered[(begin + number)[real]] / 1e6
            return found

        below, above, part = at(low), at(np.minimum(low + 1, total - 1)), place - low
        found = np.where(part >= 0.5, above - (above - below) * (1 - part), below + (above - below) * part)
        return np.where(total > 0, found, np.nan)

    def _gaps_of(self, metric: str) -> tuple[Ints, Ints, Ints]:
        """Gaps in microseconds [gaps], whose they are [gaps], and how many more of 0 each request has [requests]."""
        if metric == "itl":
            return self._itl_us, self._itl_owner, self._zeros
        return self._icl_us, self._icl_owner, np.zeros_like(self._zeros)

    def of(self, place: int) -> ExchangeTimes:
        """One request's, by its place in the run."""
        values = {name: _seconds(float(self.columns[name][place])) for name in PER_REQUEST}
        itl = self._itl_us[slice(*np.searchsorted(self._itl_owner, [place, place + 1]))]
        icl = self._icl_us[slice(*np.searchsorted(self._icl_owner, [place, place + 1]))]
        zeros = int(self._zeros[place])
        one = self.exchanges[place]
        return ExchangeTimes(
            index=one.index,
            error=one.error,
            ttft_s=values["ttft"],
            ttft_intended_s=values["ttft_intended"],
            ttfa_s=values["ttfa"],
            ttfs_s=values["ttfs"],
            tpot_s=values["tpot"],
            e2e_s=values["e2e"],
            e2e_intended_s=values["e2e_intended"],
            normalized_s=values["normalized"],
            max_itl_s=int(itl.max()) / 1e6 if len(itl) else 0.0 if zeros else None,
            itl=Distribution.of_gaps(itl, zeros),
            icl=Distribution(icl, scale=1e6),
        )

    def _first(self, which: Bools) -> Ints:
        """The place of the first event of each request for which `which` [events] holds; -1 without one."""
        found = np.full(len(self.exchanges), -1, dtype=np.int64)
        places = np.flatnonzero(which)[::-1]
        found[self.owner[places]] = places  # of several the last written stays, which is the first event
        return found

    def _time(self, place: Ints) -> Floats:
        if not len(self.at_us):
            return np.full(len(place), np.nan)
        return np.where(place >= 0, self.at_us[place], np.nan)

    def _gaps(self, first: Ints, text: Bools) -> None:
        """The gaps between tokens and between events of good answers, from the first token on."""
        places = np.arange(len(self.at_us))
        since = self.ok[self.owner] & (first[self.owner] >= 0) & (places >= first[self.owner])
        content = since & (text | (self.tokens > 0))
        self._icl_us, self._icl_owner = self._between(content)

        before = ~since & self.ok[self.owner] & (first[self.owner] >= 0)
        at_first = np.bincount(self.owner[before], weights=self.tokens[before], minlength=len(first)).astype(
            np.int64
        )
        has = first >= 0
        at_first[has] += self.tokens[first[has]]
        tokens = np.where(since, self.tokens, 0)
        # Text without a token, where counts come an event late: there is a token in it, the next event's first.
        late = self._first((tokens > 0) & (places > first[self.owner]))
        moved = has & self.ok & (at_first == 0) & (late >= 0)
        tokens[late[moved]] -= 1
        at_first[moved] = 1
        tokens[first[has]] = at_first[has]
        self._at_first = at_first
        counted = since & (tokens > 0)
        self._itl_us, self._itl_owner = self._between(counted)
        total = np.bincount(self.owner[counted], weights=tokens[counted], minlength=len(first)).astype(
            np.int64
        )
        gaps = np.bincount(self._itl_owner, minlength=len(first))
        self._zeros: Ints = np.maximum(total - 1 - gaps, 0)
        self._total = total
        last = np.full(len(first), -1, dtype=np.int64)
        ends = np.flatnonzero(counted)
        last[self.owner[ends]] = ends
        self._last_us = self._time(last)

    def _between(self, which: Bools) -> tuple[Ints, Ints]:
        """The gaps between neighbours among the events for which `which` holds, and whose they are."""
        at, owner = self.at_us[which], self.owner[which]
        same = owner[1:] == owner[:-1]
        return np.diff(at)[same], owner[1:][same]

    def _tpot(self, first: Ints) -> Floats:
        more = (self._total - self._at_first).astype(np.float64)
        more[(more <= 0) | (first < 0)] = np.nan
        return (self._last_us - self.first_us) / more


def _column(exchanges: list[Exchange], name: str, total: int) -> Ints:
    events: chain[Chunk] = chain.from_iterable(one.chunks for one in exchanges)
    return np.fromiter(map(attrgetter(name), events), np.int64, total)


def _whole(exchanges: list[Exchange], name: str) -> Ints:
    return np.fromiter(map(attrgetter(name), exchanges), np.int64, len(exchanges))


def _maybe(exchanges: list[Exchange], name: str) -> Floats:
    values = [getattr(one, name) for one in exchanges]
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def _seconds(us: float) -> float | None:
    return None if np.isnan(us) else us / 1e6
