"""Policies to begin with, where there are no labels yet: readable files, and which of them a prompt is for.

Each is one sum of cheap signs for each tier, with a threshold, and conditions that say for which prompts it is meant.
They are written for two tiers, `small` and `large`, whichever those are: a beginning, until `octavo route train` has
labels of the tiers that really answer. Each file says what its numbers come from.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from octavo.errors import RoutingError
from octavo.routing.classifier import sigmoid
from octavo.routing.policy import Decision
from octavo.routing.signs import SIGNS, signs_of

__all__ = ["NAMES", "Starting", "begin", "load", "read"]

NAMES = ("mathematics", "essay", "factual")
"""In the order in which they are tried."""
_MOST = 3.0
"""Standard deviations that a sign may count for: these files see prompts of every kind."""


class _Bound(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A condition on one sign."""

    sign: str
    least: float | None = None
    most: float | None = None


class _Term(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One sign's part in the log-odds: weight · (value − mean) / deviation."""

    mean: float
    deviation: float
    weights: tuple[float, ...]
    """One for each tier."""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: Literal[1]
    name: str
    about: str
    source: str
    """What the numbers come from."""
    tiers: tuple[str, ...]
    """The cheapest first."""
    threshold: float
    bias: tuple[float, ...]
    terms: dict[str, _Term]
    applies: tuple[tuple[_Bound, ...], ...]
    """It is for a prompt that meets all bounds of one of these."""


@dataclass(frozen=True)
class Starting:
    """A policy from a readable file."""

    file: _File

    @property
    def name(self) -> str:
        """Of the file."""
        return self.file.name

    def fits(self, text: str) -> bool:
        """Whether it is meant for this prompt."""
        values = dict(zip(SIGNS, signs_of(text), strict=True))
        return any(
            all(
                (one.least is None or values[one.sign] >= one.least)
                and (one.most is None or values[one.sign] <= one.most)
                for one in bounds
            )
            for bounds in self.file.applies
        )

    def decide(self, text: str, threshold: float | None = None) -> Decision:
        """The tier for one prompt. `threshold`: instead of the file's own."""
        file = self.file
        values = dict(zip(SIGNS, signs_of(text), strict=True))
        odds = np.array(file.bias)
        for sign, term in file.terms.items():
            off = float(np.clip((values[sign] - term.mean) / term.deviation, -_MOST, _MOST))
            odds += off * np.array(term.weights)
        probabilities = sigmoid(odds)
        score = float(probabilities[-1] - probabilities[0])
        bound = file.threshold if threshold is None else threshold
        prices = np.linspace(0, 1, len(file.tiers))
        tier = file.tiers[int(np.argmax(probabilities - bound * prices))]
        side = "above" if score > bound else "not above"
        return Decision(
            tier,
            dict(zip(file.tiers, probabilities.tolist(), strict=True)),
            score,
            bound,
            False,
            f"starting policy '{file.name}': {file.tiers[-1]} is likelier right by {score:+.3f}, {side} the threshold "
            f"{bound:+.3f}",
        )


@cache
def load(name: str) -> Starting:
    """One that came with Octavo. Raises RoutingError for a name that none has."""
    if name not in NAMES:
        raise RoutingError(f"There is no starting policy '{name}'; there are {', '.join(NAMES)}.")
    return _made((resources.files(__name__) / f"{name}.json").read_bytes(), name)


def read(path: Path) -> Starting:
    """One's own file of the same form. Raises RoutingError."""
    try:
        return _made(path.read_bytes(), str(path))
    except OSError as error:
        raise RoutingError(f"The policy {path} cannot be read: {error.strerror}.") from None


def begin(text: str, threshold: float | None = None) -> Decision:
    """By the first starting policy that is meant for the prompt; the large tier where none is."""
    for name in NAMES:
        policy = load(name)
        if policy.fits(text):
            return policy.decide(text, threshold)
    tiers = load(NAMES[-1]).file.tiers
    return Decision(
        tiers[-1], {}, 0.0, 0.0, True, f"abstains: no starting policy is meant for it, so {tiers[-1]} answers"
    )


def _made(raw: bytes, name: str) -> Starting:
    try:
        file = msgspec.json.decode(raw, type=_File)
    except msgspec.MsgspecError as error:
        raise RoutingError(f"{name} is no starting policy: {error}.") from None
    bounds = [one.sign for every in file.applies for one in every]
    unknown = sorted({*file.terms, *bounds} - set(SIGNS))
    if unknown:
        raise RoutingError(f"{name} names the sign '{unknown[0]}', which is not known.")
    count = len(file.tiers)
    if (
        count < 2
        or len(file.bias) != count
        or any(len(term.weights) != count for term in file.terms.values())
    ):
        raise RoutingError(f"{name} has {count} tiers, and a bias or a term with another number of weights.")
    if any(term.deviation <= 0 for term in file.terms.values()):
        raise RoutingError(f"{name} has a deviation that is not above 0.")
    return Starting(file)
