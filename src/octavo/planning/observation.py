"""What a watched server's load says of its settings: how far the simulation is off, which option to change, what binds.

Knows no terminal and no process: who calls says how simulations are run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Literal

import msgspec

from octavo.bench.slo import Slo
from octavo.bench.watched import Watched
from octavo.planning.binding import Binding
from octavo.planning.refit import pace_of
from octavo.planning.rehearsal import Rehearsal, Rehearsed, numbers_of, window_of
from octavo.planning.remedies import Check, Remedy, best_of, checks, judged
from octavo.planning.seen import Load, guessing_in, load_in
from octavo.planning.setting import Knob, Setting, knobs, setting_of
from octavo.simulation.calibrated import CalibratedPace, Fitted
from octavo.simulation.told import lengths_of, ranges_of
from octavo.timing.step_time import StepLoad
from octavo.workload.request import Request
from octavo.workload.summary import summarize

__all__ = ["Observation", "Simulated", "consider"]

Simulated = Callable[[Sequence[Rehearsal], str], list[Rehearsed]]
"""Runs them, in order; the words say what for."""

_FINALISTS = 4
"""Changes that are simulated with other draws of the load, too."""
_FULL, _WAITING, _BUSY = 0.98, 0.5, 0.3


class Observation(msgspec.Struct, kw_only=True):
    """Everything that is told."""

    url: str
    model: str
    server: str
    length_s: float
    cut: str | None = None
    """Why the watch ended before its time."""
    setting: Setting
    load: list[tuple[str, str]]
    """What was asked: names and words."""
    fitted: Fitted
    seen: dict[str, float | None]
    """The server's numbers as they were, for the time that was watched."""
    checks: list[Check]
    trusted: bool
    """The simulation tells the server as it was, so that what it says of changes is worth something."""
    binds: Binding | None = None
    same: Remedy | None = None
    """The server as it is, for the draws that changes are compared in."""
    remedies: list[Remedy] = []
    """All that was tried, the best first."""
    best: Remedy | None = None
    slo: str | None = None
    meets: bool | None = None
    """The target, as the server is."""
    notes: list[str] = []
    timeline: list[tuple[float, int, int]] = []
    """Seconds, and how many ran and waited then."""
    simulations: int = 0


def consider(watched: Watched, slo: Slo | None, simulated: Simulated, *, draws: int = 5) -> Observation:
    """`draws`: of the load, for each change that looks good. Raises BenchError where too little was seen."""
    server = watched.server
    assert server is not None
    load = load_in(watched)
    pace, fitted = pace_of(watched.steps)
    guessing = guessing_in(watched) if server.speculation != "off" else None
    here = setting_of(server)
    text = None if slo is None else slo.text
    blank = Rehearsal(
        setting=here,
        pace=pace,
        seen=ranges_of(watched.steps),
        guessing=guessing,
        requests=[],
        counted=frozenset(),
        free_tokens=0,
        warm=load.warm if here.prefix_cache else [],
        clients=load.clients,
        length_s=load.length_s,
        slo=text,
    )
    maker = _Maker(load, blank)
    seen, _ = numbers_of(load.run, window_of(load.run.exchanges, load.clients, load.length_s), text)
    [as_it_is] = simulated([maker.check()], "the server as it is")
    told = Observation(
        url=watched.url,
        model=server.model,
        server=f"octavo {server.octavo}",
        length_s=watched.length_s,
        cut=watched.cut,
        setting=here,
        load=_facts(load),
        fitted=fitted,
        seen=seen,
        checks=checks(seen, as_it_is),
        trusted=False,
        slo=text,
        timeline=[(one.at_s, one.stats.running, one.stats.waiting) for one in watched.gauges],
        simulations=1,
    )
    told.notes = _notes(watched, load, guessed=guessing is not None)
    if as_it_is.unfit is not None:
        told.notes.append(f"The load cannot be simulated: {as_it_is.unfit}")
        return told
    told.binds = _binding(seen, here, watched, pace)
    told.trusted = not any(one.far for one in told.checks)
    if told.trusted:
        decode_s = _decode_s(watched)
        changes = list(knobs(server, decode_s, guessed=guessing is not None))
        _try(told, maker, here, changes, simulated, draws, slo)
    return told


class _Maker:
    """Makes what is to be simulated."""

    def __init__(self, load: Load, blank: Rehearsal) -> None:
        """`blank`: a rehearsal of no requests."""
        self._load = load
        self._blank = blank
        self.first = 0 if load.clients is None else 1
        """The first draw that changes are compared with."""
        self._drawn: dict[int, list[Request]] = {}

    def check(self) -> Rehearsal:
        """The server as it is, of the requests that were seen from their begin to their end."""
        load = self._load
        requests = load.drawn(0)
        everyone = frozenset(range(load.begun, len(requests)))
        counted = load.seen if load.clients is None else everyone
        return self._made(self._blank.setting, requests, counted, load.free_tokens)

    def draw(self, setting: Setting, seed: int) -> Rehearsal:
        """All requests of a draw of the load."""
        load = self._load
        if seed not in self._drawn:
            self._drawn[seed] = load.drawn(seed)
        requests = self._drawn[seed]
        begun, free_tokens = (load.begun, load.free_tokens) if load.clients is None else (0, 0)
        return self._made(setting, requests, frozenset(range(begun, len(requests))), free_tokens)

    def _made(
        self, setting: Setting, requests: list[Request], counted: frozenset[int], free_tokens: int
    ) -> Rehearsal:
        return msgspec.structs.replace(
            self._blank, setting=setting, requests=requests, counted=counted, free_tokens=free_tokens
        )


def _try(
    told: Observation,
    maker: _Maker,
    here: Setting,
    changes: list[Knob],
    simulated: Simulated,
    draws: int,
    slo: Slo | None,
) -> None:
    """Every change with one draw of the load, and the best ones with all."""
    first = maker.first
    without, *with_ = simulated(
        [maker.draw(one, first) for one in (here, *(knob.setting for knob in changes))], "each option changed"
    )
    off = {one.name: one.off for one in told.checks if one.off is not None}
    known = {knob.option: [(without, outcome)] for knob, outcome in zip(changes, with_, strict=True)}
    remedies = {
        knob.option: judged(
            Remedy(knob=knob.name, value=knob.value, option=knob.option),
            off,
            known[knob.option],
            slo,
        )
        for knob in changes
    }
    ranked = sorted(remedies.values(), key=_rank)
    settings = {knob.option: knob.setting for knob in changes}
    finalists = [one for one in ranked if one.unfit is None and (one.better or one.meets)][:_FINALISTS]
    seeds = range(first + 1, first + draws)
    asked = [
        maker.draw(setting, seed)
        for seed in seeds
        for setting in (here, *(settings[one.option] for one in finalists))
    ]
    outcomes = simulated(asked, "the best ones, with other draws of the load") if finalists else []
    width = len(finalists) + 1
    base = [without, *outcomes[::width]]
    for place, one in enumerate(finalists):
        pairs = known[one.option] + list(zip(base[1:], outcomes[place + 1 :: width], strict=True))
        judged(one, off, pairs, slo)
    told.simulations += 1 + len(changes) + len(outcomes)
    told.remedies = sorted(ranked, key=_rank)
    told.same = judged(Remedy(knob="", value="as it is", option=""), off, [(one, one) for one in base], slo)
    told.meets = told.same.meets
    told.best = best_of((one for one in told.remedies if one.sure), slo if told.meets is False else None)


def _rank(one: Remedy) -> tuple[bool, bool, bool, float]:
    return one.unfit is not None, not one.meets, not one.helps, -one.score


def _decode_s(watched: Watched) -> float:
    """A step in which only decodes are computed; of all steps, where there is none."""
    lengths = lengths_of(watched.steps)
    decodes = [
        seconds
        for one, seconds in zip(watched.steps, lengths, strict=True)
        if not one.pairs and one.tokens > 1
    ]
    return median(decodes or lengths)


def _binding(seen: dict[str, float | None], here: Setting, watched: Watched, pace: CalibratedPace) -> Binding:
    """In the order in which one hides another, as octavo.planning.binding has it; of what was seen."""
    waiting, most = seen["server_waiting"] or 0.0, seen["server_running_max"] or 0.0
    kv_max, preempted = seen["kv_use_max"] or 0.0, seen["preemptions"] or 0.0
    if preempted > 0 or (kv_max >= _FULL and waiting >= _WAITING):
        return Binding(
            kind="memory",
            why=f"K and V take up to {100 * kv_max:.0f} % of their memory, {preempted:.0f} requests were preempted and "
            f"{waiting:.1f} wait on average",
        )
    if waiting >= _WAITING and most >= here.max_running:
        return Binding(
            kind="queue",
            why=f"all {here.max_running} places are taken and {waiting:.1f} requests wait on average",
        )
    busy = seen["busy_share"] or 0.0
    if busy < _BUSY:
        return Binding(kind="nothing", why=f"it is busy {100 * busy:.0f} % of the time")
    steps = watched.steps
    tokens = sum(one.tokens for one in steps) / len(steps)
    alone = pace.seconds(StepLoad(1, 1, 1, 0, 1))
    many = max(one.tokens for one in steps)
    slope = (pace.seconds(StepLoad(many)) - pace.seconds(StepLoad(1))) / max(many - 1, 1)
    critical = alone / slope if slope > 0 else float("inf")
    kind: Literal["compute", "bandwidth"] = "compute" if tokens > critical else "bandwidth"
    word = "more" if kind == "compute" else "fewer"
    return Binding(
        kind=kind,
        why=f"a step has {tokens:.0f} tokens on average, {word} than the critical {critical:.0f}, and it is busy "
        f"{100 * busy:.0f} % of the time",
    )


def _facts(load: Load) -> list[tuple[str, str]]:
    new = load.requests[load.begun :]
    summary = summarize(new)
    came = (
        f"{load.clients} clients, each of which asks again once it has its answer"
        if load.clients is not None
        else f"{load.rate:.3g} requests a second"
    )
    shared = sum(load.shared[load.begun :]) / max(sum(one.input_tokens or 0 for one in new), 1)
    facts = [("requests", f"{came}; {len(new):,} came, {load.answered:,} of them were seen to end")]
    for name, one in (("prompts", summary.input), ("answers", summary.output)):
        if one is not None:
            facts.append(
                (name, f"{one.mean:.0f} tokens on average, {one.p50} in the median, {one.p99} at P99")
            )
    facts.append(
        (
            "shared",
            f"{shared:.0%} of prompt tokens are as in an earlier prompt, {load.hit_rate or 0:.0%} were found computed",
        )
    )
    if load.begun:
        facts.append(("before", f"{load.begun} requests were there already"))
    return facts


def _notes(watched: Watched, load: Load, *, guessed: bool) -> list[str]:
    server = watched.server
    assert server is not None
    notes = []
    if watched.cut is not None:
        notes.append(f"The watch ended after {watched.length_s:.0f} s: {watched.cut}.")
    if watched.lost:
        notes.append(
            f"{watched.lost:,} lines were left out by the server; a shorter watch may have all of them."
        )
    if load.left:
        notes.append(f"{load.left} requests failed or were given up by their clients.")
    if server.speculation == "off":
        notes.append(
            "Speculation is off, and how often guesses would be right is not known: it was not tried."
        )
    elif not guessed:
        notes.append("Nothing was guessed ahead in this time, so speculation on or off is the same.")
    if server.speculation == "draft":
        notes.append("The draft model's own steps count as parts of the steps that verify its guesses.")
    if server.cache_disk:
        notes.append("Its disk cache is not simulated: what came back from the disk is computed anew.")
    return notes
