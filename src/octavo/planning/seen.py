"""The load that a watched server had, as requests that can be simulated: lengths, times, what prompts share.

Token ids are made up, equal where the server's blocks were equal. Knows what was told, and no setting of the server.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from itertools import count

import msgspec
import numpy as np

from octavo.bench.record import Chunk, Exchange, Kind, Run, ServerSample
from octavo.bench.watched import Watched
from octavo.bench.window import Window
from octavo.errors import BenchError
from octavo.protocol.watch import Answered, Asked
from octavo.simulation.backend import TOKEN
from octavo.simulation.guessing import Guessing
from octavo.timing.clock import microseconds
from octavo.workload.request import Request

__all__ = ["Load", "guessing_in", "load_in", "reading_of"]

LEAST_ANSWERS = 10
"""Fewer requests that came and were answered tell nothing of the next."""
_SOON_S = 0.1
"""After an answer: a client of a closed loop has asked again."""
_CLOSED_SHARE = 0.9
_SEGMENTS = 8
"""Of the time, that a redrawn load is put together from."""
_ROUNDS = 6
"""That each client of a closed loop asks, at least."""
_CHARACTERS = 4


@dataclass
class Load:
    """Requests in the order of their times, those first that were there already."""

    requests: list[Request]
    shared: list[int]
    """Of each: tokens of its prompt that an earlier one has, too."""
    begun: int
    """How many were there already. Their `at_s` is 0, and what was computed of them is in their prompts."""
    free_tokens: int
    """That were computed then."""
    length_s: float
    warm: list[tuple[int, ...]]
    """Beginnings that had been computed before the watch: requests found them. Those that were used first come last."""
    clients: int | None
    """Of a closed loop; None where requests come whatever becomes of others."""
    run: Run
    """What became of those that came and were answered, as a bench would have recorded it."""
    seen: frozenset[int]
    """Indices of these."""
    hit_rate: float | None = None
    """Of prompt tokens, that were found computed."""
    answered: int = 0
    left: int = 0
    """Whose reader went before the end, or that failed."""
    facts: list[tuple[str, str]] = field(default_factory=list)

    @property
    def window(self) -> Window:
        return Window(start_us=0, end_us=microseconds(self.length_s), rule="the time that was watched")

    @property
    def rate(self) -> float:
        """Requests a second that came."""
        return (len(self.requests) - self.begun) / self.length_s

    def drawn(self, seed: int) -> list[Request]:
        """Others like them: stretches of the time, in another order and some of them twice. 0: as they were."""
        if not seed:
            return self.requests if self.clients is None else _in_turns(self.requests, self.clients)
        chance = random.Random(seed)
        fresh = count(1 << 30)
        before, rest = self.requests[: self.begun], list(range(self.begun, len(self.requests)))
        picked: list[tuple[float, int]] = []
        if self.clients is not None:
            while len(picked) < max(_ROUNDS * self.clients, len(rest)):
                chance.shuffle(rest)
                picked += [(0.0, place) for place in rest]
            before = []
        else:
            each = self.length_s / _SEGMENTS
            for slot in range(_SEGMENTS):
                start = chance.uniform(0, self.length_s - each)
                picked += [
                    (slot * each + self.requests[place].at_s - start, place)
                    for place in rest
                    if start <= self.requests[place].at_s < start + each
                ]
        found, used = list(before), set[int]()
        for at_s, place in sorted(picked) if self.clients is None else picked:
            one = self.requests[place]
            ids = one.ids or ()
            if place in used:  # the same again, but nobody has its own part computed
                own = len(ids) - self.shared[place]
                ids = (*ids[: self.shared[place]], *(next(fresh) for _ in range(own)))
            used.add(place)
            found.append(
                msgspec.structs.replace(one, index=len(found), session=len(found), at_s=at_s, ids=ids)
            )
        return found if self.clients is None else _in_turns(found, self.clients)


def load_in(watched: Watched) -> Load:
    """Raises BenchError where too little was seen."""
    asked = sorted(watched.asked.values(), key=_place)
    done = {one.id: watched.answered.get(one.id) for one in asked}
    good = [one for one in asked if one.at_s >= 0 and _whole(done[one.id])]
    if len(good) < LEAST_ANSWERS:
        came = sum(one.at_s >= 0 for one in asked)
        raise BenchError(
            f"{came} requests came to {watched.url} in {watched.length_s:.0f} s, and {len(good)} of them were "
            f"answered; {LEAST_ANSWERS} are needed to tell anything: watch while it is used, or for longer (--for)."
        )
    made = _Requests(watched, _longest_guess(good, done))
    for one in asked:
        made.add(one, done[one.id])
    clients = _closed(watched)
    run = _run(watched, made.places, clients)
    prompts = sum(one.prompt_tokens for one in good)
    cached = sum(ended.cached_tokens for one in good if (ended := done[one.id]) is not None)
    return Load(
        requests=made.requests,
        shared=made.shared,
        begun=made.begun,
        free_tokens=made.free_tokens,
        length_s=watched.length_s,
        warm=made.warm[::-1],
        clients=clients,
        run=run,
        seen=frozenset(one.index for one in run.exchanges),
        hit_rate=cached / prompts if prompts else None,
        answered=len(good),
        left=sum(ended is not None and not _whole(ended) for ended in done.values()),
    )


def guessing_in(watched: Watched) -> Guessing | None:
    """How often guesses were right; None where nothing was guessed."""
    if len(watched.gauges) < 2:
        return None
    first, last = watched.gauges[0].stats, watched.gauges[-1].stats
    drafts = last.drafts - first.drafts
    tokens = last.generation_tokens - first.generation_tokens
    if drafts <= 0 or tokens <= 0:
        return None
    reached = _grown(first.reached_at, last.reached_at)
    right = _grown(first.accepted_at, last.accepted_at)
    places = next((place for place, tried in enumerate(reached) if tried <= 0), len(reached))
    chances = [min(right[place] / reached[place], 1.0) for place in range(places)]
    goes_on = [min(reached[place] / max(right[place - 1], 1), 1.0) for place in range(1, places)]
    steps = max(tokens - (last.accepted_tokens - first.accepted_tokens), 1)
    assert watched.server is not None
    return Guessing(
        chances=(*chances, 0.0),
        drafting=min(drafts / steps, 1.0),
        goes_on=tuple(goes_on),
        tokens=watched.server.speculation_tokens,
    )


def _grown(first: tuple[int, ...], last: tuple[int, ...]) -> list[int]:
    return [now - before for before, now in zip((*first, *[0] * len(last)), last, strict=False)]


def reading_of(watched: Watched) -> list[ServerSample]:
    """Gauges by the names of octavo.bench.readings."""
    samples, busy_s, place = [], 0.0, 0
    for gauge in watched.gauges:
        while place < len(watched.steps) and watched.steps[place].ended_s <= gauge.at_s:
            busy_s += watched.steps[place].ended_s - watched.steps[place].began_s
            place += 1
        one = gauge.stats
        values = {
            "running": float(one.running),
            "waiting": float(one.waiting),
            "kv_use": one.blocks_used / one.blocks_total if one.blocks_total else 0.0,
            "preemptions": float(one.preemptions),
            "prefix_queried_tokens": float(one.prefix_queried_tokens),
            "prefix_hit_tokens": float(one.prefix_hit_tokens),
            "busy_s": busy_s,
        }
        samples.append(ServerSample(microseconds(max(gauge.at_s, 0.0)), values))
    return samples


class _Requests:
    """Requests as they are made one after another."""

    def __init__(self, watched: Watched, guess: int) -> None:
        """`guess`: tokens of an answer that has not ended."""
        assert watched.server is not None
        self.requests: list[Request] = []
        self.shared: list[int] = []
        self.places: dict[int, int] = {}
        """By the server's number of a request, its index here."""
        self.begun = self.free_tokens = 0
        self.warm: list[tuple[int, ...]] = []
        self._block_size = watched.server.block_size
        self._guess = guess
        self._fresh = count(1)
        self._known: dict[int, list[int]] = {}
        """By a block's id: the tokens of a sequence that begins so."""

    def add(self, one: Asked, ended: Answered | None) -> None:
        place = next((at for at in range(len(one.blocks) - 1, -1, -1) if one.blocks[at] in self._known), -1)
        shared = (place + 1) * self._block_size
        ids = self._known[one.blocks[place]][:shared] if shared else []
        ids += [next(self._fresh) for _ in range(one.prompt_tokens - shared)]
        for block in one.blocks:
            self._known.setdefault(block, ids)
        if ended is not None and one.at_s >= 0 and ended.cached_tokens > shared:
            shared = ended.cached_tokens
            self.warm.append(tuple(ids[:shared]))
        if ended is None:
            answer = max(self._guess, one.had + 1)
            if one.max_tokens is not None:
                answer = min(answer, max(one.max_tokens, one.had + 1))
        else:
            answer = ended.output_tokens // one.answers
            for block in ended.blocks:
                self._known.setdefault(block, [*ids, *[TOKEN] * answer])
            if not answer:
                return  # it left before it had anything
        index = len(self.requests)
        self.places[one.id] = index
        if one.at_s < 0:
            self.begun += one.answers
            if one.had:
                ids = [*ids, *[TOKEN] * one.had]
                self.free_tokens += len(ids)
                answer = max(answer - one.had, 1)
        for _ in range(one.answers):
            self.requests.append(
                Request(
                    index=len(self.requests),
                    at_s=_place(one)[0],
                    tenant=str(one.tenant),
                    priority=one.priority,
                    session=len(self.requests),
                    ids=tuple(ids),
                    output_tokens=max(answer, 1),
                )
            )
            self.shared.append(shared)


def _place(one: Asked) -> tuple[float, float, int]:
    """Those that were being answered come first, and then those that waited."""
    begins_s = one.at_s if one.at_s >= 0 else 0.0 if one.had else 1e-6
    return begins_s, one.at_s, one.id


def _whole(ended: Answered | None) -> bool:
    return ended is not None and ended.reason in ("stop", "length") and ended.output_tokens > 0


def _longest_guess(good: list[Asked], done: dict[int, Answered | None]) -> int:
    """Tokens of an answer that was not seen to end: as the longer ones of those that were."""
    lengths = [ended.output_tokens for one in good if (ended := done[one.id]) is not None]
    return math.ceil(float(np.percentile(lengths, 75)))


def _closed(watched: Watched) -> int | None:
    """How many clients wait for their answers before they ask again; None where it does not look so."""
    ends = sorted(one.end_s for one in watched.answered.values())
    times = sorted(one.at_s for one in watched.asked.values())
    if not ends:
        return None
    begins = [at for at in times if at > ends[0]]
    if len(begins) < LEAST_ANSWERS:
        return None
    at_once = [_upto(times, at) - _upto(ends, at) for at in begins]
    most = int(np.median(at_once))
    alike = sum(abs(one - most) <= max(1, 0.1 * most) for one in at_once) / len(at_once)
    unused, soon = 0, 0
    for at in begins:
        while unused < len(ends) and ends[unused] < at - _SOON_S:
            unused += 1
        if unused < len(ends) and ends[unused] <= at:
            soon += 1
            unused += 1
    return most if alike >= _CLOSED_SHARE and soon >= _CLOSED_SHARE * len(begins) else None


def _upto(times: list[float], at: float) -> int:
    return int(np.searchsorted(times, at, side="right"))


def _in_turns(requests: list[Request], clients: int) -> list[Request]:
    """A closed loop's: each but the first ones waits for the one `clients` before it."""
    return [
        one
        if place < clients
        else msgspec.structs.replace(one, index=place, after=place - clients, delay_s=0.0)
        for place, one in enumerate(
            msgspec.structs.replace(one, index=place, at_s=0.0, after=None)
            for place, one in enumerate(requests)
        )
    ]


def _run(watched: Watched, places: dict[int, int], clients: int | None) -> Run:
    """Of requests that came and were answered in the time."""
    exchanges = []
    for number, index in places.items():
        one, ended = watched.asked[number], watched.answered.get(number)
        if one.at_s < 0 or one.answers > 1 or ended is None or not _whole(ended):
            continue
        begin_us = microseconds(one.at_s)
        chunks = [
            Chunk(max(microseconds(at_s), begin_us), tokens, tokens * _CHARACTERS, Kind.ANSWER)
            for at_s, tokens in ended.chunks
        ]
        end_us = max([microseconds(ended.end_s), begin_us, *(chunk.at_us for chunk in chunks)])
        exchanges.append(
            Exchange(
                index=index,
                session=index,
                intended_us=begin_us,
                sent_us=begin_us,
                end_us=end_us,
                status=200,
                wanted_output=ended.output_tokens,
                input_tokens=one.prompt_tokens,
                cached_tokens=ended.cached_tokens,
                output_tokens=ended.output_tokens,
                counted="usage",
                finish_reason=ended.reason,
                chunks=chunks,
            )
        )
    return Run(
        seed=0,
        clients=clients,
        began="1970-01-01T00:00:00Z",
        end_us=max((one.end_us for one in exchanges), default=0),
        exchanges=exchanges,
        server=reading_of(watched),
    )
