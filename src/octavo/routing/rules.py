"""What is settled before anything is decided: who may answer a request at all, and rules that name a tier.

Knows requests and tiers; nothing of whether a tier is well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from octavo.errors import InvalidParameter
from octavo.protocol.errors import RequestRefused
from octavo.routing.nearest import nearest

if TYPE_CHECKING:
    from octavo.routing.asked import Asked
    from octavo.routing.tiers import Tier, Tiers

__all__ = ["LOCAL_HEADER", "TIER_HEADER", "Choice", "Rule", "choose", "why_not"]

TIER_HEADER = "x-octavo-tier"
"""A request's header that names a tier; in an answer, the tier that gave it."""
LOCAL_HEADER = "x-octavo-local-only"
"""A request's header: true keeps it on tiers of our own."""


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """Where all that it says is true of a request, its tier answers, or only tiers of our own may."""

    headers: dict[str, str] = {}
    """By name in lower case; * is any value."""
    keys: tuple[str, ...] = ()
    """Names of API keys."""
    languages: tuple[str, ...] = ()
    longer_than: int | None = None
    """Prompt tokens, about."""
    shorter_than: int | None = None
    tools: bool | None = None
    json: bool | None = None
    images: bool | None = None
    tier: str | None = None
    local_only: bool = False

    def holds(self, asked: Asked) -> bool:
        """All of its conditions are met; the cheap ones are looked at first."""
        return (
            (not self.keys or asked.key in self.keys)
            and all(_is(asked.headers.get(name), value) for name, value in self.headers.items())
            and (self.tools is None or self.tools == asked.tools)
            and (self.json is None or self.json == asked.json)
            and (self.images is None or self.images == asked.images)
            and (self.longer_than is None or asked.prompt_tokens > self.longer_than)
            and (self.shorter_than is None or asked.prompt_tokens < self.shorter_than)
            and (not self.languages or asked.language in self.languages)
        )


class Choice(NamedTuple):
    """What is left to decide."""

    able: tuple[Tier, ...]
    """Who may answer, the cheapest first; at least one."""
    tier: Tier | None
    """Who does, where that is settled."""
    reason: str
    """Why, where it is."""


def choose(asked: Asked, tiers: Tiers) -> Choice:
    """Raises RequestRefused for a model that nobody has, InvalidParameter for a header that names no tier, or one that
    cannot take the request, and where no tier can."""
    named, reason = _named(asked, tiers)
    rules = [rule for rule in tiers.rules if rule.holds(asked)]
    private = (
        tiers.general.local_only
        or _is_true(asked.headers.get(LOCAL_HEADER))
        or any(rule.local_only for rule in rules)
    )
    reasons = {tier.name: why_not(tier, asked, local_only=private) for tier in tiers.all}
    able = tuple(tier for tier in tiers.all if reasons[tier.name] is None)
    if named is not None and (fault := reasons[named.name]) is not None:
        raise InvalidParameter(f"The tier {named.name} cannot take this request: it {fault}.", "model")
    if not able:
        faults = "; ".join(f"{name} {fault}" for name, fault in reasons.items())
        raise InvalidParameter(f"No tier can take this request: {faults}.")
    if named is not None:
        return Choice(able, named, reason)
    for rule in rules:
        if rule.tier is not None and reasons[rule.tier] is None:
            number = tiers.rules.index(rule) + 1
            return Choice(able, tiers[rule.tier], f"rule {number}")
    if len(able) == 1:
        return Choice(able, able[0], "only able tier")
    return Choice(able, None, "")


def why_not(tier: Tier, asked: Asked, *, local_only: bool) -> str | None:
    """What keeps a tier from a request, as the end of a sentence; None: nothing."""
    if local_only and not tier.local:
        return "is not local, and this request may not leave"
    for name, wanted in (("tools", asked.tools), ("json", asked.json), ("images", asked.images)):
        if wanted and name not in tier.abilities:
            return f"has no {name}"
    if tier.context is not None:
        tokens = asked.prompt_tokens + asked.answer_tokens
        if tokens > tier.context:
            return f"has a context of {tier.context} tokens, and about {tokens} are asked for"
    return None


def _named(asked: Asked, tiers: Tiers) -> tuple[Tier | None, str]:
    """The tier that the client asks for, by header or as the model."""
    name = asked.headers.get(TIER_HEADER)
    if name is not None:
        if name not in tiers.by_name:
            raise InvalidParameter(
                f"{TIER_HEADER} is {name[:60]!r}, which is no tier; {nearest(name, tiers.names)}", TIER_HEADER
            )
        return tiers[name], "header"
    model = asked.model
    if model is None or model in tiers.general.names:
        return None, ""
    if model not in tiers.by_name:
        known = _models(tiers)
        raise RequestRefused(
            404,
            f"The model {model[:100]!r} is not served here; {nearest(model, known)}",
            "model_not_found",
            "model",
        )
    return tiers[model], "model"


def _models(tiers: Tiers) -> Sequence[str]:
    return (*tiers.general.names, *tiers.names)


def _is(value: str | None, wanted: str) -> bool:
    return value is not None and wanted in ("*", value)


def _is_true(value: str | None) -> bool:
    """Whatever is not plainly a no keeps a request at home."""
    return value is not None and value.strip().lower() not in ("", "0", "false", "no", "off")
