"""A threshold from outcomes of real requests, each known for one tier alone. Knows arrays and records, no file.

Each outcome counts with the inverse of the probability that its tier was taken (inverse propensity weighting, with the
weights brought to a sum of 1: Hájek 1971), so that requests which went where the policy sent them say no more than
their share. Without exploration nothing is known of what the other tier would have brought, and such requests
are left out. Of a pair that a judge compared both are known. How sure it is comes from draws of the requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from octavo.errors import RoutingError
from octavo.routing.calibration import SUPPORTED, Estimate
from octavo.routing.outcomes import Decided, Outcome, Source
from octavo.routing.reask import MINUTES
from octavo.routing.versions import Version, add, load, read_book

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["Evidence", "Recalibrated", "evidence", "recalibrate", "threshold_for"]

LEAST_ROWS = 100
LEAST_EACH = 20
"""Outcomes of each tier."""
MOST_ROWS = 20_000
"""The latest."""
POINTS = 201
DRAWS = 500
SAID: tuple[Source, ...] = ("thumbs", "score", "correct")


@dataclass(frozen=True)
class Evidence:
    """Outcomes that can be used."""

    requests: NDArray[np.int64]
    """[rows]: which request each is of."""
    scores: NDArray[np.float64]
    """[rows]."""
    dear: NDArray[np.bool_]
    """[rows]: it is of the dearer tier."""
    good: NDArray[np.float64]
    """[rows], 0 … 1."""
    propensity: NDArray[np.float64]
    """[rows]."""
    left_out: int
    """Outcomes of requests that were not open to exploration, or that another policy's scores belong to."""


@dataclass(frozen=True)
class Recalibrated:
    """A threshold and what it brings."""

    threshold: Estimate
    quality: Estimate
    """The mean outcome."""
    dearest_share: Estimate
    best: float
    """The mean outcome of the better of the two tiers alone."""
    rows: int


def evidence(
    decided: Mapping[tuple[str | None, str], Decided],
    outcomes: Iterable[Outcome],
    tiers: Sequence[str],
    policies: Iterable[str],
    source: str,
) -> Evidence:
    """`tiers`: the cheaper and the dearer; `policies`: versions whose scores can be compared; `source`: said (what
    users said; the last word counts), reask (who did not ask again was content) or judge."""
    known, wanted = set(policies), SAID if source == "said" else (source,)
    last: dict[tuple[str | None, str, str], Outcome] = {}
    for one in outcomes:
        if one.source in wanted:
            last[one.key, one.response_id, one.tier] = one
    values: dict[tuple[str | None, str, str], float] = {name: one.good for name, one in last.items()}
    if source == "reask":
        end_s = max((way.time_s for way in decided.values()), default=0.0)
        for (key, name), way in decided.items():
            if way.watched and end_s - way.time_s > 60 * MINUTES:  # else it may still be asked again
                values.setdefault((key, name, way.tier), 1.0)
    rows: list[tuple[int, float, bool, float, float]] = []
    numbers: dict[tuple[str | None, str], int] = {}
    left_out = 0
    for (key, name, tier), good in values.items():
        found = decided.get((key, name))
        if found is None or found.score is None or found.abstained or found.policy not in known:
            left_out += 1
            continue
        if tier not in tiers or (source != "judge" and (found.tier != found.chosen or found.elsewhere <= 0)):
            left_out += 1
            continue
        number = numbers.setdefault((key, name), len(numbers))
        chance = 1.0 if source == "judge" else found.propensity
        rows.append((number, found.score, tier == tiers[-1], good, chance))
    rows = rows[-MOST_ROWS:]
    return Evidence(
        np.array([row[0] for row in rows], np.int64),
        np.array([row[1] for row in rows], np.float64),
        np.array([row[2] for row in rows], np.bool_),
        np.array([row[3] for row in rows], np.float64),
        np.array([row[4] for row in rows], np.float64),
        left_out,
    )


def threshold_for(found: Evidence, quality: float, *, seed: int = 0) -> Recalibrated:
    """The largest threshold at which `quality` of the better tier's mean outcome is reached. Raises RoutingError where
    the outcomes do not say."""
    rows = len(found.scores)
    counts = int(found.dear.sum()), int((~found.dear).sum())
    if rows < LEAST_ROWS or min(counts) < LEAST_EACH:
        raise RoutingError(
            f"{rows:,} outcomes can be used, {counts[0]:,} of the dearer tier and {counts[1]:,} of the cheaper one; "
            f"{LEAST_ROWS} and {LEAST_EACH} of each are needed ({found.left_out:,} are left out: they were not open to "
            "exploration, or another policy decided them). [feedback] explore_share or a judge brings them."
        )
    random = np.random.default_rng(seed)
    names, inverse = np.unique(found.requests, return_inverse=True)
    times = random.multinomial(len(names), np.full(len(names), 1 / len(names)), size=DRAWS)
    weights = np.hstack([np.ones((rows, 1)), times.T[inverse]]) / found.propensity[:, None]
    inner = np.unique(np.quantile(found.scores, np.linspace(0, 1, POINTS)))
    points = np.concatenate([[min(float(inner[0]), -1.0) - 1e-6], inner])  # all to the dearer one … none
    above = found.scores > points[:, None]
    match = (above == found.dear).astype(np.float64)
    total = match @ weights
    with np.errstate(invalid="ignore", divide="ignore"):
        values = np.where(total > 0, (match * found.good) @ weights / total, np.nan)
    shares = (above.astype(np.float64) @ weights) / weights.sum(axis=0)
    best = np.fmax(values[0], values[-1])
    meets = values >= quality * best
    supported = float(meets[:, 1:].any(axis=0).mean())
    if not meets[:, 0].any() or supported < SUPPORTED:
        raise RoutingError(
            f"--quality is {quality:g}, and {rows:,} outcomes do not support a threshold for it: it can be met in "
            f"{supported:.0%} of draws of them, and must be in {SUPPORTED:.0%}; ask for less, or wait for more."
        )
    last = len(points) - 1
    places = last - np.argmax(meets[::-1], axis=0)
    place = int(places[0])
    return Recalibrated(
        Estimate.of(points[place], points[places[1:][meets[:, 1:].any(axis=0)]]),
        Estimate.of(values[place, 0], values[place, 1:]),
        Estimate.of(shares[place, 0], shares[place, 1:]),
        float(best[0]),
        rows,
    )


def recalibrate(
    folder: Path,
    decided: Mapping[tuple[str | None, str], Decided],
    outcomes: Iterable[Outcome],
    *,
    quality: float,
    source: str = "said",
    tiers: Sequence[str] | None = None,
    careful: bool = False,
    keep: bool = True,
    seed: int = 0,
) -> tuple[Recalibrated, Version | None]:
    """A new version with the threshold that the outcomes give. `tiers`: what the outcomes call the policy's; `careful`:
    the end of the interval that is surer to meet the target; `keep`: False writes nothing; where the threshold is the
    current version's, that one is given back. Raises RoutingError."""
    version, policy = load(folder)
    names = policy.header.tiers if tiers is None else tuple(tiers)
    if len(names) != 2 or len(policy.header.tiers) != 2:
        raise RoutingError(
            f"The policy has {len(policy.header.tiers)} tiers and {len(names)} are named; thresholds from outcomes are "
            "for two, since only a score of two is kept."
        )
    if policy.header.prices[0] > policy.header.prices[1]:
        names = (names[1], names[0])
    same = [str(one.number) for one in read_book(folder).versions if one.root == version.root]
    found = threshold_for(evidence(decided, outcomes, names, same, source), quality, seed=seed)
    if not keep:
        return found, None
    chosen = found.threshold.low if careful else found.threshold.value
    if chosen == version.threshold:
        return found, version
    target = f"{quality:g} of the better tier's outcomes, on {found.rows:,} ({source})"
    return found, add(folder, policy.with_threshold(chosen, target), root=version.root)
