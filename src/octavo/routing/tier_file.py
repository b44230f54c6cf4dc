"""The file of tiers: TOML to `Tiers`, with a sentence for each fault. Knows the environment's keys, no network."""

from __future__ import annotations

import ipaddress
import math
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args
from urllib.parse import urlsplit

import msgspec

from octavo.bench.address import Address
from octavo.errors import BenchError, InvalidParameter, SettingsError
from octavo.routing.bill import Price
from octavo.routing.feeding import Feeding, check_feeding
from octavo.routing.language import LANGUAGES
from octavo.routing.nearest import nearest
from octavo.routing.rules import Rule
from octavo.routing.tiers import Ability, Deciding, General, Tier, Tiers, standing_in

__all__ = ["read_tiers"]

_Amount = Annotated[float, msgspec.Meta(ge=0)]
_Seconds = Annotated[float, msgspec.Meta(gt=0)]
_Count = Annotated[int, msgspec.Meta(ge=1)]
_Struct = TypeVar("_Struct", bound=msgspec.Struct)


class _Price(msgspec.Struct, frozen=True, kw_only=True):
    input: _Amount
    output: _Amount
    cached: _Amount | None = None


class _Tier(msgspec.Struct, frozen=True, kw_only=True):
    """A table [tiers.NAME] as it is written."""

    url: str
    model: str
    key_variable: str | None = None
    price: _Price | str | None = None
    context: _Count | None = None
    most_running: _Count | None = None
    abilities: tuple[str, ...] = ()
    local: bool | None = None
    fallbacks: tuple[str, ...] | None = None
    first_byte_s: _Seconds = 60.0
    answer_s: _Seconds = 120.0
    stall_s: _Seconds = 60.0
    retries: Annotated[int, msgspec.Meta(ge=0, le=10)] = 1
    failures: _Count = 3
    cooldown_s: _Seconds = 5.0
    stream_usage: bool = True


_ABILITIES: tuple[Ability, ...] = get_args(Ability)
_BOUNDS = {"deadline_s": 0.001, "rounds": 1, "check_s": 0.0}
_NAME_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")


def read_tiers(path: Path, environment: Mapping[str, str], *, keys: Sequence[str] = ()) -> Tiers:
    """The tiers of a file. `environment`: where their keys are; `keys`: the names of the gateway's own API keys, which
    rules may name. Raises SettingsError, and OSError for a file that cannot be read."""
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # TOML's, or UTF-8's
        raise SettingsError(f"{path} cannot be read as TOML: {error}.") from None
    try:
        return _tiers(found, environment, keys)
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from None


def _tiers(found: dict[str, Any], environment: Mapping[str, str], keys: Sequence[str]) -> Tiers:
    _check_names(found, ("gateway", "tiers", "rules", "decider", "feedback"), "the file")
    general = _taken(found.get("gateway", {}), General, "[gateway]")
    for name, least in _BOUNDS.items():
        if (value := getattr(general, name)) < least:
            raise SettingsError(f"[gateway] {name} is {value:g}; it is at least {least:g}.")
    tables = found.get("tiers")
    if not isinstance(tables, dict) or not tables:
        raise SettingsError("there is no tier; add a table [tiers.NAME] with url and model for each.")
    written = {name: _taken(table, _Tier, f"[tiers.{name}]") for name, table in tables.items()}
    names = tuple(written)
    _check_written(written, general)
    default = general.default or names[0]
    embeddings = general.embeddings or default
    for field, name in (("default", default), ("embeddings", embeddings)):
        if name not in written:
            raise SettingsError(f"[gateway] {field} is {name!r}, which is no tier; {nearest(name, names)}")
    general = msgspec.structs.replace(general, default=default, embeddings=embeddings)
    tiers = tuple(_tier(name, one, written, environment, general) for name, one in written.items())
    _check_order(tiers)
    rules = found.get("rules", [])
    if not isinstance(rules, list):
        raise SettingsError("rules are written as [[rules]], each with conditions and a tier.")
    made = tuple(_rule(number, one, names, keys) for number, one in enumerate(rules, 1))
    if not any(tier.local for tier in tiers) and (
        general.local_only or any(rule.local_only for rule in made)
    ):
        raise SettingsError(
            "local_only is asked for, and no tier is local; a tier on another machine of yours says local = true."
        )
    deciding = _deciding(found["decider"], names) if "decider" in found else None
    feeding = None
    if "feedback" in found:
        unpriced = tuple(tier.name for tier in tiers if tier.price is None)
        feeding = check_feeding(_taken(found["feedback"], Feeding, "[feedback]"), names, unpriced)
    return Tiers(tiers, general, made, deciding, feeding)


def _check_written(written: Mapping[str, _Tier], general: General) -> None:
    names = tuple(written)
    for name, one in written.items():
        if not name or not _NAME_LETTERS.issuperset(name):
            raise SettingsError(
                f"the tier {name!r} has a name with other characters than letters, digits, - _ and dots; headers and "
                "metrics carry it."
            )
        if name in general.names:
            raise SettingsError(
                f"the tier {name!r} is called as a model that lets the gateway decide; rename it, or change names in "
                "[gateway]."
            )
        for other in one.fallbacks or ():
            if other not in written:
                raise SettingsError(
                    f"[tiers.{name}] fallbacks has {other!r}, which is no tier; {nearest(other, names)}"
                )
        for ability in one.abilities:
            if ability not in _ABILITIES:
                raise SettingsError(
                    f"[tiers.{name}] abilities has {ability!r}, which nobody knows; {nearest(ability, _ABILITIES)}"
                )


def _tier(
    name: str,
    one: _Tier,
    written: Mapping[str, _Tier],
    environment: Mapping[str, str],
    general: General,
) -> Tier:
    base = _base(name, one.url)
    if not one.model:
        raise SettingsError(f"[tiers.{name}] model is empty; give the name that the server has for it.")
    return Tier(
        name=name,
        base=base,
        model=one.model,
        key=_key(name, one.key_variable, environment),
        price=_price(name, one.price, general),
        context=one.context,
        most_running=one.most_running,
        abilities=frozenset(name for name in _ABILITIES if name in one.abilities),
        local=_is_loopback(base.host) if one.local is None else one.local,
        fallbacks=standing_in(name, {each: other.fallbacks for each, other in written.items()}),
        first_byte_s=one.first_byte_s,
        answer_s=one.answer_s,
        stall_s=one.stall_s,
        retries=one.retries,
        failures=one.failures,
        cooldown_s=one.cooldown_s,
        stream_usage=one.stream_usage,
    )


def _base(name: str, url: str) -> Address:
    """As OpenAI's clients take a base URL: all that stands before /chat/completions; a host alone gets its /v1."""
    if "://" not in url:
        raise SettingsError(f"[tiers.{name}] url is {url!r}; write it whole, such as http://127.0.0.1:8000.")
    try:
        found = Address.parse(url)
    except BenchError as error:
        raise SettingsError(f"[tiers.{name}] url: {error}") from None
    path = urlsplit(url).path.rstrip("/")
    for end in ("/chat/completions", "/completions", "/models"):
        path = path.removesuffix(end)
    return Address(found.scheme, found.host, found.port, path or "/v1")


def _key(name: str, variable: str | None, environment: Mapping[str, str]) -> str | None:
    if variable is None:
        return None
    key = environment.get(variable, "").strip()
    if not key:
        said = "is empty" if variable in environment else "is not there"
        raise SettingsError(
            f"[tiers.{name}] takes its key from the environment's {variable[:60]}, which {said}; set it before the "
            "gateway is started."
        )
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise SettingsError(
            f"[tiers.{name}] takes its key from {variable[:60]}, which holds a character that a header cannot carry."
        )
    return key


def _price(name: str, given: _Price | str | None, general: General) -> Price | None:
    if given is None:
        if general.require_prices:
            raise SettingsError(
                f"[tiers.{name}] has no price, and [gateway] require_prices asks for one: write "
                "price = {input = …, output = …} per million tokens, 0 for what costs nothing."
            )
        return None
    if isinstance(given, _Price):
        return Price(input=given.input, output=given.output, cached=given.cached)
    from octavo.planning.prices import Prices  # of all tiers, only those that name a row need them

    try:
        _, row = Prices().hosted_model(given, general.currency)
    except InvalidParameter as error:
        raise SettingsError(f"[tiers.{name}] price: {error}") from None
    if row.currency != general.currency:
        raise SettingsError(
            f"[tiers.{name}] price {given} is in {row.currency}, and [gateway] currency is {general.currency}; bills "
            "are in one currency."
        )
    longer = tuple(
        (one.above_tokens, Price(input=one.input, output=one.output, cached=one.cached)) for one in row.tiers
    )
    return Price(input=row.input, output=row.output, cached=row.cached, longer=longer)


def _check_order(tiers: Sequence[Tier]) -> None:
    """Raise SettingsError where a tier plainly costs less than one before it."""
    for place, later in enumerate(tiers):
        for earlier in tiers[:place]:
            one, other = earlier.price, later.price
            if one is None or other is None:
                continue
            if other.input <= one.input and other.output <= one.output and one != other:
                raise SettingsError(
                    f"[tiers.{later.name}] costs less than [tiers.{earlier.name}] and stands behind it; the order of "
                    "the file is the order of cost, the cheapest first."
                )


def _rule(number: int, table: object, names: Sequence[str], keys: Sequence[str]) -> Rule:
    where = f"[[rules]] number {number}"
    rule = _taken(table, Rule, where)
    if rule.tier is None and not rule.local_only:
        raise SettingsError(
            f"{where} says what it is for, and not what shall happen; add tier or local_only."
        )
    conditions = [name for name in rule.__struct_fields__ if name not in ("tier", "local_only")]
    if all(getattr(rule, name) in (None, (), {}) for name in conditions):
        raise SettingsError(f"{where} has no condition; a tier for all requests is [gateway] default.")
    for what, given, known in (
        ("tier", (rule.tier,) if rule.tier is not None else (), names),
        ("languages", rule.languages, LANGUAGES),
        ("keys", rule.keys, tuple(keys) or ("none: start the gateway with --api-key-file",)),
    ):
        for one in given:
            if one not in known:
                raise SettingsError(f"{where} {what}: {one!r} is not known; {nearest(one, known)}")
    lowered = {name.lower(): value for name, value in rule.headers.items()}
    return msgspec.structs.replace(rule, headers=lowered)


def _deciding(table: object, names: Sequence[str]) -> Deciding:
    deciding = _taken(table, Deciding, "[decider]")
    for name in deciding.tiers.values():
        if name not in names:
            raise SettingsError(f"[decider] tiers has {name!r}, which is no tier; {nearest(name, names)}")
    if deciding.threshold is not None and not math.isfinite(deciding.threshold):
        raise SettingsError(f"[decider] threshold is {deciding.threshold}; it must be a number.")
    return deciding


def _taken(table: object, kind: type[_Struct], where: str) -> _Struct:
    """A table as a struct. Raises SettingsError."""
    if not isinstance(table, dict):
        raise SettingsError(f"{where} is no table.")
    _check_names(table, kind.__struct_fields__, where)
    price = table.get("price")
    if isinstance(price, dict):
        _check_names(price, _Price.__struct_fields__, f"{where} price")
        for name in ("input", "output"):
            if name not in price:
                raise SettingsError(
                    f"{where} price has no {name}; it is per million tokens, and 0 for what costs nothing."
                )
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(" - at `$.")
        raise SettingsError(f"{where} {place.rstrip('`')}: {what}.".replace(" :", ":")) from None


def _check_names(table: Mapping[str, object], known: Sequence[str], where: str) -> None:
    for name in table:
        if name in known:
            continue
        if name in ("key", "api_key"):
            raise SettingsError(
                f"{where} has a {name} in it; a file is no place for secrets: name the environment's variable that "
                "holds it, as key_variable."
            )
        raise SettingsError(f"{where} has {name!r}, which nobody knows; {nearest(name, known)}")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
