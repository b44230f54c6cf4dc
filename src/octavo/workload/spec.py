"""A workload's description, from a TOML or JSON file or a preset. Knows its shape, and no request of it."""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import inspect

from octavo.errors import WorkloadError
from octavo.workload.arrivals import Arrivals, Closed, Constant, Gamma, Poisson, TraceTimes
from octavo.workload.lengths import Delay, FixedDelay, Length

__all__ = [
    "PRESETS",
    "PrefixLevel",
    "Sessions",
    "Tenant",
    "Tools",
    "Trace",
    "Workload",
    "load_workload",
    "preset_text",
]

PRESETS = ("chat", "autocomplete", "voice", "rag", "batch", "agent")

TraceFormat = Literal["auto", "azure", "burstgpt", "mooncake", "sharegpt", "jsonl"]


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class PrefixLevel(_Table, frozen=True, kw_only=True):
    """A level of the tree of prefixes: each node above has `branches` below it, of which a session takes one."""

    tokens: Annotated[int, msgspec.Meta(ge=1, le=10_000_000)] | Length
    """How long a node is; the same node is always the same tokens."""
    branches: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 1
    exponent: Annotated[float, msgspec.Meta(ge=0, le=20)] = 0.0
    """Zipf's: the n-th branch is taken with the weight 1 / n^exponent; 0 for all alike."""


class Tools(_Table, frozen=True, kw_only=True):
    """Turns that are a tool's result and no person's message."""

    share: Annotated[float, msgspec.Meta(ge=0, le=1)]
    """Of the turns after the first."""
    delay: Delay
    """How long a tool takes."""
    tokens: Length
    """What it says."""


class Sessions(_Table, frozen=True, kw_only=True):
    """Conversations: each turn's prompt has all before it, answers too."""

    turns: Length
    think: Delay = FixedDelay(seconds=0.0)
    """From an answer's end to the next turn."""
    first: Length | None = None
    """The first turn's own length, where it is another than `input`."""
    tools: Tools | None = None
    max_context_tokens: Annotated[int, msgspec.Meta(ge=2, le=10**9)] | None = None
    """A session ends before a turn whose prompt and answer would be longer."""


class Tenant(_Table, frozen=True, kw_only=True):
    """Who asks. A session has one tenant."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    weight: Annotated[float, msgspec.Meta(gt=0, le=1e9)] = 1.0
    priority: Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)] = 0
    input: Length | None = None
    output: Length | None = None


class Trace(_Table, frozen=True, kw_only=True):
    """Requests that were really sent."""

    file: str
    """A path, from the folder of the workload's file."""
    format: TraceFormat = "auto"


class Workload(_Table, frozen=True, kw_only=True):
    """A whole workload. Equal descriptions give equal requests."""

    description: str = ""
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0
    requests: Annotated[int, msgspec.Meta(ge=1, le=10**12)] | None = None
    """How many at most."""
    duration_s: Annotated[float, msgspec.Meta(gt=0, le=1e9)] | None = None
    """No session begins at this time or later."""
    arrivals: Arrivals | None = None
    input: Length | None = None
    """Tokens that a turn adds, beside the prefix and the turns before."""
    output: Length | None = None
    prefix: tuple[PrefixLevel, ...] = ()
    sessions: Sessions | None = None
    tenants: tuple[Tenant, ...] = ()
    trace: Trace | None = None

    def __post_init__(self) -> None:
        if self.trace is not None:
            for name in ("input", "prefix"):
                if getattr(self, name):
                    raise ValueError(f"a trace has its own {name}; leave out either `{name}` or `trace`")
            if self.sessions is not None:
                raise ValueError("a trace has its own sessions; leave out either `sessions` or `trace`")
            return
        for name in ("arrivals", "input", "output"):
            if getattr(self, name) is None:
                raise ValueError(f"`{name}` is missing; without a `trace` it is needed")
        if isinstance(self.arrivals, TraceTimes):
            raise ValueError("arrivals of the kind trace need a `trace`")
        if isinstance(self.arrivals, Closed) and self.requests is None:
            raise ValueError("`requests` is missing; a closed loop has no end of its own")
        if self.requests is None and self.duration_s is None:
            raise ValueError("`requests` and `duration_s` are missing; give one, so that it ends")

    @property
    def rate(self) -> float | None:
        """Sessions a second of an open loop with one rate."""
        rate = getattr(self.arrivals, "rate", None)
        return float(rate) if rate is not None else None

    @property
    def clients(self) -> int | None:
        """Of a closed loop."""
        return self.arrivals.clients if isinstance(self.arrivals, Closed) else None

    def at_rate(self, rate: float) -> Workload:
        """The same sessions, `rate` of them a second. Raises WorkloadError for arrivals without one rate."""
        if not isinstance(self.arrivals, (Poisson, Gamma, Constant)):
            kind = type(self.arrivals).__name__.lower() if self.arrivals is not None else "trace"
            raise WorkloadError(
                f"A rate of {rate:g} was asked for, but the arrivals are of the kind {kind}; "
                "only poisson, gamma and constant have one rate: change the workload's file."
            )
        if not 0 < rate <= 1e6:
            raise WorkloadError(f"The rate is {rate:g}; it must be above 0 and at most 1000000 a second.")
        return msgspec.structs.replace(self, arrivals=msgspec.structs.replace(self.arrivals, rate=rate))

    def at_cv(self, cv: float) -> Workload:
        """The same sessions at the same rate, with gaps of a gamma distribution: more than 1 is bursts. Raises
        WorkloadError for arrivals without one rate."""
        if self.rate is None:
            raise WorkloadError(
                f"A cv of {cv:g} was asked for, and these arrivals have no single rate; change the workload's file."
            )
        if not 0 < cv <= 50:
            raise WorkloadError(f"The cv is {cv:g}; it must be above 0 and at most 50.")
        return msgspec.structs.replace(self, arrivals=Gamma(rate=self.rate, cv=cv))


def load_workload(name: str) -> Workload:
    """A preset by its name, a .toml or .json file, or a trace by itself (.csv, .jsonl, .gz).

    Raises WorkloadError, or OSError for an unreadable file.
    """
    if name in PRESETS:
        return _workload(name, tomllib.loads(preset_text(name)))
    path = Path(name)
    if path.suffix.lower() in (".csv", ".jsonl", ".gz"):
        path.open("rb").close()
        return Workload(trace=Trace(file=name))
    if path.suffix.lower() not in (".toml", ".json"):
        close = difflib.get_close_matches(name, PRESETS, 1)
        raise WorkloadError(
            f"{name} is neither a preset ({', '.join(PRESETS)}) nor a file whose name ends in .toml or .json, "
            "nor a trace whose name ends in .csv, .jsonl or .gz; "
            + (f"did you mean {close[0]}?" if close else "check the name.")
        )
    try:
        text = path.read_text(encoding="utf-8")
        raw = (
            tomllib.loads(text)
            if path.suffix.lower() == ".toml"
            else json.loads(text, object_pairs_hook=_once)
        )
    except (ValueError, RecursionError) as error:
        raise WorkloadError(f"{path} cannot be read as {path.suffix[1:].upper()}: {error}.") from None
    workload = _workload(str(path), raw)
    if workload.trace is None:
        return workload
    beside = msgspec.structs.replace(workload.trace, file=str(path.parent / workload.trace.file))
    return msgspec.structs.replace(workload, trace=beside)


def preset_text(name: str) -> str:
    """The TOML text of a preset, with its sources."""
    return (resources.files("octavo.workload") / "presets" / f"{name}.toml").read_text(encoding="utf-8")


def _workload(name: str, raw: Any) -> Workload:
    if not isinstance(raw, dict):
        raise WorkloadError(f"{name} holds no table; a workload has keys such as arrivals, input and output.")
    for path, key, known in _unknown(raw, inspect.type_info(Workload), ""):
        close = difflib.get_close_matches(key, known, 1)
        raise WorkloadError(
            f"{name}: {path}{key} is no key of a workload; "
            + (f"did you mean {path}{close[0]}?" if close else f"here may be {', '.join(sorted(known))}.")
        )
    try:
        return msgspec.convert(raw, Workload)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at ")
        place = place.strip("`").removeprefix("$").removeprefix(".")
        value = _value_at(raw, place) if place else None
        shown = f" is {json.dumps(value, default=str):.60}:" if value is not None else ":" if place else ""
        raise WorkloadError(f"{name}: {place}{shown} {reason}.".replace(":  ", ": ")) from None


def _unknown(value: Any, kind: inspect.Type, path: str) -> Iterator[tuple[str, str, list[str]]]:
    """Of every key that no table has: where it is, the key, and what may be there."""
    match kind:
        case inspect.Metadata(type=inner):
            yield from _unknown(value, inner, path)
        case inspect.UnionType(types=types):
            for one in types:
                yield from _unknown(value, one, path)
        case inspect.VarTupleType(item_type=item) if isinstance(value, list):
            for place, child in enumerate(value):
                yield from _unknown(child, item, f"{path.removesuffix('.')}[{place}].")
        case inspect.StructType(tag_field=tag_field, tag=tag, fields=fields) if isinstance(value, dict):
            if tag_field is not None and value.get(tag_field) != tag:
                return  # it is another one of a union
            known = {field.name: field.type for field in fields}
            for key, child in value.items():
                if key in known:
                    yield from _unknown(child, known[key], f"{path}{key}.")
                elif key != tag_field:
                    yield path, str(key), [*known, *([tag_field] if tag_field else [])]


def _value_at(raw: Any, place: str) -> Any:
    for key, number in re.findall(r"([^.\[\]]+)|\[(\d+)\]", place):
        try:
            raw = raw[int(number)] if number else raw[key]
        except (KeyError, IndexError, TypeError):
            return None
    return raw


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice} is there twice")
    return table
