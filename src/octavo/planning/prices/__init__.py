"""What hosted models and rented accelerators cost: dated data files with a source for each row. Knows no sum.

A price that is not known is not there: asking for it is an error, and never counts as nothing.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from octavo.bench.cost import HostedPrice
from octavo.errors import InvalidParameter
from octavo.simulation.catalogue import named

__all__ = ["HostedModel", "Prices", "Rent", "Tier"]

_Price = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
_Name = Annotated[str, msgspec.Meta(min_length=1)]
_Dated = re.compile(r"\d{4}-(0[1-9]|1[0-2])(-(0[1-9]|[12]\d|3[01]))?")
_GIVEN = "as given"


def _check_date(as_of: str) -> None:
    if as_of != _GIVEN and not _Dated.fullmatch(as_of):
        raise ValueError(
            f"as_of is {as_of!r}; it is the month or the day of the price, as 2026-10 or 2026-10-31"
        )


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
    currency: _Name = "USD"
    source: _Name
    as_of: str
    """Year and month of the last comparison with the source."""

    def __post_init__(self) -> None:
        _check_date(self.as_of)
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
            source=_GIVEN,
            as_of=_GIVEN,
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
    currency: _Name = "USD"
    source: _Name
    as_of: str

    def __post_init__(self) -> None:
        _check_date(self.as_of)


_Row = TypeVar("_Row", HostedModel, Rent)


class _File(msgspec.Struct, frozen=True):
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
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidParameter(f"The prices {path} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidParameter(f"{path} is no file of prices: {error}.") from None
    tables = tuple(_File.__struct_fields__)
    for key in raw:
        if key not in tables:
            known = " and ".join(f"[{one}.NAME]" for one in tables)
            raise InvalidParameter(f"{path} is no file of prices: it has {key!r}, and known are {known}.")
    return _File(
        _rows(path, "hosted", raw.get("hosted", {}), HostedModel),
        _rows(path, "rents", raw.get("rents", {}), Rent),
    )


def _rows(path: Path, table: str, raw: Any, kind: type[_Row]) -> dict[str, _Row]:
    """Raises InvalidParameter, with the row and the field."""
    begin = f"{path} is no file of prices: [{table}"
    if not isinstance(raw, dict):
        raise InvalidParameter(f"{begin}] is no table; write [{table}.NAME].")
    found = {}
    known = kind.__struct_fields__
    for name, row in raw.items():
        if not isinstance(row, dict):
            raise InvalidParameter(
                f"{begin}.{name}] is no table; write [{table}.{name}] and its fields below."
            )
        for key in row:
            if key not in known:
                close = difflib.get_close_matches(key, known, 1)
                hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}."
                raise InvalidParameter(f"{begin}.{name}] has the unknown field {key!r}; {hint}")
        try:
            found[name] = msgspec.convert(row, kind)
        except msgspec.ValidationError as error:
            raise InvalidParameter(f"{begin}.{name}]: {_plain(str(error))}.") from None
    return found


_AT = re.compile(r" - at `\$\.?(.*)`$")
_MISSING = re.compile(r"Object missing required field `(.*)`")
_WORDS = ("Expected", "it has to be"), ("`float`", "a number"), ("`int`", "a whole number"), ("`str`", "text")


def _plain(error: str) -> str:
    """A validation's message, in words for who wrote the file."""
    if missing := _MISSING.match(error):
        return f"{missing.group(1)} is missing"
    at = _AT.search(error)
    text = _AT.sub("", error)
    for theirs, ours in _WORDS:
        text = text.replace(theirs, ours)
    return f"{at.group(1)}: {text}" if at and at.group(1) else text


@cache
def _hosted() -> dict[str, HostedModel]:
    return msgspec.convert(_read("hosted.toml"), dict[str, HostedModel])


@cache
def _rents() -> dict[str, Rent]:
    return msgspec.convert(_read("rents.toml"), dict[str, Rent])


def _read(name: str) -> dict[str, object]:
    return tomllib.loads((resources.files(__name__) / name).read_text(encoding="utf-8"))
