"""Whether a run's numbers can be believed: what went wrong in measuring, a plain sentence each.

Knows limits and their reasons. A problem falsifies the numbers, or only says how to read them. A server that answers
nothing is told first, but is no fault of the measuring: in a search or a comparison such a run counts, as never.
"""

from __future__ import annotations

import numpy as np

from octavo.bench.backlog import Backlog
from octavo.bench.distribution import Summary
from octavo.bench.events import Bools
from octavo.bench.record import Run
from octavo.bench.times import Times
from octavo.bench.window import Window

__all__ = ["CPU_LIMIT", "LAG_LIMIT_S", "LAG_SHARE", "OWN_LIMIT", "judge", "lag_limit_s"]

LAG_LIMIT_S = 0.010
"""A tenth of what a person notices (Nielsen, 1993: 0.1 s); an idle event loop stays far below it."""
LAG_SHARE = 0.05
"""Or this share of the median TTFT, where that is more: what is late by less moves no figure that matters."""
CPU_LIMIT = 0.9
"""Of a core: a process with one thread that has no time left reads late, and its time stamps are late."""
OWN_LIMIT = 0.01
"""Of the requests: more that the measuring process gave up or never sent are another load than the one described."""
_FEW = 100
_IDLE = 0.5
_SHORT_LIMIT = 0.1
_SILENT_LIMIT = 0.01


def lag_limit_s(summaries: dict[str, Summary]) -> float:
    """How late the 99th percentile of sends may be, in seconds."""
    ttft = summaries.get("ttft")
    return max(LAG_LIMIT_S, LAG_SHARE * ttft.p50) if ttft is not None else LAG_LIMIT_S


def judge(
    run: Run,
    times: Times,
    window: Window,
    summaries: dict[str, Summary],
    scalars: dict[str, float | None],
    growth: Backlog | None,
) -> tuple[list[str], bool]:
    """The problems, those first that make the run invalid; and whether none does."""
    inside = (times.intended_us >= window.start_us) & (times.intended_us < window.end_us)
    false = [*_empty(inside), *_late(summaries, scalars), *_own_fault(times, inside)]
    told = [*_stopped(run), *_window(window, inside), *_growing(growth), *_answers(times, inside, scalars)]
    return [*_unanswered(times, inside), *false, *told], not false


def _stopped(run: Run) -> list[str]:
    if run.stopped is None:
        return []
    return [f"The run ended before its workload ({run.stopped.rstrip('.')}): measured is what came before."]


def _unanswered(times: Times, inside: Bools) -> list[str]:
    total = int(inside.sum())
    if not total or (inside & times.ok).any():
        return []
    return [f"None of {total} requests was answered: the times and rates of answers say nothing."]


def _empty(inside: Bools) -> list[str]:
    return (
        []
        if inside.any()
        else ["No request was meant to be sent in the window: there is nothing to measure."]
    )


def _late(summaries: dict[str, Summary], scalars: dict[str, float | None]) -> list[str]:
    found = []
    limit = lag_limit_s(summaries)
    lag = summaries.get("lag")
    if lag is not None and lag.p99 > limit:
        found.append(
            f"Requests were sent late: the schedule lag's p99 is {_ms(lag.p99)}, above {_ms(limit)}; "
            "the measuring process could not keep up, so the load was not the one that was asked for."
        )
    loop, cpu = scalars.get("loop_lag_p99"), scalars.get("client_cpu")
    if loop is not None and loop > limit:
        words = f"The measuring process woke late (p99 {_ms(loop)}, above {_ms(limit)}): its time stamps are late too"
        idle = cpu is not None and cpu < _IDLE
        found.append(
            f"{words}; it used {cpu:.0%} of a core, so others kept it from one." if idle else f"{words}."
        )
    if cpu is not None and cpu > CPU_LIMIT:
        found.append(
            f"The measuring process used {cpu:.0%} of a core, above {CPU_LIMIT:.0%}: it measured itself as well; "
            "give it a core of its own, or lower the rate."
        )
    return found


def _own_fault(times: Times, inside: Bools) -> list[str]:
    own = sum(times.exchanges[at].error == "client" for at in np.flatnonzero(inside & ~times.ok))
    total = int(inside.sum())
    if not total or own / total <= OWN_LIMIT:
        return []
    return [f"{own} of {total} requests were given up or never sent by the measuring process itself."]


def _window(window: Window, inside: Bools) -> list[str]:
    found = []
    total = int(inside.sum())
    if not window.steady:
        found.append(
            f"Measured is {window.rule}: warm-up and drain are in the figures, and rates are too low."
        )
    if 0 < total < _FEW:
        requests = "request is" if total == 1 else "requests are"
        found.append(
            f"Only {total} {requests} measured: a p99 of fewer than {_FEW} is little below the longest."
        )
    return found


def _growing(growth: Backlog | None) -> list[str]:
    if growth is None or not growth.grows:
        return []
    words = (
        f"The server fell behind: {growth.share:.0%} of the offered requests piled up, {growth.first:.1f} were in "
        f"flight at the window's beginning and {growth.last:.1f} at its end; "
        "latencies grow with the length of such a run."
    )
    return [words]


def _answers(times: Times, inside: Bools, scalars: dict[str, float | None]) -> list[str]:
    answered = np.flatnonzero(inside & times.ok)
    found = []
    skipped = sum(times.exchanges[at].error == "skipped" for at in np.flatnonzero(inside & ~times.ok))
    if skipped:
        found.append(f"{skipped} requests were not sent because an answer before them failed.")
    if not len(answered):
        return found
    counted = [times.exchanges[at].counted for at in answered]
    for how, words in (
        ("none", "have no count of tokens: they are in no rate, TPOT or ITL"),
        ("events", "have no count from the server: each of their events is taken for a token"),
        (
            "spread",
            "have one count for the whole, laid over their events by characters: TPOT and ITL are estimates",
        ),
    ):
        if share := counted.count(how) / len(answered):
            found.append(f"{share:.1%} of the answers {words}.")
    silent = int((times.silent & inside).sum()) / len(answered)
    if silent > _SILENT_LIMIT:
        found.append(f"{silent:.1%} of the answers had no text; they have no TTFT.")
    short = scalars.get("short_share")
    if short is not None and short > _SHORT_LIMIT:
        found.append(
            f"{short:.1%} of the answers ended before the wanted length: the load was lighter than described."
        )
    return found


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms"
