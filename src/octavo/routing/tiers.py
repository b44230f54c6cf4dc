"""Which tiers there are: places that can answer, as settings. Knows no file, no network and no request.

Their order is the order of cost, the cheapest first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from octavo.bench.address import Address
from octavo.errors import SettingsError
from octavo.routing.bill import Price
from octavo.routing.feeding import Feeding
from octavo.routing.rules import Rule

__all__ = ["Ability", "Deciding", "General", "Tier", "Tiers", "standing_in"]

Ability = Literal["tools", "json", "images"]


class General(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for all tiers: the table [gateway]."""

    default: str = ""
    """The tier that answers where nothing decides; the file's first one where it is left out."""
    names: tuple[str, ...] = ("auto",)
    """Models that clients may ask for, and let the gateway decide."""
    deadline_s: float = 300.0
    """How long a request may take, with all attempts, from its arrival to the end of its answer."""
    rounds: int = 2
    """How often all tiers that may answer are tried, one after another."""
    check_s: float = 5.0
    """How often a tier that is not well is asked whether it is there again; 0 never asks."""
    local_only: bool = False
    """No request leaves this machine's own tiers."""
    embeddings: str = ""
    """The tier of /v1/embeddings; the default one where it is left out."""
    currency: str = "USD"
    require_prices: bool = False
    """A tier without prices is refused at the start."""


class Deciding(msgspec.Struct, frozen=True, kw_only=True):
    """What decides for what rules leave open: the table [decider]."""

    policy: str
    """A file that `octavo route train` made, a folder of its versions, `starting`, or the name or file of a policy to
    begin with."""
    tiers: dict[str, str] = {}
    """By the policy's name for a tier, our own, where they differ."""
    threshold: float | None = None
    """Instead of the policy's own."""


@dataclass(frozen=True, kw_only=True)
class Tier:
    """One place that can answer."""

    name: str
    base: Address
    """Where it is; its `path` has the /v1 in it."""
    model: str
    """What it calls the model."""
    key: str | None = None
    price: Price | None = None
    """None: not known, which is never taken for nothing."""
    context: int | None = None
    """Tokens that prompt and answer may have together; None: not known."""
    most_running: int | None = None
    """Requests at once; None: any number."""
    abilities: frozenset[Ability] = frozenset()
    local: bool = False
    """What is asked here stays with us."""
    fallbacks: tuple[str, ...] = ()
    """Who is tried after it, in this order; all of them, those of its fallbacks too."""
    first_byte_s: float = 60.0
    """How long it may take to begin a stream."""
    answer_s: float = 120.0
    """How long it may take for an answer in one piece."""
    stall_s: float = 60.0
    """How long it may pause within one."""
    retries: int = 1
    """How often it is asked again at once when it fails before its answer has begun."""
    failures: int = 3
    """So many one after another, and it is left alone for a while."""
    cooldown_s: float = 5.0
    """For how long at first; twice as long after each attempt that fails again."""
    stream_usage: bool = True
    """It is asked to end its streams with the count of tokens."""

    def __repr__(self) -> str:
        return f"Tier({self.name!r}, {self.base.scheme}://{self.base.authority}{self.base.path})"  # never the key


@dataclass(frozen=True)
class Tiers:
    """All of them, checked."""

    all: tuple[Tier, ...]
    """The cheapest first."""
    general: General
    rules: tuple[Rule, ...] = ()
    deciding: Deciding | None = None
    """None: the default tier answers what no rule names a tier for."""
    feedback: Feeding | None = None
    """None: nothing is learnt from answers."""

    def __getitem__(self, name: str) -> Tier:
        return self.by_name[name]

    @property
    def by_name(self) -> Mapping[str, Tier]:
        """In the order of cost."""
        return {tier.name: tier for tier in self.all}

    @property
    def names(self) -> tuple[str, ...]:
        """In the order of cost."""
        return tuple(tier.name for tier in self.all)

    def after(self, name: str) -> tuple[Tier, ...]:
        """`name`'s tier, and those that stand in for it, in order."""
        known = self.by_name
        return (known[name], *(known[other] for other in known[name].fallbacks))


def standing_in(name: str, written: Mapping[str, Sequence[str] | None]) -> tuple[str, ...]:
    """Who stands in for a tier, in order: its own fallbacks, and behind each those that are written for it. `written`:
    of all tiers, in the order of cost; where nothing is written, all others stand in, dearer ones before cheaper ones.
    Raises SettingsError for a circle."""
    own = written[name]
    if own is None:  # rather a better answer than a worse one
        names = list(written)
        place = names.index(name)
        return (*names[place + 1 :], *reversed(names[:place]))
    found: dict[str, None] = {}

    def add(one: str, path: tuple[str, ...]) -> None:
        if one in path:
            circle = " → ".join((*path[path.index(one) :], one))
            raise SettingsError(
                f"fallbacks go in a circle: {circle}; take one of them out, or write none at all: then every tier is "
                "a fallback of every other."
            )
        found.setdefault(one)
        for other in written[one] or ():
            add(other, (*path, one))

    for one in own:
        add(one, (name,))
    return tuple(found)
