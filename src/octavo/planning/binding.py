"""What keeps a machine from doing more: memory, the queue, arithmetic, bandwidth. Knows outcomes and rooflines."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from octavo.planning.choice import Choice, Setting
from octavo.planning.trying import Tried

__all__ = ["Binding", "binding"]

Kind = Literal["memory", "queue", "compute", "bandwidth", "nothing"]

_FULL = 0.98
_WAITING = 0.5
_BUSY = 0.3


class Binding(msgspec.Struct, frozen=True, kw_only=True):
    """What binds, and the numbers that say so."""

    kind: Kind
    why: str


def binding(choice: Choice | Setting, tried: Tried) -> Binding:
    """In the order in which one hides another: a full memory makes requests wait, and so do too few places; where
    neither is so, a step takes what arithmetic or reading takes (the roofline of Williams et al. 2009)."""
    preempted, kv_max = tried.value("preemptions") or 0.0, tried.value("kv_use_max") or 0.0
    waiting, running = tried.value("server_waiting") or 0.0, tried.value("server_running") or 0.0
    if preempted > 0 or (kv_max >= _FULL and waiting >= _WAITING):
        return Binding(
            kind="memory",
            why=f"K and V take up to {100 * kv_max:.0f} % of their memory, {preempted:.0f} requests were preempted and "
            f"{waiting:.1f} wait on average",
        )
    each = running / choice.replicas
    most = choice.settings.limits.max_slots
    if waiting >= _WAITING and (tried.value("server_running_max") or 0.0) >= most * choice.replicas:
        return Binding(
            kind="queue", why=f"all {most} places are taken and {waiting:.1f} requests wait on average"
        )
    busy = tried.value("busy_share") or 0.0
    if busy < _BUSY:
        return Binding(kind="nothing", why=f"it is busy {100 * busy:.0f} % of the time")
    tokens = _tokens_a_step(choice, tried, each)
    critical = choice.critical_batch or math.inf
    kind: Kind = "compute" if tokens > critical else "bandwidth"
    word = "more" if kind == "compute" else "fewer"
    than = "any that arithmetic bound" if math.isinf(critical) else f"the critical {critical:.0f}"
    return Binding(
        kind=kind,
        why=f"a step has about {tokens:.0f} tokens, {word} than {than}, and it is busy {100 * busy:.0f} % of the time",
    )


def _tokens_a_step(choice: Choice | Setting, tried: Tried, running: float) -> float:
    """Those that decode, and what of prompts is computed in the time of a step."""
    step_s = tried.value("itl_p50") or tried.value("tpot_p50") or 0.0
    computed = (tried.value("input_rate") or 0.0) * (1.0 - (tried.value("cached_share") or 0.0))
    return running + computed * step_s / choice.replicas
