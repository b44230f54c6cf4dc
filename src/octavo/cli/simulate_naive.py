"""`octavo simulate --compare-naive`: an engine that watches no memory beside the paged one. Knows no option."""

from __future__ import annotations

import msgspec
from rich.console import Console
from rich.table import Table

from octavo.bench.record import Run
from octavo.errors import InvalidParameter
from octavo.simulation.asking import Asking
from octavo.simulation.deployment import Deployment
from octavo.simulation.naive import NaiveEngine
from octavo.simulation.replica import Replica
from octavo.simulation.run import simulate
from octavo.timing.clock import ManualClock
from octavo.workload.generate import requests_of
from octavo.workload.spec import Workload

__all__ = ["SHARES", "compare"]

SHARES = (0.8, 0.9, 0.95)
"""Of the memory, up to which both engines fill it."""
_RESTART_S = 30.0
"""Until the weights are loaded again, and a process is warm."""


def compare(deployment: Deployment, asking: Asking, workload: Workload, console: Console) -> None:
    """Print a row for each share of the memory. Raises ClientError."""
    if asking != Asking():
        raise InvalidParameter("The naive engine gives one answer; leave --n and --beam-width out.")
    if deployment.speculation != "off":
        raise InvalidParameter("The naive engine guesses nothing; leave --speculation out.")
    whole = msgspec.structs.replace(deployment, memory_utilization=1.0).kv_tokens
    table = Table(
        "memory", "tokens", "naive: lost", "crashes", "an hour", "fullest", "paged: lost", "preempted",
        box=None, pad_edge=False,
    )  # fmt: skip
    requests = refused = 0
    for share in SHARES:
        paged = msgspec.structs.replace(deployment, memory_utilization=share)
        naive = NaiveEngine(
            paged.pace, capacity_tokens=whole, admit_tokens=paged.kv_tokens, restart_s=_RESTART_S
        ).run(requests_of(workload), clients=workload.clients)
        replica = Replica(paged.settings, paged.pace, ManualClock())
        run = simulate(replica, requests_of(workload), clients=workload.clients, seed=workload.seed)
        too_long, lost = _failed(run)
        requests = naive.requests
        refused = max(refused, too_long, naive.refused)
        table.add_row(
            f"{share:.0%}",
            f"{paged.kv_tokens:,}",
            f"{naive.lost:,}, {naive.lost_share:.1%}",
            f"{naive.crashes:,}",
            f"{naive.crashes_per_hour:.1f}",
            f"{naive.most_tokens / whole:.0%}",
            f"{lost:,}, {lost / len(run.exchanges):.1%}",
            f"{replica.stats.preemptions:,}",
        )
    console.print(table)
    console.print(
        f"\nOf {requests:,} requests. The memory beside the weights holds {whole:,} tokens; both engines fill it "
        "up to a share of the whole memory. The naive one takes in whatever prompt fits there now, and nobody counts "
        "what the answers will add; where that passes what there is, the process dies, all that ran is lost, and the "
        f"next one serves after {_RESTART_S:g} s. The paged one preempts instead.",
        markup=False,
    )
    if refused:
        console.print(f"{refused:,} were refused at most, as too long for the memory.", markup=False)


def _failed(run: Run) -> tuple[int, int]:
    """Requests that were refused, and that were taken and not answered."""
    failed = [one for one in run.exchanges if one.error is not None]
    refused = sum(one.status == 400 for one in failed)
    return refused, len(failed) - refused
