"""How long steps take on a machine that was measured, and what it said of itself then. Knows files, runs no step.

Two files are read: a calibration, as `octavo simulate --calibrate` writes it (JSON), and a plain table of terms that
somebody wrote by hand (TOML or JSON).
"""

from __future__ import annotations

import difflib
import hashlib
import re
import tomllib
from bisect import bisect_right
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from octavo.backends.base import Limits
from octavo.errors import BenchError, InvalidParameter
from octavo.models.cache import cache_root
from octavo.simulation.pace import Pace
from octavo.timing.step_time import StepLoad

__all__ = [
    "FORMAT",
    "CalibratedPace",
    "Calibration",
    "Fitted",
    "HostWork",
    "Machine",
    "Watched",
    "read_pace",
    "saved_at",
]

FORMAT = "octavo-pace-1"
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e6)]
_Count = Annotated[int, msgspec.Meta(ge=1)]
_Table = TypeVar("_Table", bound=msgspec.Struct)


class CalibratedPace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """seconds = per_step_s + curve(tokens) + per_sample_s · samples + per_sequence_s · sequences
              + per_kv_token_s · kv_tokens + per_pair_s · pairs

    and, where the steps before left caches cold, per_cold_s · coldness besides (simulation/coldness.py).

    The curve is straight between its points, goes on behind its last as before it, and never falls. Kernels work in
    tiles, which a few tokens do not fill, and wait for weights while they have few: neither is a line.
    """

    per_step_s: _Seconds = 0.0
    tokens: tuple[Annotated[int, msgspec.Meta(ge=0)], ...] = ()
    """Where the curve's points are, growing."""
    token_s: tuple[_Seconds, ...] = ()
    """What so many tokens take, beside the other terms."""
    per_sample_s: _Seconds = 0.0
    per_sequence_s: _Seconds = 0.0
    per_kv_token_s: _Seconds = 0.0
    per_pair_s: _Seconds = 0.0
    per_cold_s: _Seconds = 0.0
    """What a step takes longer where caches are cold; `seconds` has it not, since it is not the load's."""
    cold_stays: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0
    """The share of coldness that is left after a step."""

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.token_s):
            raise ValueError(f"tokens has {len(self.tokens)} numbers and token_s {len(self.token_s)}")
        if any(a >= b for a, b in pairwise(self.tokens)) or any(a > b for a, b in pairwise(self.token_s)):
            raise ValueError("tokens must grow, and token_s must not fall")
        if not any(self.token_s) and not any(getattr(self, name) for name in _TERMS):
            raise ValueError("every term is 0, so a step would take no time")

    @cached_property
    def _slopes(self) -> tuple[float, ...]:
        points = list(zip(self.tokens, self.token_s, strict=True))
        found = [(late_s - s) / (late - at) for (at, s), (late, late_s) in pairwise(points)]
        return (*found, found[-1] if found else 0.0)

    def seconds(self, load: StepLoad) -> float:
        """Of a step with this load."""
        seconds = (
            self.per_step_s
            + self.per_sample_s * load.samples
            + self.per_sequence_s * load.sequences
            + self.per_kv_token_s * load.kv_tokens
            + self.per_pair_s * load.pairs
        )
        if not self.tokens:
            return seconds
        place = max(bisect_right(self.tokens, load.tokens) - 1, 0)
        beyond = max(load.tokens - self.tokens[place], 0)
        return seconds + self.token_s[place] + self._slopes[place] * beyond


_TERMS = ("per_step_s", "per_sample_s", "per_sequence_s", "per_kv_token_s", "per_pair_s")


class HostWork(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What lies between a client and its engine. It delays; what it takes from an engine on the same cores is in the
    steps, where they were measured through it."""

    per_request_s: _Seconds = 0.0
    """From sending until the engine has the request: connection, HTTP, parsing, a process's socket."""
    per_prompt_token_s: _Seconds = 0.0
    """Besides, for each token of the prompt: tokenizing, and parsing what is long."""
    per_chunk_s: _Seconds = 0.0
    """From a step's end until a chunk is with the client, for each chunk of that step up to this one: they are written
    one after another."""

    def before_s(self, prompt_tokens: int) -> float:
        """Until a request is with the engine."""
        return self.per_request_s + self.per_prompt_token_s * prompt_tokens

    def after_s(self, place: int) -> float:
        """Until the chunk at this place (from 0) of its step is with the client."""
        return self.per_chunk_s * (place + 1)


class Machine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where it was measured."""

    processor: str
    cores: _Count
    system: str


class Fitted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far the terms can be trusted."""

    low: dict[str, float]
    """Of each term, the lower end of its 95 % interval (bootstrap over the kinds of steps), in seconds."""
    high: dict[str, float]
    error_p50: Annotated[float, msgspec.Meta(ge=0)]
    """Of predictions for kinds of steps that were left out of the fit: the median of |predicted / measured − 1|."""
    error_p95: Annotated[float, msgspec.Meta(ge=0)]
    steps: _Count
    """That were measured."""
    kinds: _Count


class Calibration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of `octavo simulate --calibrate`."""

    format: str = FORMAT
    octavo: str
    date: str
    """UTC, ISO 8601."""
    machine: Machine
    """Of the process that measured."""
    model: str
    source: str
    """`engine`, or the server's URL."""
    pace: CalibratedPace
    host: HostWork = HostWork()
    fitted: Fitted
    seen: dict[str, tuple[int, int]]
    """The least and the most of each of StepLoad's numbers."""
    limits: Limits
    """Of the engine that was measured."""
    kv_bytes_per_token: float | None = None
    threads: _Count | None = None
    """Of the engine, where it is known."""

    def write(self, path: Path) -> None:
        """Whole or not at all. Raises BenchError."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(path.name + ".part")
            part.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n")
            part.replace(path)
        except OSError as error:
            raise BenchError(f"{path} cannot be written ({error.strerror}); check the path.") from None


class Watched:
    """A pace that notes which steps were taken that lie outside of what was seen. Who only looks ahead asks `pace`."""

    def __init__(self, pace: Pace, seen: dict[str, tuple[int, int]]) -> None:
        self.pace = pace
        self._most = tuple(seen.get(name, (0, 0))[1] for name in StepLoad._fields)
        self.steps = 0
        """That were taken."""
        self.outside: dict[str, tuple[int, int]] = {}
        """Of a quantity: how many steps had more of it than any that was measured, and the most that one had."""

    @property
    def per_cold_s(self) -> float:
        """The pace's own."""
        return getattr(self.pace, "per_cold_s", 0.0)

    @property
    def cold_stays(self) -> float:
        """The pace's own."""
        return getattr(self.pace, "cold_stays", 0.0)

    def seconds(self, load: StepLoad) -> float:
        self.steps += 1
        for name, value, most in zip(StepLoad._fields, load, self._most, strict=True):
            if value > most:
                count, largest = self.outside.get(name, (0, 0))
                self.outside[name] = (count + 1, max(largest, value))
        return self.pace.seconds(load)


def saved_at(model: str) -> Path:
    """Where this machine's calibration of a model lies: beside the models, in the cache folder."""
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", model).strip(".-")[-60:]
    return cache_root() / "pace" / f"{plain}-{hashlib.sha256(model.encode()).hexdigest()[:8]}.json"


def read_pace(path: Path) -> Calibration | CalibratedPace:
    """A calibration, or a plain table. Raises InvalidParameter in one sentence for what is neither."""
    try:
        text = path.read_text(encoding="utf-8")
        raw = tomllib.loads(text) if path.suffix.lower() == ".toml" else msgspec.json.decode(text)
    except OSError as error:
        raise InvalidParameter(f"The pace file {path} cannot be read ({error.strerror}).") from None
    except (ValueError, RecursionError) as error:
        raise InvalidParameter(f"The pace file {path} is damaged ({error}); make it again.") from None
    if not isinstance(raw, dict):
        raise InvalidParameter(f"The pace file {path} holds no table; give it terms such as per_step_s.")
    if "format" not in raw:
        return _converted(path, raw, CalibratedPace)
    if raw["format"] != FORMAT:
        raise InvalidParameter(
            f"The pace file {path} has the format {raw['format']!r}, and this version reads {FORMAT!r}."
        )
    return _converted(path, raw, Calibration)


def _converted(path: Path, raw: dict[str, Any], kind: type[_Table]) -> _Table:
    known = [field.name for field in msgspec.structs.fields(kind)]
    for key in raw:
        if key not in known:
            close = difflib.get_close_matches(key, known, 1)
            hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}."
            raise InvalidParameter(f"The pace file {path} has the unknown field {key!r}; {hint}")
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        raise InvalidParameter(f"The pace file {path} cannot be used: {error}.") from None
