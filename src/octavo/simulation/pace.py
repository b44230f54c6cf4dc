"""How long a step takes on a machine that is not here. Knows loads and seconds, no plan and no hardware."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Protocol, runtime_checkable

import msgspec

from octavo.simulation.coldness import Coldness
from octavo.timing.step_time import StepLoad

__all__ = ["Decodes", "LinearPace", "Pace", "ScaledPace", "coldness_of", "decodes_of"]

_Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e6)]


class Pace(Protocol):
    """Tells how long a step takes. The same load takes the same time, but for what the step before left cold (see
    `coldness_of`): what varies is drawn elsewhere, by a seed."""

    def seconds(self, load: StepLoad) -> float:
        """Of a step with this load, at least 0."""


Decodes = Callable[[int, int, int], list[float]]
"""Of sequences that decode, stored tokens that the first step reads, and steps: how long each step takes, when every
sequence has a token more in each."""


@runtime_checkable
class _Series(Protocol):
    def decodes_s(self, sequences: int, kv_tokens: int, steps: int) -> list[float]: ...


def decodes_of(pace: Pace) -> Decodes:
    """The pace's own way to tell many such steps at once, to the last bit as one by one; or one by one."""
    return pace.decodes_s if isinstance(pace, _Series) else partial(_one_by_one, pace)


def _one_by_one(pace: Pace, sequences: int, kv_tokens: int, steps: int) -> list[float]:
    last = kv_tokens + steps * sequences
    return [
        pace.seconds(StepLoad(sequences, sequences, read, 0, sequences))
        for read in range(kv_tokens, last, sequences)
    ]


@runtime_checkable
class _Cools(Protocol):
    @property
    def per_cold_s(self) -> float: ...

    @property
    def cold_stays(self) -> float: ...


def coldness_of(pace: Pace) -> Coldness | None:
    """What a machine with this pace remembers from step to step; None where that changes nothing."""
    if isinstance(pace, _Cools) and pace.per_cold_s:
        return Coldness(pace.per_cold_s, pace.cold_stays)
    return None


class LinearPace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The terms that the scheduler's own step-time model fits (`timing/step_time.py`), as numbers that somebody gives:
    measured, or from a table.

    seconds = per_step_s + per_token_s · max(tokens − knee, 0) + per_sample_s · samples
              + per_kv_token_s · kv_tokens + per_pair_s · pairs
    """

    per_step_s: _Seconds = 0.0
    per_token_s: _Seconds = 0.0
    per_sample_s: _Seconds = 0.0
    per_kv_token_s: _Seconds = 0.0
    per_pair_s: _Seconds = 0.0
    knee: Annotated[int, msgspec.Meta(ge=0, le=1 << 20)] = 0
    """Tokens that cost no more than one, while the machine waits for weights."""

    def seconds(self, load: StepLoad) -> float:
        return (
            self.per_step_s
            + self.per_token_s * max(load.tokens - self.knee, 0)
            + self.per_sample_s * load.samples
            + self.per_kv_token_s * load.kv_tokens
            + self.per_pair_s * load.pairs
        )


class ScaledPace(msgspec.Struct, frozen=True, kw_only=True):
    """Another pace, all of whose steps take `times` as long: how far a fit may be off."""

    pace: Pace
    times: Annotated[float, msgspec.Meta(gt=0)]

    def seconds(self, load: StepLoad) -> float:
        return self.times * self.pace.seconds(load)

    @property
    def per_cold_s(self) -> float:
        """What a step on cold caches takes longer."""
        return self.times * self.pace.per_cold_s if isinstance(self.pace, _Cools) else 0.0

    @property
    def cold_stays(self) -> float:
        """The share of coldness that is left after a step."""
        return self.pace.cold_stays if isinstance(self.pace, _Cools) else 0.0
