"""What hosted models and rented accelerators cost: dated data files with a source for each row. Knows no sum.

A price that is not known is not there: asking for it is an error, and never counts as nothing.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated

import msgspec

from octavo.bench.cost import HostedPrice
from octavo.errors import InvalidParameter
from octavo.simulation.catalogue import named

__all__ = ["HostedModel", "Prices", "Rent", "Tier"]

_Price = Annotated[float, msgspec.Meta(ge=0)]


class Tier(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prices of a request whose prompt is long; of the whole request, as sellers do it."""

    above_tokens: Annotated[int, msgspec.Meta(ge=1)]
    input: _Price
    output: _Price
    cached: _Price | None = None
    cache_write: _Price | None = None


class HostedModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a seller asks for a million tokens."""

    input: _Price
    output: _Price
    """Of the answer and its reasoning."""
    cached: _Price | None = None
    """Of input that the seller's cache has; None: not known, or it has no cache."""
    cache_write: _Price | None = None
    """Of input that goes into the cache; None: as other input."""
    batch_discount: Annotated[float, msgspec.Meta(ge=0, lt=1)] | None = None
    """Off everything, for what may wait; None: not offered."""
    tiers: tuple[Tier, ...] = ()
    """By `above_tokens`, the lowest first."""
    currency: str = "USD"
    source: str
    as_of: str
    """Year and month of the last comparison with the source."""

    def __post_init__(self) -> None:
        above = [tier.above_tokens for tier in self.tiers]
        if above != sorted(set(above)):
            raise ValueError(f"tiers are {above} tokens; give each once, the lowest first")

    @classmethod
    def given(cls, price: HostedPrice) -> HostedModel:
        """What somebody wrote on the command line."""
        return cls(
            input=price.input,
            output=price.output,
            cached=price.cached,
            batch_discount=price.batch_discount or None,
            currency=price.currency,
            source="as given",
            as_of="as given",
        )

    def tier(self, prompt_tokens: float) -> HostedModel | Tier:
        """Whose prices a request with such a prompt has: a tier's, or the model's own."""
        found: HostedModel | Tier = self
        for tier in self.tiers:
            if prompt_tokens > tier.above_tokens:
                found = tier
        return found


class Rent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An hour of one accelerator, electricity in it."""

    per_hour: _Price
    currency: str = "USD"
    source: str
    as_of: str


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    hosted: dict[str, HostedModel] = {}
    rents: dict[str, Rent] = {}


class Prices:
    """All rows that are known: one's own come before those that came with Octavo."""

    def __init__(self, path: Path | None = None) -> None:
        """`path`: a TOML file with tables [hosted.NAME] and [rents.NAME], fields as in the shipped files.

        Raises InvalidParameter for one that cannot be read or has other fields.
        """
        own = _File() if path is None else _own(path)
        self.hosted: dict[str, HostedModel] = {**_hosted(), **{k.lower(): v for k, v in own.hosted.items()}}
        self.rents: dict[str, Rent] = {**_rents(), **{k.lower(): v for k, v in own.rents.items()}}

    def hosted_model(self, text: str, currency: str = "USD") -> tuple[str, HostedModel]:
        """A name, and the prices of it: of a row, or as written in NAME:in=3,out=12,cached=0.3,batch=50%.

        Raises InvalidParameter.
        """
        if ":" in text:
            price = HostedPrice.parse(text, currency)
            return price.name, HostedModel.given(price)
        return text.lower(), named(text, self.hosted, "hosted model")

    def rent(self, hardware: str) -> Rent:
        """Raises InvalidParameter where no rent is known."""
        return named(hardware, self.rents, "the rent of")


def _own(path: Path) -> _File:
    try:
        return msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), _File)
    except OSError as error:
        raise InvalidParameter(f"The prices {path} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise InvalidParameter(f"{path} is no file of prices: {error}.") from None


@cache
def _hosted() -> dict[str, HostedModel]:
    return msgspec.convert(_read("hosted.toml"), dict[str, HostedModel])


@cache
def _rents() -> dict[str, Rent]:
    return msgspec.convert(_read("rents.toml"), dict[str, Rent])


def _read(name: str) -> dict[str, object]:
    return tomllib.loads((resources.files(__name__) / name).read_text(encoding="utf-8"))
