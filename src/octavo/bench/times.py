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

from collections.abc import Iterator

import msgspec
import numpy as np

from octavo.bench.distribution import Distribution, Floats, Ints
from octavo.bench.events import Bools, Events, maybe, parts_of, whole
from octavo.bench.gaps import Gaps
from octavo.bench.marks import Marks
from octavo.bench.record import Run

__all__ = ["GAPS", "PER_REQUEST", "ExchangeTimes", "Times"]

PER_REQUEST = (
    "ttft", "ttft_intended", "ttfa", "ttfs", "tpot", "e2e", "e2e_intended", "normalized", "lag", "connect",
)  # fmt: skip
"""The metrics of which each request has one value, or none."""
GAPS = ("itl", "icl")
"""Those of which each has many."""


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

        self._whole: Events | None = None
        """Where it is read at once."""
        found = []
        for begin, events in parts_of(exchanges):
            found.append(Marks(events, self.ok[begin : begin + events.requests]))
            self._whole = events if events.requests == len(exchanges) else None

        def marks(name: str) -> Floats:
            return np.concatenate([getattr(one, name) for one in found] or [np.zeros(0)])

        summed = marks("tokens")
        self.told_output = maybe(exchanges, "output_tokens")
        """As the server counted."""
        self.output_tokens: Floats = np.where(summed > 0, summed, self.told_output)
        """Of each request; NaN where nobody knows."""
        self.placed: Bools = summed > 0
        """Its tokens are in its events, and not only counted as a whole."""
        self.first_us = marks("first_us")
        """When the first token came, of failed requests too; NaN where none did."""
        self.silent: Bools = self.ok & np.isnan(self.first_us)
        """Answered without an error, but with no text at all."""
        zeros = marks("zeros").astype(np.int64)
        self._gaps = {"icl": Gaps([one.icl for one in found], np.zeros_like(zeros))}
        alike = not zeros.any() and all(one.itl is one.icl for one in found)
        self._gaps["itl"] = self._gaps["icl"] if alike else Gaps([one.itl for one in found], zeros)

        intended, sent, end = (
            self.intended_us.astype(np.float64),
            self.sent_us,
            self.end_us.astype(np.float64),
        )
        end[~self.ok] = np.nan
        begun = maybe(exchanges, "started_us")
        begun = np.where(np.isnan(begun), sent, begun)
        opened = np.array([one.connected_us is not None for one in exchanges], dtype=bool)

        answered = ~np.isnan(marks("answer_us"))
        finish_us, sentence_us = marks("finish_us"), marks("sentence_us")
        whole_us = np.where(np.isnan(finish_us), end, finish_us)
        sentence_us = np.where(np.isnan(sentence_us) & answered & run.sentences, whole_us, sentence_us)

        self.columns: dict[str, Floats] = {
            "ttft": self.first_us - sent,
            "ttft_intended": self.first_us - intended,
            "ttfa": marks("reply_us") - sent,
            "ttfs": sentence_us - sent,
            "tpot": marks("tpot_us"),
            "e2e": end - sent,
            "e2e_intended": end - intended,
            "normalized": (end - intended) / np.where(self.output_tokens > 0, self.output_tokens, np.nan),
        }
        """Each of `PER_REQUEST`, in microseconds, so that sums and differences have no rounding."""
        for column in self.columns.values():
            column[~self.ok] = np.nan
        self.columns["lag"] = begun - intended
        self.columns["connect"] = np.where(opened, sent - begun, np.nan)

    def parts(self) -> Iterator[tuple[slice, Events]]:
        """The events, of some requests after others, with the places of these in the run."""
        if self._whole is not None:
            yield slice(0, len(self.exchanges)), self._whole
            return
        for begin, events in parts_of(self.exchanges):
            yield slice(begin, begin + events.requests), events

    def distribution(self, metric: str, which: Bools) -> Distribution:
        """Of a metric, over the requests for which `which` [requests] holds; in seconds."""
        if metric not in GAPS:
            return Distribution(self.columns[metric][which], scale=1e6)
        return self._gaps[metric].distribution(which)

    def by_group(self, metric: str, group: Ints, groups: int) -> list[Distribution]:
        """Of a metric, one for each group; `group` [requests] has numbers below `groups`, or -1 for none."""
        if metric not in GAPS:
            return [self.distribution(metric, group == number) for number in range(groups)]
        return self._gaps[metric].by_group(group, groups)

    def values(self, metric: str, share: float | None = None) -> Floats:
        """Of each request, in seconds, as `ExchangeTimes.value` has it; NaN for None."""
        if metric not in GAPS:
            return self.columns[metric] / 1e6
        return self._gaps[metric].quantiles(1.0 if share is None else share)

    def each(self, metric: str) -> list[Floats]:
        """Of each request all its values, in seconds: one, or its gaps; empty where it has none."""
        if metric not in GAPS:
            return [
                value[~np.isnan(value)] for value in np.split(self.columns[metric] / 1e6, len(self.exchanges))
            ]
        return self._gaps[metric].each()

    def of(self, place: int) -> ExchangeTimes:
        """One request's, by its place in the run."""
        values = {name: _seconds(float(self.columns[name][place])) for name in PER_REQUEST}
        itl, zeros = self._gaps["itl"].of(place)
        icl, _ = self._gaps["icl"].of(place)
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


def _seconds(us: float) -> float | None:
    return None if np.isnan(us) else us / 1e6
