"""Whether a request is taken now: the server's queue, and what its key may use. Knows tokens and counts, no text.

All of it runs on the event loop, and between a check and its count nothing else does: however many requests come at
once, no limit is overdrawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.engine.client import EngineClient
from octavo.errors import CapacityError, Overloaded
from octavo.protocol.errors import RequestRefused
from octavo.sampling.params import SamplingParams
from octavo.server.access import Access
from octavo.server.allowance import Allowance, Bucket
from octavo.server.dialects import limit_headers
from octavo.server.keys import ALLOWANCE
from octavo.telemetry.metrics import Metrics

__all__ = ["TICKET", "Admission", "Cost", "Settlement", "Ticket", "keep_ticket"]

TICKET = "octavo.ticket"
"""Where a request's ASGI scope has its `Ticket`, once it is taken."""


class Cost(NamedTuple):
    """What a request may come to."""

    prompts: list[int]
    """Tokens of each."""
    sequences: int
    answer: int
    """Tokens of all sequences together, at most."""
    bounded: bool
    """Its client has said how many an answer may have."""
    attempts: float = 1.0
    """Sequences that are computed for one that is given."""

    @classmethod
    def of(cls, prompts: Sequence[Sequence[int]], params: SamplingParams, max_model_len: int) -> Cost:
        """`prompts` were checked against the capacity."""
        lengths = [len(prompt) for prompt in prompts]
        most = [max_model_len - length for length in lengths]
        if params.max_tokens is not None:
            most = [min(room, params.max_tokens) for room in most]
        return cls(
            lengths,
            len(lengths) * params.attempts,
            sum(most) * params.attempts,
            params.max_tokens is not None,
            params.attempts / params.n,
        )


class Ticket:
    """A request that was taken. What its answer's tokens may use is held until they come, or it ends."""

    def __init__(self, queue: _Queue, cost: Cost, allowance: Allowance | None, *, counted: bool) -> None:
        self._queue = queue
        self._waiting = dict(enumerate(cost.prompts))
        self._cost = cost
        self._allowance = allowance if counted else None
        self._tokens = None if allowance is None else allowance.tokens
        self._held = self._given = 0
        self._ended = False
        queue.tokens += sum(cost.prompts)
        if allowance is None:
            return
        if counted:
            allowance.open += 1
        if allowance.requests is not None:
            allowance.requests.use(1, held=0)
        if self._tokens is not None:
            prompt, needed = sum(cost.prompts), _needed(cost, self._tokens)
            self._tokens.hold(needed)
            self._tokens.use(prompt, held=prompt)
            self._held = needed - prompt

    def arrived(self, place: int, tokens: int) -> None:
        """So many tokens of an answer to the prompt of this number have come, or its vector."""
        self._queue.tokens -= self._waiting.pop(place, 0)
        self._given += tokens
        self._use(tokens)

    def end(self) -> None:
        """Its answer is complete, or nobody wants it any more. Calling it twice is harmless."""
        if self._ended:
            return
        self._ended = True
        self.settle()
        self._queue.tokens -= sum(self._waiting.values())
        if self._allowance is not None:
            self._allowance.open -= 1

    def settle(self) -> None:
        """No more tokens will come: what they did not need is given back."""
        if self._tokens is not None:
            self._use(round(self._given * (self._cost.attempts - 1)))
            self._tokens.give_back(self._held)
            self._tokens = None

    def _use(self, tokens: int) -> None:
        if self._tokens is not None and tokens:
            held = min(tokens, self._held)
            self._held -= held
            self._tokens.use(tokens, held=held)


class _Queue:
    """Prompt tokens of requests whose answer has not begun."""

    tokens = 0


class Admission:
    """Takes requests, or raises what keeps them out."""

    def __init__(self, client: EngineClient, metrics: Metrics) -> None:
        self._client = client
        self._metrics = metrics
        self._max_sequences: int | None = None
        self._max_tokens: int | None = None
        self._queue, self._slack = _Queue(), _Queue()

    def change(self, access: Access) -> None:
        """From now on these limits."""
        self._max_sequences = access.max_queued_requests
        self._max_tokens = access.max_queued_tokens

    def take(self, scope: Scope, cost: Cost, *, slack: bool, within: bool) -> Ticket:
        """Count a request. `slack`: it takes only what others leave. `within`: it comes from within the server, whose
        sender bounds how many there are: it finds room in every queue, and leaves half of what its key may use in a
        minute to others. Raises RequestRefused and CapacityError for what can never be taken, RequestRefused (429) and
        Overloaded for what can be later."""
        allowance: Allowance | None = scope.get(ALLOWANCE)
        if allowance is not None:
            self._check_key(allowance, cost, within=within)
        if not within:
            self._check_sequences(cost.sequences, slack=slack)
            self._check_tokens(sum(cost.prompts), slack=slack)
        ticket = Ticket(self._slack if slack else self._queue, cost, allowance, counted=not within)
        scope[TICKET] = ticket
        return ticket

    def _check_key(self, allowance: Allowance, cost: Cost, *, within: bool) -> None:
        limits, tokens = allowance.key.limits, allowance.tokens
        if tokens is not None:
            self._check_fits(cost, tokens)
        if not within and limits.max_requests is not None and allowance.open >= limits.max_requests:
            self._refuse(
                "key_concurrency",
                f"This API key may have {limits.max_requests} requests at once, and as many run; try again when one "
                "has ended.",
                1.0,
                within=within,
            )
        requests = allowance.requests
        if requests is not None and (wait_s := _wait_s(requests, 1, leave=within)):
            self._refuse(
                "key_requests",
                f"This API key may send {requests.per_minute} requests a minute, and has sent as many; try again in "
                f"{math.ceil(wait_s)} s.",
                wait_s,
                within=within,
            )
        if tokens is not None and (wait_s := _wait_s(tokens, needed := _needed(cost, tokens), leave=within)):
            self._refuse(
                "key_tokens",
                f"This API key may use {tokens.per_minute} tokens a minute, of which {tokens.remaining} are left, and "
                f"the request may take {needed} (prompt and longest answer); try again in {math.ceil(wait_s)} s, "
                "or ask for a shorter answer.",
                wait_s,
                within=within,
            )

    def _check_fits(self, cost: Cost, tokens: Bucket) -> None:
        prompt = sum(cost.prompts)
        most = prompt + (cost.answer if cost.bounded else min(cost.answer, 1))
        if most > tokens.per_minute:
            raise RequestRefused(
                400,
                f"The request may take {most} tokens ({prompt} of its prompt), and this API key may use "
                f"{tokens.per_minute} in a minute, so it can never be taken; shorten the prompt or ask for a shorter "
                "answer.",
                "request_too_large",
            )

    def _refuse(self, reason: str, message: str, wait_s: float, *, within: bool) -> None:
        if not within:  # else it comes back by itself, and nobody is turned away
            self._metrics.on_refused(reason)
        raise RequestRefused(429, message, "rate_limit_exceeded", retry_after_s=wait_s)

    def _check_sequences(self, sequences: int, *, slack: bool) -> None:
        """Those that take only what others leave are in nobody else's way, and count only for their like."""
        most = self._max_sequences
        if most is None:
            return
        slots, taken = self._client.info.capacity.max_running, self._client.open_sequences
        if not slack:
            taken -= self._client.slack_sequences
        if sequences > slots + most:
            raise CapacityError(
                f"The request asks for {sequences} sequences, and this server takes {slots + most} at most: "
                f"{slots} run and {most} wait; ask for fewer at once."
            )
        if taken + sequences - slots > most:
            queued = max(taken - slots, 0)
            self._metrics.on_refused("queue_full")
            raise Overloaded(
                f"{queued} sequences wait already, and this server lets {most} wait; try again in a moment."
            )

    def _check_tokens(self, tokens: int, *, slack: bool) -> None:
        """A request that nobody waits before is taken, however long it is: it waits for none."""
        waiting = self._queue.tokens + (self._slack.tokens if slack else 0)
        if self._max_tokens is not None and waiting and waiting + tokens > self._max_tokens:
            self._metrics.on_refused("queue_tokens")
            raise Overloaded(
                f"Prompts of {waiting} tokens wait already, and this server lets {self._max_tokens} wait, so this one "
                f"of {tokens} finds no room; try again in a moment."
            )


class Settlement:
    """ASGI middleware: a request's ticket ends with its answer, and the answer's head tells what its key has left."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        allowance: Allowance | None = scope.get(ALLOWANCE)
        told = send
        if allowance is not None and (allowance.requests is not None or allowance.tokens is not None):

            async def told(message: Message) -> None:
                if message["type"] == "http.response.start":
                    ticket: Ticket | None = scope.get(TICKET)
                    if ticket is not None and any(
                        name == b"content-length" for name, _ in message["headers"]
                    ):
                        ticket.settle()  # an answer that is there as a whole
                    own = limit_headers(allowance.requests, allowance.tokens, scope)
                    message = {**message, "headers": [*message["headers"], *own]}
                await send(message)

        try:
            await self._app(scope, receive, told)
        finally:
            if (ticket := scope.get(TICKET)) is not None:
                ticket.end()


def keep_ticket(scope: Scope) -> Callable[[], None]:
    """The request goes on when it is answered: its ticket ends when this is called, and not before."""
    ticket: Ticket = scope.pop(TICKET)
    return ticket.end


def _needed(cost: Cost, tokens: Bucket) -> int:
    """What is held for it. An answer whose length nobody bounds takes no more than there is in a minute: what it has
    above that, the key owes."""
    most = sum(cost.prompts) + cost.answer
    return most if cost.bounded else min(most, tokens.per_minute)


def _wait_s(bucket: Bucket, amount: int, *, leave: bool) -> float:
    """`leave`: with half of the bucket left over, or all of it there."""
    left = min(bucket.per_minute // 2, bucket.per_minute - amount) if leave else 0
    return bucket.wait_s(amount, leave=left)
