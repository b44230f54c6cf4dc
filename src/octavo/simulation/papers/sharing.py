"""What PagedAttention saves where sequences share blocks: its section 6.3 and figure 15. Knows trials and tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from octavo.simulation.asking import Asking
from octavo.simulation.papers.lengths import clamped_mean
from octavo.simulation.papers.table import Published, Row
from octavo.simulation.papers.trial import Progress, Served, holding
from octavo.workload.spec import Workload

__all__ = ["COUNTS", "Kind", "sharing_parts", "sharing_rows"]

Kind = Literal["parallel", "beam"]
COUNTS = (2, 4, 6)
"""Sequences of a request."""

_SAVED: dict[tuple[Kind, str], tuple[float, float]] = {
    ("parallel", "Alpaca"): (0.061, 0.098),
    ("parallel", "ShareGPT"): (0.162, 0.305),
    ("beam", "Alpaca"): (0.376, 0.552),
    ("beam", "ShareGPT"): (0.443, 0.663),
}
"""Of the blocks that would be held without sharing. The paper's text has the ends; that they are of 2 and of 6 is its
figure's."""
_RATES = {"Alpaca": 2.0, "ShareGPT": 0.3}
"""Requests a second, low enough that memory does not bind: what is shared does not depend on who else is there."""
_REQUESTS, _QUICK = 24, 6


def sharing_parts(quick: bool) -> int:
    """Of `sharing_rows`."""
    return len(_SAVED) * len(COUNTS[:1] if quick else COUNTS)


def sharing_rows(
    served: Served, workloads: dict[str, Workload], quick: bool, told: Progress
) -> Iterator[Row]:
    """With 2, 4 and 6 sequences a request; `quick`: with 2."""
    for (kind, data), ends in _SAVED.items():
        workload = msgspec.structs.replace(
            workloads[data], requests=_QUICK if quick else _REQUESTS, duration_s=None
        )
        for count in COUNTS[:1] if quick else COUNTS:
            told(f"{kind} {count}, {data}")
            asking = Asking(n=count) if kind == "parallel" else Asking(n=count, beam_width=count)
            done = holding(served, workload, rate=_RATES[data], asking=asking)
            low, high = {2: (ends[0], ends[0]), 6: (ends[1], ends[1])}.get(count, ends)
            row = Row(
                group=f"KV memory saved by sharing, OPT-13B, {data}",
                name=f"{count} samples" if kind == "parallel" else f"beam width {count}",
                unit="share",
                published=Published(low=low, high=high, where="section 6.3, figure 15", checked="text"),
                simulated=done.memory.sharing_saved,
            )
            yield row if row.agrees else msgspec.structs.replace(row, why=_why(kind, count, workload, data))


def _why(kind: Kind, count: int, workload: Workload, data: str) -> str:
    if kind == "beam":
        return (
            "How much of their answers beams share follows from the candidates' probabilities: here drawn, with a "
            "mean entropy of one nat; in the paper a model's."
        )
    prompt, answer = _mean(workload, "input"), _mean(workload, "output")
    share = (count - 1) * prompt / (count * (prompt + answer / 2))
    return (
        f"Samples share the prompt alone. With prompts of {prompt:.0f} and answers of {answer:.0f} tokens, half "
        f"written on average, that would be about {share:.0%} if all were equally long; in whole blocks and with "
        f"{data}'s spread, which is our choice, it is this."
    )


def _mean(workload: Workload, name: str) -> float:
    length = getattr(workload, name)
    part = length.parts[0]
    return clamped_mean(part.median, part.sigma, length.max)
