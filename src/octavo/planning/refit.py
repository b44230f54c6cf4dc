"""From the steps of a running server to the terms of its pace. Knows what was told, no request."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from octavo.errors import BenchError
from octavo.protocol.watch import Worked
from octavo.simulation.calibrate import fit
from octavo.simulation.calibrated import CalibratedPace, Fitted
from octavo.simulation.coldness import RATES
from octavo.simulation.told import groups_of

__all__ = ["pace_of"]

_LEAST = 60


def pace_of(steps: Sequence[Worked]) -> tuple[CalibratedPace, Fitted]:
    """What explains the steps best. Raises BenchError for too few."""
    if len(steps) < _LEAST:
        raise BenchError(
            f"The server took {len(steps)} steps while it was watched, and {_LEAST} are needed; watch it for longer."
        )
    groups = groups_of(steps)
    pace, _, fitted = fit(groups)
    told = sum([pace.seconds(load) for one in groups for load in one.loads])
    if pace.per_cold_s:
        told += pace.per_cold_s * sum([one.cold[RATES.index(pace.cold_stays)] for one in groups])
    return _scaled(pace, sum([one.seconds for one in groups]) / told), fitted


def _scaled(pace: CalibratedPace, factor: float) -> CalibratedPace:
    """All steps together take as long as they did. Relative errors are least where what is slow by chance counts for
    little, and a queue grows by what steps take on average."""
    terms = {
        name: factor * getattr(pace, name)
        for name in (
            "per_step_s",
            "per_sample_s",
            "per_sequence_s",
            "per_kv_token_s",
            "per_pair_s",
            "per_cold_s",
        )
    }
    return msgspec.structs.replace(pace, token_s=tuple(factor * one for one in pace.token_s), **terms)
