"""An engine without paging, admission by need, or preemption: a plain generation loop behind a queue, and how it dies.

It admits by what memory holds now: a request is taken in as long as its prompt's K and V still fit below a share of
the memory. What those that run will yet write nobody counts. Where they pass what there is, an allocation fails, the
process dies, and all that ran is lost; the queue waits for the next process. So its only protection is the memory that
the share leaves empty. In all else it is better than such loops are: it batches continuously, pads nothing, and a
cache that grows takes no copy. Knows requests and a pace, no scheduler.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable
from itertools import count

import msgspec

from octavo.simulation.pace import Pace
from octavo.simulation.prompts import tokens_of
from octavo.timing.clock import microseconds
from octavo.timing.step_time import StepLoad
from octavo.workload.agenda import Agenda
from octavo.workload.request import Request

__all__ = ["NaiveEngine", "Outcome", "largest_safe_share"]


class Outcome(msgspec.Struct, kw_only=True):
    """What became of a workload."""

    answered: int = 0
    lost: int = 0
    """That ran when the process died."""
    refused: int = 0
    """Whose prompt alone is above the share, or which alone passes the memory: no engine of this size can have them."""
    crashes: int = 0
    seconds: float = 0.0
    """From the start to the last end, restarts too."""
    most_tokens: int = 0
    """Stored at once."""

    @property
    def requests(self) -> int:
        return self.answered + self.lost + self.refused

    @property
    def lost_share(self) -> float:
        """Of all requests."""
        return self.lost / self.requests if self.requests else 0.0

    @property
    def crashes_per_hour(self) -> float:
        return 3600 * self.crashes / self.seconds if self.seconds else 0.0


def largest_safe_share(capacity_tokens: int, prompt_tokens: int, output_tokens: int) -> float:
    """Below which share of the memory for K and V requests of one length may be admitted without ever passing it: with
    m at once they hold m prompts at first and m · (prompt + output - 1) at last, and one more prompt is one too many.
    """
    most = capacity_tokens // (prompt_tokens + output_tokens - 1)
    return min((most + 1) * prompt_tokens / capacity_tokens, 1.0)


class NaiveEngine:
    """One process after the other."""

    def __init__(
        self, pace: Pace, *, capacity_tokens: int, admit_tokens: int, restart_s: float = 30.0
    ) -> None:
        """`capacity_tokens`: whose K and V the memory holds beside the weights. `admit_tokens`: of those, up to how
        many a prompt may fill. `restart_s`: from a process's end until the next one serves."""
        self._pace = pace
        self._capacity, self._admit = capacity_tokens, admit_tokens
        self._restart_us = microseconds(restart_s)

    def run(self, requests: Iterable[Request], *, clients: int | None = None) -> Outcome:
        """Until every request is answered, lost or refused. A lost one is not asked again; what waits for its answer
        comes all the same."""
        outcome, agenda = Outcome(), Agenda(requests, clients=clients)
        queue: deque[Request] = deque()
        running: list[tuple[int, int, Request]] = []
        """A heap: the step that brings each one's last token, a number, and whose it is."""
        numbers, now_s, step, stored = count(), 0.0, 0, 0
        while True:
            next_us = agenda.next_us
            if not (running or queue):
                if next_us is None:
                    break
                now_s = max(now_s, next_us / 1e6)
            for at_us, request in agenda.take(microseconds(now_s)):
                if self._never(request):
                    outcome.refused += 1
                    agenda.answered(request.index, at_us)
                else:
                    queue.append(request)
            if not (running or queue):
                continue
            step += 1
            load = StepLoad(len(running), len(running), stored + len(running), 0)
            wanted = stored + len(running)
            while queue and stored + tokens_of(queue[0]) <= self._admit:
                request = queue.popleft()
                stored += tokens_of(request)
                wanted += tokens_of(request)
                load = load.with_chunk(0, tokens_of(request), 1)
                heapq.heappush(running, (step + request.output_tokens - 1, next(numbers), request))
            if wanted > self._capacity:
                outcome.crashes += 1
                outcome.lost += len(running)
                for _, _, request in running:
                    agenda.answered(request.index, microseconds(now_s))
                running.clear()
                stored = 0
                now_s += self._restart_us / 1e6
                outcome.seconds = now_s
                continue
            stored = wanted
            outcome.most_tokens = max(outcome.most_tokens, stored)
            now_s += self._pace.seconds(load)
            outcome.seconds = now_s
            while running and running[0][0] <= step:
                _, _, request = heapq.heappop(running)
                stored -= tokens_of(request) + request.output_tokens - 1
                outcome.answered += 1
                agenda.answered(request.index, microseconds(now_s))
        return outcome

    def _never(self, request: Request) -> bool:
        prompt = tokens_of(request)
        return prompt > self._admit or prompt + request.output_tokens - 1 > self._capacity
