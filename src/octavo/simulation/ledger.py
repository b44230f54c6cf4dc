"""What the replicas of a cluster did, those that are no more among them, and for how long each was paid. Knows counters
and times, nothing of who serves."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from octavo.memory.accounting import Report
from octavo.simulation.replica import Replica

__all__ = ["Ledger", "Place", "merged"]


class Place(NamedTuple):
    """What one place of a cluster did, whichever engines served there."""

    busy_s: float
    """In steps."""
    paid_s: float
    """From decisions that somebody should serve here to when nobody did."""
    prompt_tokens: int
    generated_tokens: int
    """Counted by engines: what is computed again counts again."""
    hit_share: float | None
    """Of the prompts' tokens that a cache had; None where nothing was asked."""


class Ledger:
    """Counters of `count` places, each of which has had an engine or several after each other."""

    def __init__(self, count: int) -> None:
        self._gone = [dict[str, float]() for _ in range(count)]
        """Of each place: what engines that are no more had counted."""
        self._gone_accounts: list[tuple[Report, int]] = []
        self._paid_us = [0] * count
        self._since_us: list[int | None] = [None] * count
        self._read = (0, 0.0, 0, 0.0)
        """At the last reading: time, seconds in steps, microseconds paid, and what was said of how busy all were."""

    def pay(self, place: int, at_us: int) -> None:
        """From now on."""
        if self._since_us[place] is None:
            self._since_us[place] = at_us

    def release(self, place: int, at_us: int) -> None:
        """It is not paid for any more."""
        since_us = self._since_us[place]
        if since_us is not None:
            self._paid_us[place] += at_us - since_us
            self._since_us[place] = None

    def retire(self, place: int, replica: Replica) -> None:
        """Its engine ends, and what it counted is kept."""
        gone = self._gone[place]
        for name, value in _counters(replica).items():
            gone[name] = gone.get(name, 0) + value
        self._gone_accounts.append(_account(replica))
        replica.engine.close()

    def paid_us(self, place: int, at_us: int) -> int:
        since_us = self._since_us[place]
        return self._paid_us[place] + (at_us - since_us if since_us is not None else 0)

    def paid(self) -> int:
        """Places that are paid for now."""
        return sum(since_us is not None for since_us in self._since_us)

    def reports(self, replicas: Sequence[Replica]) -> list[tuple[Report, int]]:
        """What the memory of each engine was good for, and the prompts' tokens that it looked up."""
        return [*self._gone_accounts, *map(_account, replicas)]

    def places(self, replicas: Sequence[Replica], at_us: int) -> list[Place]:
        """What each did until now."""
        places = []
        for place, one in enumerate(self._totals(replicas)):
            asked = one["prefix_queried_tokens"]
            places.append(
                Place(
                    one["busy_s"],
                    self.paid_us(place, at_us) / 1e6,
                    int(one["prompt_tokens"]),
                    int(one["generated_tokens"]),
                    one["prefix_hit_tokens"] / asked if asked else None,
                )
            )
        return places

    def readings(
        self, replicas: Sequence[Replica], serving: Collection[int], held: int, at_us: int
    ) -> dict[str, float]:
        """By the names of octavo.bench.readings, of all together: KV use is the mean of those that serve, and the time
        in steps that of a replica that is paid for, in the mean. `held`: requests for whom nobody serves."""
        stats = [replicas[place].stats for place in serving]
        blocks = sum(one.blocks_total for one in stats)
        counted = self._totals(replicas)
        totals = {
            name: sum(one[name] for one in counted)
            for name in counted[0]
            if replicas[0].guesses or name not in ("drafted_tokens", "accepted_tokens")
        }
        return {
            **totals,
            "running": sum(one.running for one in stats),
            "waiting": sum(one.waiting for one in stats) + held,
            "kv_use": sum(one.blocks_used for one in stats) / blocks if blocks else 0.0,
            "busy_s": self._busy_s(totals["busy_s"], at_us),
        }

    def _totals(self, replicas: Sequence[Replica]) -> list[dict[str, float]]:
        return [
            {name: value + gone.get(name, 0) for name, value in _counters(replica).items()}
            for replica, gone in zip(replicas, self._gone, strict=True)
        ]

    def _busy_s(self, busy_s: float, at_us: int) -> float:
        """Grows in each second by the share of the replicas' time that was spent in steps; their number may change."""
        paid_us = sum(self.paid_us(place, at_us) for place in range(len(self._paid_us)))
        before_us, before_busy_s, before_paid_us, said = self._read
        if paid_us > before_paid_us:
            said += (busy_s - before_busy_s) * (at_us - before_us) / (paid_us - before_paid_us)
            self._read = (at_us, busy_s, paid_us, said)
        return said


def merged(prompts: dict[str, float], answers: dict[str, float], replicas: Sequence[int]) -> dict[str, float]:
    """Readings of two parts of a cluster, of so many replicas, as one: `prompts` are computed in the one, and `answers`
    in the other, whose count of prompts would be of what it received."""
    both = {name: value + answers.get(name, 0) for name, value in prompts.items()}
    both.update(
        {name: prompts[name] for name in prompts if name.startswith("prefix_") or name == "prompt_tokens"}
    )
    both["kv_use"] = answers["kv_use"]
    busy = zip((prompts["busy_s"], answers["busy_s"]), replicas, strict=True)
    both["busy_s"] = sum(seconds * count for seconds, count in busy) / sum(replicas)
    return both


def _counters(replica: Replica) -> dict[str, float]:
    stats = replica.stats
    return {
        "drafted_tokens": stats.draft_tokens,
        "accepted_tokens": stats.accepted_tokens,
        "prefix_queried_tokens": stats.prefix_queried_tokens,
        "prefix_hit_tokens": stats.prefix_hit_tokens,
        "preemptions": stats.preemptions,
        "prompt_tokens": stats.prompt_tokens,
        "generated_tokens": stats.generation_tokens,
        "steps": stats.steps,
        "step_tokens": replica.scheduler.counters.step_tokens,
        "busy_s": replica.busy_s,
    }


def _account(replica: Replica) -> tuple[Report, int]:
    return replica.engine.report(), replica.stats.prefix_queried_tokens
