"""Whose turn it is: a workload's requests in the order of their times, where some wait for the answers to others.

Knows requests and times; neither a server nor a clock. Memory is that of what is open, of a little read ahead, and
eight bytes for each request that was answered.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterable, Iterator

from octavo.timing.clock import microseconds
from octavo.workload.request import Request

__all__ = ["Agenda"]


class Agenda:
    """Requests of a workload as `requests_of` gives them. Times are whole microseconds from the start."""

    def __init__(self, requests: Iterable[Request], *, clients: int | None = None) -> None:
        """`clients`: of a closed loop, whose later requests all wait for others: they are read as answers come, and
        not all at once in search of one that does not wait."""
        self._coming: Iterator[Request] = iter(requests)
        self._ahead = next(self._coming, None)
        self._clients = clients
        self._begun = 0
        """Requests read that wait for nobody."""
        self._due: list[tuple[int, int, Request]] = []
        """Those whose time is known: it, and the request's index."""
        self._waiting: dict[int, list[Request]] = {}
        """By the index of the request whose answer they wait for."""
        self._ended = array("q")
        """By index, when the answer ended; -1 where it has not."""

    @property
    def next_us(self) -> int | None:
        """When the next request is due, as far as that is known without another answer; None where none is."""
        while self._ahead is not None and self._reads_on():
            self._read()
        return self._due[0][0] if self._due else None

    @property
    def over(self) -> bool:
        """Every request was taken, or waits for an answer that has not come."""
        return self.next_us is None and self._ahead is None

    @property
    def waiting(self) -> int:
        """Requests that were read and wait for an answer."""
        return sum(map(len, self._waiting.values()))

    def take(self, now_us: int) -> Iterator[tuple[int, Request]]:
        """Every request that is due by now, with its time, in the order of these."""
        while (at := self.next_us) is not None and at <= now_us:
            at, _, request = heapq.heappop(self._due)
            yield at, request

    def answered(self, index: int, at_us: int) -> None:
        """The answer to a request ended, or failed: who waited for it has a time now."""
        if self._clients is not None:
            while self._ahead is not None and index not in self._waiting:
                self._read()
        if index >= len(self._ended):
            self._ended.extend([-1] * (index + 1 - len(self._ended)))
        self._ended[index] = at_us
        for request in self._waiting.pop(index, ()):
            self._put(at_us + microseconds(request.delay_s), request)

    def _reads_on(self) -> bool:
        """What comes next may be due before anything that is known."""
        assert self._ahead is not None
        if self._due and microseconds(self._ahead.at_s) > self._due[0][0]:
            return False
        return self._clients is None or self._begun < self._clients or self._ended_at(self._ahead) >= 0

    def _read(self) -> None:
        assert self._ahead is not None
        request, self._ahead = self._ahead, next(self._coming, None)
        if request.after is None:
            self._begun += 1
            self._put(microseconds(request.at_s), request)
        elif (ended := self._ended_at(request)) >= 0:
            self._put(ended + microseconds(request.delay_s), request)
        else:
            self._waiting.setdefault(request.after, []).append(request)

    def _ended_at(self, request: Request) -> int:
        after = request.after
        return self._ended[after] if after is not None and after < len(self._ended) else -1

    def _put(self, at_us: int, request: Request) -> None:
        heapq.heappush(self._due, (at_us, request.index, request))
