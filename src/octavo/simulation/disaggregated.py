"""Prompts are computed by some replicas and answers by others, and K and V go from the ones to the others.

After DistServe (Zhong et al., OSDI 2024) and Splitwise (Patel et al., ISCA 2024). Knows two clusters and a link, no
workload.
"""

from __future__ import annotations

import heapq
from typing import Annotated

import msgspec

from octavo.engine.messages import Add
from octavo.scheduling.profiles import Targets
from octavo.scheduling.settings import SchedulerConfig
from octavo.simulation.account import account
from octavo.simulation.cluster import Cluster
from octavo.simulation.ledger import Place, merged
from octavo.simulation.replica import Progress
from octavo.timing.clock import microseconds

__all__ = ["Disaggregated", "Link", "receiving"]


class Link(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Between replicas: each that computes prompts has one, and sends one prompt after another."""

    bytes_s: Annotated[float, msgspec.Meta(gt=0)]
    token_bytes: Annotated[float, msgspec.Meta(gt=0)]
    """K and V of one token."""
    latency_s: Annotated[float, msgspec.Meta(ge=0)] = 0.001
    """Until the first byte is there; the next prompt need not wait for it."""

    def sending_s(self, tokens: int) -> float:
        """How long it is busy with so many tokens."""
        return tokens * self.token_bytes / self.bytes_s


def receiving(config: SchedulerConfig) -> SchedulerConfig:
    """Settings of a replica that gets K and V from others: what it receives is no work, so a step's budget and targets
    do not hold it back."""
    most = max(config.limits.max_step_tokens, config.limits.max_model_len + config.limits.max_slots)
    limits = msgspec.structs.replace(config.limits, max_step_tokens=most)
    return msgspec.structs.replace(
        config, limits=limits, budget_tokens=most, targets=Targets(), times_steps=False
    )


class Disaggregated:
    """What a `Cluster` is, made of two. The first token comes from where the prompt was computed; the prompt's K and V
    are sent then, whole, and the answer goes on when they have arrived. A request of one token stays where it began."""

    def __init__(self, prompts: Cluster, answers: Cluster, link: Link) -> None:
        """`answers`: replicas with the settings of `receiving`, that receive."""
        self._prompts = prompts
        self._answers = answers
        self._link = link
        self.capacity = prompts.capacity
        self._asked: dict[str, Add] = {}
        """Those whose first token is to come."""
        self._free_us = [0] * len(prompts.replicas)
        """When each link has sent what it was given."""
        self._sent: list[tuple[int, int, Add]] = []
        """On their way: when they arrive."""
        self._number = 0
        self.sent_bytes = 0.0
        self._progress: list[Progress] = []

    @property
    def clusters(self) -> tuple[Cluster, Cluster]:
        return self._prompts, self._answers

    @property
    def next_us(self) -> int | None:
        """As of a `Cluster`."""
        found = [at_us for one in self.clusters if (at_us := one.next_us) is not None]
        return min(found, default=None)

    @property
    def event_us(self) -> int | None:
        """When K and V of a prompt arrive next."""
        return self._sent[0][0] if self._sent else None

    @property
    def holds(self) -> bool:
        return bool(self._sent)

    def enter(self, add: Add, at_us: int) -> None:
        """A request comes at this time; times never go back. It asks for one answer."""
        if add.params.attempts > 1 or add.params.beam_width:
            raise ValueError("a request with several answers cannot be sent on")
        if add.params.max_tokens != 1:
            self._asked[add.request_id] = add
            first = msgspec.structs.replace(
                add.params, max_tokens=1, min_tokens=min(add.params.min_tokens, 1)
            )
            add = msgspec.structs.replace(add, params=first)
        self._prompts.enter(add, at_us)

    def advance(self) -> None:
        """As of a `Cluster`."""
        first = self.next_us
        if first is None:
            return
        if self._prompts.next_us == first:
            self._prompts.advance()
            self._send_on()
        else:
            self._answers.advance()

    def happen(self) -> None:
        """K and V of a prompt are there."""
        at_us, _, add = heapq.heappop(self._sent)
        self._answers.enter(add, at_us)

    def catch_up(self, until_us: int) -> None:
        for one in self.clusters:
            one.catch_up(until_us)
        self._send_on()

    def take_progress(self) -> list[Progress]:
        self._send_on()
        progress = [*self._progress, *self._answers.take_progress()]
        self._progress = []
        return progress

    def _send_on(self) -> None:
        """Answers that have begun and are to be longer."""
        for progress in self._prompts.take_progress():
            items = []
            for item in progress.items:
                if item.finish_reason == "length" and (add := self._asked.pop(item.request_id, None)):
                    self._send(add, tuple(one.token for one in item.samples), progress)
                    item = msgspec.structs.replace(item, finish_reason=None)
                elif item.finish_reason is not None:
                    self._asked.pop(item.request_id, None)
                items.append(item)
            self._progress.append(msgspec.structs.replace(progress, items=tuple(items)))

    def _send(self, add: Add, begun: tuple[int, ...], progress: Progress) -> None:
        tokens = len(add.prompt)
        place = progress.place
        ended_us = microseconds(progress.ends_s[-1])
        sends_us = max(ended_us, self._free_us[place])
        self._free_us[place] = sends_us + microseconds(self._link.sending_s(tokens))
        self.sent_bytes += tokens * self._link.token_bytes
        self._number += 1
        arrives_us = self._free_us[place] + microseconds(self._link.latency_s)
        heapq.heappush(self._sent, (arrives_us, self._number, msgspec.structs.replace(add, outputs=(begun,))))

    def account(self) -> dict[str, float]:
        """As of a `Cluster`, of all replicas; but hits are those of who computes prompts."""
        prompts, answers = (one.reports() for one in self.clusters)
        queried = [*(tokens for _, tokens in prompts), *(0 for _ in answers)]
        return account([report for report, _ in (*prompts, *answers)], queried)

    def places(self, at_us: int) -> list[Place]:
        """What the replicas did until now: first those of prompts."""
        received = (one._replace(prompt_tokens=0, hit_share=None) for one in self._answers.places(at_us))
        return [*self._prompts.places(at_us), *received]

    def readings(self, at_us: int) -> dict[str, float]:
        """As of a `Cluster`, of all replicas; prompts count where they are computed, and KV use is that of who writes
        answers: who computes prompts keeps them a moment."""
        prompts, answers = (one.readings(at_us) for one in self.clusters)
        several = [len(one.replicas) for one in self.clusters]
        return merged(prompts, answers, several)
