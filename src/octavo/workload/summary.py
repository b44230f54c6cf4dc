"""What a workload amounts to: rates, lengths, sharing. Knows requests, and nothing of a server."""

from __future__ import annotations

import itertools
import math
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from octavo.workload.request import Request

__all__ = ["PERCENTILES", "Spread", "Summary", "summarize"]

PERCENTILES = (10, 50, 90, 99)


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Of one kind of length, in tokens."""

    mean: float
    min: int
    p10: int
    p50: int
    p90: int
    p99: int
    max: int


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Of all requests of a workload."""

    requests: int
    sessions: int
    turns_mean: float
    followers: int
    """Requests that wait for another's answer; their times here are the earliest, so rates leave them out."""
    span_s: float
    """From the first arrival to the last, of requests that wait for no other."""
    rate: float | None
    """Arrivals a second over that span."""
    gap_cv: float | None
    """The gaps' deviation over their mean."""
    peak_rate: float | None
    """Of the busiest second."""
    input: Spread | None
    """None where a real text's tokens are not known."""
    output: Spread
    block_size: int
    blocks: int
    shared_blocks: int
    """Blocks of prompts that an earlier prompt had, at its start too: what an endless cache would find."""
    tenants: dict[str, int]
    priorities: dict[str, int]

    @property
    def hit_rate(self) -> float | None:
        """None without blocks."""
        return self.shared_blocks / self.blocks if self.blocks else None


def summarize(requests: Iterable[Request], *, block_size: int = 16, partial: bool = False) -> Summary:
    """Memory: 16 bytes a request, and some 80 for each different block. `partial`: a last block that is not full
    counts too, as in Mooncake's traces. ValueError without requests."""
    asked, said = array("q"), array("q")
    sessions, followers, blocks, shared = set(), 0, 0, 0
    seen: set[bytes] = set()
    tenants: Counter[str] = Counter()
    priorities: Counter[str] = Counter()
    seconds: Counter[int] = Counter()
    times = array("d")
    for request in requests:
        sessions.add(request.session)
        said.append(request.output_tokens)
        if request.input_tokens is not None:
            asked.append(request.input_tokens)
        for one in request.block_hashes(block_size, partial=partial):
            blocks += 1
            shared += one in seen
            seen.add(one)
        tenants[request.tenant or ""] += 1
        priorities[str(request.priority)] += 1
        if request.after is None:
            times.append(request.at_s)
            seconds[int(request.at_s)] += 1
        else:
            followers += 1
    if not said:
        raise ValueError("There are no requests.")
    span = times[-1] - times[0] if times else 0.0
    return Summary(
        requests=len(said),
        sessions=len(sessions),
        turns_mean=len(said) / len(sessions),
        followers=followers,
        span_s=span,
        rate=(len(times) - 1) / span if span else None,
        gap_cv=_cv([after - before for before, after in itertools.pairwise(times)]),
        peak_rate=float(max(seconds.values())) if span else None,
        input=_spread(sorted(asked)) if len(asked) == len(said) else None,
        output=_spread(sorted(said)),
        block_size=block_size,
        blocks=blocks,
        shared_blocks=shared,
        tenants={name: count for name, count in tenants.items() if name},
        priorities=dict(priorities),
    )


def _spread(values: Sequence[int]) -> Spread:
    p10, p50, p90, p99 = (values[min(len(values) - 1, len(values) * p // 100)] for p in PERCENTILES)
    mean = math.fsum(values) / len(values)
    return Spread(mean=mean, min=values[0], p10=p10, p50=p50, p90=p90, p99=p99, max=values[-1])


def _cv(gaps: Sequence[float]) -> float | None:
    if len(gaps) < 2 or not (mean := math.fsum(gaps) / len(gaps)):
        return None
    return math.sqrt(math.fsum((gap - mean) ** 2 for gap in gaps) / len(gaps)) / mean
