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

import msgspec
import numpy as np

from octavo.bench.distribution import Distribution, Floats, Ints
from octavo.bench.events import Bools, Events, maybe, whole
from octavo.bench.record import Kind, Run

__all__ = ["GAPS", "PER_REQUEST", "ExchangeTimes", "Times"]

PER_REQUEST = (
    "ttft", "ttft_intended", "ttfa", "ttfs", "tpot", "e2e", "e2e_intended", "normalized", "lag", "connect",
)  # fmt: skip
"""The metrics of which each request has one value, or none."""
GAPS = ("itl", "icl")
"""Those of which each has many."""

_TEXT = int(Kind.ANSWER | Kind.REASONING | Kind.TOOL)
_REPLY = int(Kind.ANSWER | Kind.TOOL)


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
    lag_s: float | None = None
    connect_s: float | None = None

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
        self.intended_us = whole(exchanges, "intended_us")
        self.end_us = whole(exchanges, "end_us")
        self.sent_us = maybe(exchanges, "sent_us")
        """NaN for what was never sent."""
        self.told_input = maybe(exchanges, "input_tokens")
        """As the server counted."""
        self.cached_tokens = maybe(exchanges, "cached_tokens")
        asked = maybe(exchanges, "wanted_input")
        self.input_tokens = np.where(np.isnan(self.told_input), asked, self.told_input)
        """As the server counted, else as the workload asked for; NaN where neither is known."""
        self.wanted_output = whole(exchanges, "wanted_output")

        events = self.events = Events(exchanges)
        summed = events.total()
        self.told_output = maybe(exchanges, "output_tokens")
        """As the server counted."""
        self.output_tokens: Floats = np.where(summed > 0, summed, self.told_output)
        """Of each request; NaN where nobody knows."""
        self.placed: Bools = summed > 0
        """Its tokens are in its events, and not only counted as a whole."""

        text = (events.kind & _TEXT) != 0
        first = events.first(text)
        self.first_us = events.time(first)
        """When the first token came, of failed requests too; NaN where none did."""
        self.silent: Bools = self.ok & (first < 0)
        """Answered without an error, but with no text at all."""
        self._gaps(np.where(self.ok, first, -1), text)

        intended, sent, end = (
            self.intended_us.astype(np.float64),
            self.sent_us,
            self.end_us.astype(np.float64),
        )
        end[~self.ok] = np.nan
        begun = maybe(exchanges, "started_us")
        begun = np.where(np.isnan(begun), sent, begun)
        opened = np.array([one.connected_us is not None for one in exchanges], dtype=bool)

        reply_us = self._first_us(_REPLY)
        answered = ~np.isnan(self._first_us(Kind.ANSWER))
        finish_us = self._first_us(Kind.FINISH)
        sentence_us = self._first_us(Kind.SENTENCE)
        whole_us = np.where(np.isnan(finish_us), end, finish_us)
        sentence_us = np.where(np.isnan(sentence_us) & answered, whole_us, sentence_us)

        self.columns: dict[str, Floats] = {
            "ttft": self.first_us - sent,
            "ttft_intended": self.first_us - intended,
            "ttfa": reply_us - sent,
            "ttfs": sentence_us - sent,
            "tpot": self._tpot_us,
            "e2e": end - sent,
            "e2e_intended": end - intended,
            "normalized": (end - intended) / np.where(self.output_tokens > 0, self.output_tokens, np.nan),
        }
        """Each of `PER_REQUEST`, in microseconds, so that sums and differences have no rounding."""
        for column in self.columns.values():
            column[~self.ok] = np.nan
        self.columns["lag"] = begun - intended
        self.columns["connect"] = np.where(opened, sent - begun, np.nan)

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
            real = (number >= 0) & (total > 0)
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

    def each(self, metric: str) -> list[Floats]:
        """Of each request all its values, in seconds: one, or its gaps; empty where it has none."""
        if metric not in GAPS:
            return [
                value[~np.isnan(value)] for value in np.split(self.columns[metric] / 1e6, len(self.exchanges))
            ]
        gaps_us, owner, zeros = self._gaps_of(metric)
        ends = np.searchsorted(owner, np.arange(len(zeros) + 1))
        return [
            np.concatenate((np.zeros(zeros[place]), gaps_us[ends[place] : ends[place + 1]] / 1e6))
            for place in range(len(zeros))
        ]

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
            lag_s=values["lag"],
            connect_s=values["connect"],
            max_itl_s=int(itl.max()) / 1e6 if len(itl) else 0.0 if zeros else None,
            itl=Distribution.of_gaps(itl, zeros),
            icl=Distribution(icl, scale=1e6),
        )

    def _first_us(self, kind: int) -> Floats:
        """When each request's first event with any of `kind` came; NaN where none did."""
        return self.events.time(self.events.first((self.events.kind & int(kind)) != 0))

    def _gaps(self, first: Ints, text: Bools) -> None:
        """The gaps of each request from its first token, which came with the event at `first` [requests]."""
        events = self.events
        since = events.since(first)
        content = since & (text | (events.tokens > 0))
        self._icl_us, self._icl_owner = events.gaps(content)

        counted = content & (events.tokens > 0)
        told = np.flatnonzero((first >= 0) & self.placed)
        counted[first[told]] = True
        at_first = events.total_to(first)
        # Text before any count, where counts come an event late: it has a token, the first one of the next count.
        late = told[at_first[told] == 0]
        if len(late):
            at_first[late] = 1
            counts = np.where(counted, events.tokens, 0)
            next_count = events.first(counts > 0)[late]
            counted[next_count[events.tokens[next_count] == 1]] = False
        if np.array_equal(counted, content):
            self._itl_us, self._itl_owner = self._icl_us, self._icl_owner
        else:
            self._itl_us, self._itl_owner = events.gaps(counted)
        total = np.where((first >= 0) & self.placed, events.total(), 0)
        between = np.bincount(self._itl_owner, minlength=len(first))
        self._zeros: Ints = np.maximum(total - 1 - between, 0)
        more = (total - at_first).astype(np.float64)
        more[more <= 0] = np.nan
        self._tpot_us: Floats = (events.time(events.last(counted)) - self.first_us) / more


def _seconds(us: float) -> float | None:
    return None if np.isnan(us) else us / 1e6
