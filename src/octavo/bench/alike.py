"""Whether two records measured the same thing, and what differs. Knows what they asked, not what came of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from octavo.bench.record import Record

__all__ = ["Unlike", "differences"]

_NOT_THE_LOAD = ("description", "seed", "arrivals.rate")
"""Of a workload's description: words, and what each run has for itself."""
_LENGTH = ("requests", "duration_s")
"""How much of the load there was: more of the same is still the same."""
_OF_THE_RUN = (
    "rate", "clients", "sweep", "search", "max-rate", "slo", "repeats", "tolerance", "seed", "requests", "duration",
    "warmup", "quiet", "max-seconds", "price-per-hour", "currency", "watts", "idle-watts", "electricity-price", "pue",
    "documents-per-request", "tokens-per-document", "hosted",
)  # fmt: skip
"""Options that choose loads, of which each is compared by itself, or what is computed later."""


@dataclass(frozen=True)
class Unlike:
    """One thing that differs."""

    what: str
    a: str
    b: str
    serious: bool
    """The two did not have the same to do, so that a difference says nothing of the server."""

    def __str__(self) -> str:
        return f"{self.what} differs: {self.a} and {self.b}"


def differences(a: Record, b: Record) -> list[Unlike]:
    """The serious ones first."""
    found: list[Unlike] = []

    def add(what: str, one: object, other: object, *, serious: bool = False) -> None:
        if one != other:
            found.append(Unlike(what, _short(one), _short(other), serious))

    for path, one, other in _apart(a.workload, b.workload, ""):
        if path not in _NOT_THE_LOAD:
            add(f"workload {path}", one, other, serious=path not in _LENGTH)
    if not a.workload and not b.workload:
        add("workload", a.name, b.name, serious=True)
    add("api", a.api, b.api, serious=True)
    add("model", a.model, b.model)
    add("url", a.url, b.url)
    add("server", a.server, b.server)
    for path, one, other in _apart(a.options, b.options, ""):
        if path.partition(".")[0] not in _OF_THE_RUN:
            add(f"option {path}", one, other)
    for path, one, other in _apart(a.machine, b.machine, ""):
        add(f"measuring machine's {path}", one, other)
    add("Octavo's version", a.octavo, b.octavo)
    return sorted(found, key=lambda one: not one.serious)


def _apart(a: Any, b: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """The innermost places at which two descriptions are not the same."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in dict.fromkeys([*a, *b]):
            yield from _apart(a.get(key), b.get(key), f"{path}.{key}" if path else str(key))
    elif isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)) and len(a) == len(b):
        for place, (one, other) in enumerate(zip(a, b, strict=True)):
            yield from _apart(one, other, f"{path}[{place}]")
    elif a != b:
        yield path, a, b


def _short(value: object) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
