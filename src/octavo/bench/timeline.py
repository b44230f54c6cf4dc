"""What a run was like over time, as figures: each request's way, and rates and readings along it.

A long run is thinned, always the same way: of lanes the slowest and evenly chosen ones stay, and of values over time
the extremes of each short stretch, so that no spike is lost. Knows events and figures, no page.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from octavo.bench.distribution import Floats
from octavo.bench.record import Exchange, Run
from octavo.bench.times import Times
from octavo.bench.window import Window
from octavo.charts.figure import Axis, Figure, Lanes, Series, Shade

__all__ = ["MAX_LANES", "MAX_POINTS", "timeline"]

MAX_LANES = 300
"""A lane needs a pixel to be seen."""
SLOWEST = 100
"""Of the lanes of a long run: they are what is looked for."""
MAX_POINTS = 600
"""Of a curve: about what a screen can tell apart; a stretch gives two."""

_GROUP = "timeline"
_LATE, _FIRST, _ANSWER, _FAILED = range(4)
_CLASSES = (("late: not sent yet", 4), ("sent, no token yet", 2), ("answer", 1), ("failed", 8))


def timeline(run: Run, window: Window) -> list[Figure | Lanes]:
    """The figures, with one time axis for all; those without a value are left out."""
    times = Times(run)
    end_s = max(run.end_us, max((one.end_us for one in run.exchanges), default=0)) / 1e6
    axis = Axis(label="time", quantity="time", low=0.0, high=end_s)
    shades = _shades(window, end_s)
    found: list[Figure | Lanes] = [_lanes(run, axis, shades)]

    def add(title: str, y: Axis, *series: Series | None, note: str = "") -> None:
        there = [one for one in series if one is not None]
        if there:
            found.append(
                Figure(
                    title=title, x=axis, y=y, series=there, shades=shades, note=note, group=_GROUP, height=150
                )
            )

    add("Requests in flight", Axis(label="requests", low=0), _in_flight(times))
    rate, width_s = _token_rate(times, end_s)
    note = f"received in stretches of {width_s:g} s"
    add("Output tokens", Axis(label="output", unit="tokens/s", low=0), rate, note=note)
    add(
        "TTFT over time",
        Axis(label="TTFT", quantity="time", log=True),
        _latency("from arrival", times, "ttft_intended", 2),
        _latency("from sending", times, "ttft", 1),
        note="each request at the time when it should have been sent",
    )
    reading = _readings(run)
    add(
        "The server's requests",
        Axis(label="requests", low=0),
        reading("running", "running", "step"),
        reading("waiting", "waiting", "step"),
        note="as its metrics tell",
    )
    add("KV in use", Axis(label="in use", quantity="share", low=0, high=1), reading("kv_use", "KV", "line"))
    add("Tokens in a step", Axis(label="tokens", low=0), _growths(run, "step_tokens", "steps", "on average"))
    add(
        "Prompts found computed",
        Axis(label="of tokens asked for", quantity="share", low=0, high=1),
        _growths(run, "prefix_hit_tokens", "prefix_queried_tokens", "hits"),
    )
    lag = [(one.at_us / 1e6, one.lag_us / 1e6) for one in run.client]
    cpu = [(one.at_us / 1e6, one.cpu) for one in run.client]
    add("The client's own lag", Axis(label="lag", quantity="time", low=0), _curve("event loop", lag))
    add(
        "The client's processor",
        Axis(label="of a core", quantity="share", low=0, high=1),
        _curve("used", cpu),
    )
    return found


def _shades(window: Window, end_s: float) -> list[Shade]:
    if not window.steady:
        return []
    start, stop = window.start_us / 1e6, window.end_us / 1e6
    shades = [Shade(start=0.0, end=start, label="warm-up"), Shade(start=stop, end=end_s, label="drain")]
    return [shade for shade in shades if shade.end > shade.start]


def _lanes(run: Run, axis: Axis, shades: Sequence[Shade]) -> Lanes:
    ordered = sorted(run.exchanges, key=lambda one: (one.intended_us, one.index))
    chosen = _chosen(ordered)
    spans: list[tuple[int, float, float, int]] = []
    times = Times(_only(run, chosen))
    for lane, one in enumerate(chosen):
        first = times.first_us[lane]
        spans += [
            (lane, start / 1e6, end / 1e6, of)
            for start, end, of in _stretches(one, None if np.isnan(first) else int(first))
            if end > start
        ]
    thinned = ""
    if len(chosen) < len(ordered):
        thinned = (
            f"{len(chosen)} of {len(ordered)} requests, the {SLOWEST} slowest and others evenly chosen, "
        )
    return Lanes(
        title="Requests",
        note=f"{thinned}each a lane, in the order in which they should have been sent",
        x=axis,
        classes=_CLASSES,
        names=[_name(one) for one in chosen],
        lane=[span[0] for span in spans],
        start=[span[1] for span in spans],
        end=[span[2] for span in spans],
        of=[span[3] for span in spans],
        shades=shades,
        group=_GROUP,
        height=max(90, min(420, 12 * len(chosen) + 40)),
    )


def _chosen(ordered: list[Exchange]) -> list[Exchange]:
    """All, or of many the slowest and as many others as there is room for."""
    if len(ordered) <= MAX_LANES:
        return ordered
    slow_first = sorted(range(len(ordered)), key=lambda at: ordered[at].intended_us - ordered[at].end_us)
    slowest = set(slow_first[:SLOWEST])
    others = [at for at in range(len(ordered)) if at not in slowest]
    rest = {others[place] for place in _evenly(len(others), MAX_LANES - SLOWEST)}
    return [ordered[at] for at in sorted(slowest | rest)]


def _only(run: Run, exchanges: list[Exchange]) -> Run:
    return Run(seed=run.seed, began=run.began, end_us=run.end_us, exchanges=exchanges)


def _stretches(one: Exchange, first_us: int | None) -> list[tuple[int, int, int]]:
    """From, to and class of what a request waited for, one after another."""
    sent = one.sent_us
    if sent is None:
        return [(one.intended_us, one.end_us, _FAILED)]
    late = (one.intended_us, sent, _LATE)
    if one.error is not None:
        if first_us is None:
            return [late, (sent, one.end_us, _FAILED)]
        return [late, (sent, first_us, _FIRST), (first_us, one.end_us, _FAILED)]
    first = one.end_us if first_us is None else first_us
    return [late, (sent, first, _FIRST), (first, one.end_us, _ANSWER)]


def _name(one: Exchange) -> str:
    words = [f"request {one.index}"]
    if one.turn:
        words.append(f"turn {one.turn + 1} of session {one.session}")
    if one.tenant is not None:
        words.append(one.tenant)
    tokens = [f"{one.input_tokens} in" if one.input_tokens is not None else ""]
    tokens.append(f"{one.output_tokens} out" if one.output_tokens is not None else "")
    if any(tokens):
        words.append(" and ".join(filter(None, tokens)))
    if one.error is not None:
        words.append(f"failed: {one.error}")
    return ", ".join(words)


def _in_flight(times: Times) -> Series | None:
    sent = times.sent_us[~np.isnan(times.sent_us)]
    gone = times.end_us[~np.isnan(times.sent_us)].astype(np.float64)
    if not len(sent):
        return None
    at = np.concatenate((sent, gone))
    order = np.argsort(at, kind="stable")
    steps = np.concatenate((np.ones(len(sent)), -np.ones(len(gone))))[order]
    counted = np.cumsum(steps)
    return _curve("in flight", list(zip((at[order] / 1e6).tolist(), counted.tolist(), strict=True)), "step")


def _token_rate(times: Times, end_s: float) -> tuple[Series | None, float]:
    """Tokens received a second, in stretches of a round width; and the width in seconds."""
    width = _round_up(max(end_s / 240, 0.05))
    count = int(max(end_s, 0.0) / width) + 1
    sums = np.zeros(count)
    for _, events in times.parts():
        at = np.clip((events.at_us / 1e6 / width).astype(np.int64), 0, count - 1)
        sums += np.bincount(at, weights=events.tokens, minlength=count)
    if not sums.any() or end_s <= 0:
        return None, width
    x = [place * width for place in range(count)]
    return Series(name="received", kind="step", x=x, y=(sums / width).tolist()), width


def _latency(name: str, times: Times, metric: str, colour: int) -> Series | None:
    values: Floats = times.columns[metric] / 1e6
    keep = ~np.isnan(values)
    pairs = sorted(zip((times.intended_us[keep] / 1e6).tolist(), values[keep].tolist(), strict=True))
    if not pairs:
        return None
    pairs = _thinned(pairs, 2 * MAX_POINTS)
    x, y = zip(*pairs, strict=True)
    return Series(name=name, kind="points", x=x, y=y, colour=colour)


def _readings(run: Run) -> Callable[[str, str, str], Series | None]:
    def reading(key: str, name: str, kind: str) -> Series | None:
        return _curve(
            name, [(one.at_us / 1e6, one.values[key]) for one in run.server if key in one.values], kind
        )

    return reading


def _growths(run: Run, part: str, whole: str, name: str) -> Series | None:
    """How much one counter grew for each that another did, from reading to reading; nothing where that one stood, or
    a counter fell."""
    read = [one for one in run.server if part in one.values and whole in one.values]
    pairs = [
        (now.at_us / 1e6, (now.values[part] - before.values[part]) / grown)
        for before, now in itertools.pairwise(read)
        if (grown := now.values[whole] - before.values[whole]) > 0 and now.values[part] >= before.values[part]
    ]
    return _curve(name, pairs)


def _curve(name: str, pairs: Sequence[tuple[float, float]], kind: str = "line") -> Series | None:
    if not pairs:
        return None
    last = dict(pairs)  # of several at one time the last is what was from then on
    x, y = zip(*_thinned(sorted(last.items()), MAX_POINTS), strict=True)
    return Series(name=name, kind="step" if kind == "step" else "line", x=x, y=y)


def _thinned(pairs: list[tuple[float, float]], most: int) -> list[tuple[float, float]]:
    """Of each of `most` / 2 stretches of equal numbers of points the lowest and the highest, in order of x."""
    if len(pairs) <= most:
        return pairs
    kept: list[tuple[float, float]] = []
    edges = _evenly(len(pairs) + 1, most // 2 + 1)
    for start, end in itertools.pairwise(edges):
        stretch = range(start, end)
        low = min(stretch, key=lambda place: pairs[place][1])
        high = max(stretch, key=lambda place: pairs[place][1])
        kept += [pairs[place] for place in sorted({low, high})]
    return kept


def _evenly(count: int, most: int) -> list[int]:
    if count <= most:
        return list(range(count))
    return [place * (count - 1) // (most - 1) for place in range(most)]


def _round_up(value: float) -> float:
    """The next of 0.05, 0.1, 0.2, 0.5, 1, 2, 5, …"""
    scale = 10.0 ** np.floor(np.log10(value))
    return float(f"{next(step for step in (1, 2, 5, 10) if step * scale >= value * 0.999) * scale:.6g}")
