"""What the commands of `octavo route` share: rows, asking a policy, telling what is done. Knows the terminal."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from rich.console import Console

from octavo.errors import RoutingError
from octavo.routing.embedding import Embedder
from octavo.routing.labels import Labels, read_labels
from octavo.routing.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

__all__ = [
    "Data", "Learning", "Tell", "asked", "check_tiers", "counted", "embedder_of", "given_prices", "prefixed",
    "print_json", "telling",
]  # fmt: skip

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Data:
    """Which rows of which file."""

    path: Path
    tiers: str | None
    prompt: str
    task: str | None
    prices: str | None

    def read(self) -> tuple[Labels, NDArray[np.float64] | None]:
        """The rows, and the mean cost of each tier where it is known."""
        names = None
        if self.tiers is not None:
            names = [name.strip() for name in self.tiers.split(",") if name.strip()]
        labels = read_labels(self.path, tiers=names, prompt=self.prompt, task=self.task)
        if self.prices is not None:
            return labels, given_prices(self.prices, labels.tiers)
        return labels, None if labels.costs is None else labels.costs.mean(axis=0)


@dataclass(frozen=True)
class Learning:
    """How a classifier is trained."""

    seed: int
    test_share: float
    embedding: str | None
    layers: int
    tokens: int


def asked(policy: Policy, labels: Labels, tell: Tell) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    if policy.header.embedding is None:
        return policy.probabilities(labels.prompts)
    with Embedder.of(policy.header.embedding) as embedder:
        vectors = embedder.vectors(labels.prompts, counted(tell, len(labels)))
    return policy.probabilities(labels.prompts, vectors=vectors)


def check_tiers(policy: Policy, labels: Labels) -> None:
    if labels.tiers != policy.header.tiers:
        raise RoutingError(
            f"The rows have tiers {', '.join(labels.tiers)}, and the policy {', '.join(policy.header.tiers)}; name the "
            "same in the same order with --tiers."
        )


def given_prices(text: str, tiers: tuple[str, ...]) -> NDArray[np.float64]:
    found: dict[str, float] = {}
    for piece in text.split(","):
        name, equals, value = piece.partition("=")
        try:
            price = float(value)
        except ValueError:
            price = math.nan
        if not equals or not 0 <= price < math.inf:
            raise RoutingError(f"--prices has '{piece.strip()}'; write NAME=MONEY, such as weak=0.0002.")
        found[name.strip()] = price
    unknown, missing = sorted(found.keys() - set(tiers)), [tier for tier in tiers if tier not in found]
    if unknown:
        raise RoutingError(f"--prices names the tier '{unknown[0]}'; the rows have {', '.join(tiers)}.")
    if missing:
        raise RoutingError(
            f"--prices has no price for tier '{missing[0]}'; an unknown price never counts as nothing."
        )
    return np.array([found[tier] for tier in tiers])


def embedder_of(learning: Learning) -> Embedder:
    assert learning.embedding is not None
    return Embedder(learning.embedding, layers=learning.layers, tokens=learning.tokens)


@contextmanager
def telling(json: bool) -> Iterator[Tell]:
    """What is done at the moment, on a terminal."""
    console = Console(stderr=True)
    if json or not console.is_terminal:
        yield lambda _: None
        return
    with console.status("reading") as status:
        yield status.update


def counted(tell: Tell, total: int) -> Callable[[int], None]:
    return lambda done: tell(f"embedding {done:,} of {total:,}")


def prefixed(tell: Tell, prefix: str) -> Tell:
    return lambda text: tell(f"{prefix}: {text}")


def print_json(value: Any) -> None:
    print(msgspec.json.format(msgspec.json.encode(value, enc_hook=_plain)).decode())


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(type(value))
