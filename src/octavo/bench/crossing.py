"""At which rate an SLO's bound is crossed, and how surely, from noisy trials. Knows rates and excesses only.

Near the bound the excess of each part is taken as a straight line over the rate's logarithm, fitted to all runs of the
trials there; the first part whose line is 0 is the estimate. So every run near the bound counts, not only those of the
two trials around it: a search ends where noise lets it, and two trials that happen to lie on either side of the bound
look surer than they are. The interval is a bootstrap of the runs' residuals about the lines.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from octavo.bench.intervals import Interval, quantile_of, t_quantile
from octavo.bench.trial import CAP, HALF, M, Trial, needs_load

__all__ = ["crossing"]

_DRAWS = 300


def crossing(trials: Sequence[Trial[M]], best: Trial[M], above: Trial[M], level: float = 0.95) -> Interval:
    """The rate, in the trials' unit. The interval has at least `best` and `above` in it: between them nothing was run.

    Invalid trials are left out. What is used are `best`, `above`, and those within a factor of 2 of them whose worst
    part is within a factor of 2 of its bound: farther off no line is straight.
    """
    low, high = best.rate or 0.0, above.rate or 0.0
    middle = math.sqrt(low * high)
    used = [one for one in trials if one is best or one is above or _near(one, middle)]
    names = list(
        dict.fromkeys(one.part.name for trial in used for one in trial.parts if not needs_load(one.part))
    )
    logs: list[float] = []
    rows: list[list[float]] = []
    for trial in used:
        for row in _excesses(trial, names):
            logs.append(math.log(trial.rate or 1.0))
            rows.append(row)
    every = [math.log(one.rate) for one in trials if one.rate is not None]
    edges = min(every), max(every)
    centre = sum(logs) / len(logs)
    lines = [_line(logs, centre, column) for column in zip(*rows, strict=True)]
    fitted = [[mean + slope * (at - centre) for mean, slope in lines] for at in logs]
    degrees = max(1, len(rows) - 2)
    # A line is near to the runs that it was fitted to, and few runs say little of their spread.
    wider = math.sqrt(len(rows) / degrees) * t_quantile(0.995, degrees) / 1.96
    residuals = [
        [(value - fit) * wider for value, fit in zip(row, line, strict=True)]
        for row, line in zip(rows, fitted, strict=True)
    ]
    estimate = _zero(lines, centre, edges)
    draw = random.Random(0)  # only random(), which Python keeps between versions
    found = []
    for _ in range(_DRAWS):
        drawn = [
            [fit + noise for fit, noise in zip(line, residuals[int(draw.random() * len(rows))], strict=True)]
            for line in fitted
        ]
        again = [_line(logs, centre, column) for column in zip(*drawn, strict=True)]
        found.append(_zero(again, centre, edges))
    found.sort()
    tail = 0.5 - level / 2.0
    rates = math.exp(quantile_of(found, tail)), math.exp(quantile_of(found, 1.0 - tail))
    return Interval(math.exp(estimate), min(rates[0], low), max(rates[1], high), level)


def _near(trial: Trial[M], middle: float) -> bool:
    rate = trial.rate if trial.outcomes else None
    return rate is not None and middle / 2.0 <= rate <= middle * 2.0 and abs(trial.excess) <= HALF


def _excesses(trial: Trial[M], names: Sequence[str]) -> list[list[float]]:
    """Of each run, each part that bounds the rate from above; one that the trial does not have holds nothing back."""
    parts = {one.part.name: one for one in trial.parts}
    none = [-CAP] * len(trial.outcomes)
    columns = [
        [max(-CAP, min(CAP, parts[name].part.excess(value))) for value in parts[name].values]
        if name in parts
        else none
        for name in names
    ]
    return [list(row) for row in zip(*columns, strict=True)]


def _line(logs: Sequence[float], centre: float, values: Sequence[float]) -> tuple[float, float]:
    """Least squares: the value at `centre` (the mean of `logs`), and the slope."""
    mean = sum(values) / len(values)
    spread = sum((at - centre) ** 2 for at in logs)
    slope = sum((at - centre) * value for at, value in zip(logs, values, strict=True)) / spread
    return mean, slope


def _zero(lines: Sequence[tuple[float, float]], centre: float, edges: tuple[float, float]) -> float:
    """Where the first of the lines is 0, as a logarithm, within what was tried."""
    first = edges[1]
    for mean, slope in lines:
        if slope > 1e-12:
            first = min(first, centre - mean / slope)
        elif mean >= 0.0:  # it does not rise, and is not met at any rate
            first = edges[0]
    return max(edges[0], first)
