"""`octavo plan` for a machine that was measured, once its options are read. Knows paces, searches and a terminal."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import typer

import octavo
from octavo.bench.slo import Slo
from octavo.cli.options import parse_size
from octavo.cli.plan_run import progress, summary_of, tell
from octavo.cli.processes import processes
from octavo.cli.results import changed_workload, check_outputs
from octavo.cli.simulate_pace import HERE, pace_asked
from octavo.config import PolicyName
from octavo.errors import ClientError, InvalidParameter
from octavo.memory.sizing import block_bytes
from octavo.planning.bounds import mean_of
from octavo.planning.here import Here, HereSearch, sizes
from octavo.planning.here_plan import told_here
from octavo.planning.journal import Journal
from octavo.planning.runs import Runs
from octavo.scheduling.policies import POLICIES
from octavo.simulation.calibrated import Calibration
from octavo.simulation.catalogue import named
from octavo.simulation.guessing import Guessing
from octavo.workload.summary import Summary

__all__ = ["HereAsked", "plan_here"]

_OF_THE_CATALOGUE = (
    "weight_bits",
    "tensor_parallel",
    "memory_utilization",
    "max_accelerators",
    "kernels",
    "hosted",
    "prices",
    "draft_model",
    "mtbf",
    "repair",
)
_PARTS = (1, 2, 4)
"""Of the measured server's budget, and of its sequences at once: what a search tries."""


@dataclass(frozen=True, kw_only=True)
class HereAsked:
    """The command line."""

    model: str
    workload: str
    slo: str
    rate: float | None
    paces: tuple[Path, ...]
    """() for what `octavo simulate --calibrate MODEL` saved."""
    kv_memory: str | None
    policies: tuple[str, ...]
    budgets: tuple[int, ...]
    """() for those that follow from the calibration."""
    max_running: tuple[int, ...]
    speculations: tuple[str, ...]
    given: frozenset[str]
    """Options that were typed."""
    seed: int | None
    seeds: int
    requests: int
    workers: int | None
    journal: Path | None
    html: Path | None
    json: bool


def plan_here(asked: HereAsked) -> int:
    """Search, print and write; return the exit code: 1 where nothing meets the target. Raises ClientError."""
    slo = Slo.parse(asked.slo)
    workload = changed_workload(asked.workload, seed=asked.seed, rate=asked.rate)
    for name in _OF_THE_CATALOGUE:
        if name in asked.given:
            raise InvalidParameter(
                f"--{name.replace('_', '-')} is about machines of the catalogue, and a calibrated one is as it was "
                "measured; leave it out."
            )
    check_outputs(None, asked.html)
    summary = summary_of(workload)
    here = _here(asked, summary)
    journal = Journal(asked.journal, octavo.__version__)
    try:
        with progress() as say, processes(asked.workers) as (executor, _):
            runs = Runs(executor, journal, say)
            search = HereSearch(here, workload, slo, runs, seeds=asked.seeds, requests=asked.requests)
            found = search.run()
    finally:
        journal.close()
    turns = summary.turns_mean if workload.rate is not None else 1.0
    plan = told_here(
        found,
        slo,
        mean_of(summary, prefix_cache=True),
        model=asked.model,
        workload=asked.workload,
        rate=workload.rate,
        request_rate=None if workload.rate is None else workload.rate * turns,
        seed=workload.seed,
        calibration=" and ".join(dict.fromkeys(_words(one) for one in here.calibrations)),
        simulations=runs.made,
        taken_over=runs.taken_over,
    )
    return tell(plan, None, asked.html, json=asked.json)


def _words(one: Calibration) -> str:
    fitted = one.fitted
    return (
        f"calibrated on {one.date} (kinds of steps that a fit had not seen are predicted within {fitted.error_p50:.1%} "
        f"in the median and {fitted.error_p95:.1%} at P95)"
    )


def _here(asked: HereAsked, summary: Summary) -> Here:
    calibrations = tuple(sorted(_calibrations(asked), key=lambda one: one.threads or 0))
    threads = [one.threads for one in calibrations]
    if len(set(threads)) < len(threads):
        told = ", ".join("not known" if one is None else str(one) for one in threads)
        raise InvalidParameter(
            f"The paces' numbers of threads are {told}; they must differ: calibrate with --threads, once for each."
        )
    for policy in asked.policies:
        named(policy, {str(name): one for name, one in POLICIES.items()}, "policy")
    for guesses in asked.speculations:
        Guessing.parse(guesses, None)
    token_bytes = max(one.kv_bytes_per_token or 0.0 for one in calibrations) or _token_bytes(asked.model)
    limits = calibrations[-1].limits
    policies: tuple[PolicyName, ...] = asked.policies  # type: ignore[assignment]
    running = asked.max_running or tuple(max(limits.max_slots // part, 1) for part in (1, 4))
    budgets = asked.budgets or tuple(
        budget
        for part in _PARTS
        if (budget := max(limits.max_step_tokens // part, limits.block_size)) >= running[0] or part == 1
    )
    return Here(
        model=asked.model,
        calibrations=calibrations,
        kv_bytes_per_token=token_bytes,
        kv_memories=_memories(asked, calibrations, token_bytes, summary),
        policies=policies,
        budgets=budgets,
        max_running=running,
        speculations=asked.speculations,
    )


def _calibrations(asked: HereAsked) -> list[Calibration]:
    found = []
    for path in asked.paces or (None,):
        one = pace_asked(path, HERE, asked.model)
        if not isinstance(one, Calibration):
            raise InvalidParameter(
                f"The pace file {path} is a table, and says nothing of a machine's memory and of how sure it is; "
                "calibrate with octavo simulate --calibrate."
            )
        found.append(one)
    return found


def _token_bytes(model: str) -> float:
    """Of K and V, where the calibration does not tell it, as a server's does not."""
    from octavo.cli.pull import fetch

    try:
        return block_bytes(fetch(model).spec, 1, "bf16")
    except ClientError as error:
        raise InvalidParameter(
            f"The calibration does not tell what K and V of a token take, and for --model {model} it is not known: "
            f"{error}"
        ) from None


def _memories(
    asked: HereAsked, calibrations: tuple[Calibration, ...], token_bytes: float, summary: Summary
) -> tuple[int, ...]:
    if asked.kv_memory is not None:
        try:
            found = {parse_size(one) for one in asked.kv_memory.split(",") if one.strip()}
        except typer.BadParameter as error:
            raise InvalidParameter(f"--kv-memory: {error}") from None
        if not found or min(found) < token_bytes:
            raise InvalidParameter(
                f"--kv-memory is {asked.kv_memory!r}; a token's K and V take {token_bytes:g} bytes, name more, such as "
                "64MiB,128MiB."
            )
        return tuple(sorted(found))
    assert summary.input is not None
    return sizes(calibrations, token_bytes, int(summary.input.max + summary.output.max))
