"""A model without weights that checks the contract of plans: its KV memory holds token ids, and every token that is
computed requires that the blocks hold exactly the sequence's history. So a wrong block, a missed copy or a stale slot
fails at once, and not as a strange answer."""

from __future__ import annotations

import hashlib
import os
import random
import struct
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from octavo.backends.base import ChoiceRule, Limits, Plan, Samples, TokenSample
from octavo.engine.carrier import Carrier
from octavo.engine.engine import Engine
from octavo.engine.messages import EngineInfo
from octavo.engine.steplog import StepLog
from octavo.memory.disk import DiskCache, News
from octavo.sampling.params import SamplingParams
from octavo.scheduling.inputs import Add, Service
from octavo.scheduling.outputs import SequenceOutput
from octavo.scheduling.scheduler import Scheduler, SchedulerConfig
from octavo.text.vocabulary import Vocabulary
from octavo.timing.clock import ManualClock

EMPTY = -1
FETCHES = 16
"""Blocks that are asked of a disk at once."""
END = 256
"""The fake vocabulary: 256 bytes, then one end token."""

VOCABULARY = Vocabulary([bytes([b]) for b in range(256)] + [b"<end>"], {END})

Script = Callable[[tuple[int, ...], ChoiceRule], int]


def hashed(history: tuple[int, ...], rule: ChoiceRule) -> int:
    """A token that depends on the whole history and the seed, and now and then ends the sequence."""
    digest = hashlib.blake2b(repr((history, rule.seed)).encode(), digest_size=4).digest()
    value = int.from_bytes(digest, "little")
    return END if value % 41 == 0 else value % 256


class ScriptedBackend:
    """Chooses `script(history, rule)`; a log-probability is a function of history and token."""

    name = "scripted"
    invariant = True
    arithmetic_id = "scripted"

    def __init__(self, limits: Limits, script: Script = hashed, groups: int = 1) -> None:
        self.limits = limits
        self.script = script
        self.plans: list[Plan] = []
        self._kv = [[[EMPTY] * limits.block_size for _ in range(limits.num_blocks)] for _ in range(groups)]
        self._history: dict[int, list[int]] = {}
        self._tables: dict[int, list[list[int]]] = {}
        self._rules: dict[int, ChoiceRule] = {}
        self._pooling: dict[int, str | None] = {}
        self._sums: dict[int, tuple[int, float]] = {}
        self._last: list[int] = []
        self._ready: dict[int, Samples] = {}
        self.closed = False

    def launch(self, plan: Plan) -> object:
        decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(plan), type=Plan)
        assert decoded == plan, "a plan is data"
        self.plans.append(plan)
        assert plan.rows and plan.tokens <= self.limits.max_step_tokens
        for opened in plan.opens:
            assert 0 <= opened.slot < self.limits.max_slots
            self._history[opened.slot] = list(opened.history)
            self._tables[opened.slot] = [list(table) for table in opened.tables]
            self._rules[opened.slot] = opened.rule
            self._pooling[opened.slot] = opened.pooling
            self._sums[opened.slot] = (0, 0.0)
        for copy in plan.copies:
            kv = self._kv[copy.group]
            kv[copy.target] = list(kv[copy.source])
        assert len({row.slot for row in plan.rows}) == len(plan.rows), "a slot has two rows"
        size = self.limits.block_size
        for row in plan.rows:
            history = self._history[row.slot]
            end = row.start + row.count
            assert row.count > 0 and row.start <= len(history)
            known = end - len(row.tokens)
            assert known <= len(history), "history has a gap"
            if row.tokens:
                del history[known:]  # drafts that were wrong
            history += [token if token >= 0 else self._last[-token - 1] for token in row.tokens]
            assert end <= len(history) <= self.limits.max_model_len
            for group, (at, blocks) in enumerate(zip(row.tables_at, row.blocks, strict=True)):
                table = self._tables[row.slot][group]
                assert at <= len(table)
                table[at:] = blocks
            if self._pooling[row.slot] == "mean":
                summed, total = self._sums[row.slot]
                assert summed == row.start and end <= self._rules[row.slot].prompt_tokens, "a mean has a gap"
                for position in range(row.start, end):
                    total += hidden_of(tuple(history[: position + 1]))
                self._sums[row.slot] = (end, total)
            for group, table in enumerate(self._tables[row.slot]):
                for position in range(row.start, end):
                    self._kv[group][table[position // size]][position % size] = history[position]
        # After all writes, as on a real backend: neighbours must not have written over it.
        for row in plan.rows:
            history, end = self._history[row.slot], row.start + row.count
            for group, table in enumerate(self._tables[row.slot]):
                stored = [self._kv[group][table[p // size]][p % size] for p in range(end)]
                assert stored == history[:end], f"slot {row.slot} reads KV that is not its own"
        return plan

    def sample(self, handle: object, masks: Sequence[NDArray[np.int32] | None] | None = None) -> None:
        assert isinstance(handle, Plan)
        samples = []
        assert masks is None or len(masks) == len(handle.samples)
        for wanted, mask in zip(handle.samples, masks or [None] * len(handle.samples), strict=True):
            row = handle.rows[wanted.row]
            assert 0 <= wanted.offset < row.count
            position = row.start + wanted.offset
            history = tuple(self._history[wanted.slot][: position + 1])
            assert history == tuple(self._history[row.slot][: position + 1])
            rule = self._rules[wanted.slot]
            if wanted.target < 0 and (pooling := self._pooling[wanted.slot]):
                assert position + 1 == rule.prompt_tokens
                summed, total = self._sums[wanted.slot]
                vector = vector_of(total / summed if pooling == "mean" else hidden_of(history))
                samples.append(TokenSample(0, vector=vector))
                continue
            token = wanted.target if wanted.target >= 0 else self.script(history, rule)
            if mask is not None:
                token = first_allowed(token, mask)
            wants = wanted.target >= 0 or rule.logprobs >= 0
            top: tuple[tuple[int, float], ...] = ()
            if wanted.target < 0 and rule.logprobs > 0:
                ranked = sorted((-logprob_of(history, one), one) for one in range(END + 1))
                top = tuple((one, -negative) for negative, one in ranked[: rule.logprobs])
            samples.append(TokenSample(token, logprob_of(history, token) if wants else None, top))
        self._last = [sample.token for sample in samples]
        self._ready[handle.step] = tuple(samples)

    def collect(self, handle: object) -> Samples:
        assert isinstance(handle, Plan)
        assert next(iter(self._ready)) == handle.step, "collected out of order"
        return self._ready.pop(handle.step)

    def read_block(self, group: int, block: int) -> bytes:
        return array("i", self._kv[group][block]).tobytes()

    def write_block(self, group: int, block: int, data: bytes) -> None:
        self._kv[group][block] = list(array("i", data))
        assert len(self._kv[group][block]) == self.limits.block_size

    def close(self) -> None:
        self.closed = True


class FakeDisk:
    """`DiskCache` without files and threads: it answers some steps later, holds `most` blocks, and loses some."""

    def __init__(self, seed: int = 0, most: int = 1_000_000, losses: float = 0.0, delay: float = 0.0) -> None:
        self.held: dict[bytes, bytes] = {}
        """The least recently used first."""
        self.asked: list[bytes] = []
        self.stored = 0
        self.stuck = False
        self._random = random.Random(seed)
        self._most, self._losses, self._delay = most, losses, delay
        self._known: list[bytes] = []
        self._gone: list[bytes] = []

    def restart(self) -> FakeDisk:
        """What the next process finds."""
        self._known, self._gone = list(self.held), []
        self.asked.clear()
        return self

    @property
    def used_bytes(self) -> int:
        return sum(map(len, self.held.values()))

    @property
    def fetching(self) -> bool:
        return bool(self.asked)

    @property
    def full(self) -> bool:
        return self._random.random() < self._losses

    def store(self, key: bytes, data: bytes) -> None:
        assert self.held.get(key, data) == data, "a name means two things"
        self.stored += key not in self.held
        self.held[key] = data
        while len(self.held) > self._most:
            self._gone.append(next(iter(self.held)))
            del self.held[self._gone[-1]]

    def fetch(self, key: bytes) -> None:
        assert key not in self.asked, "asked twice"
        self.asked.append(key)

    def touch(self, key: bytes) -> None:
        if key in self.held:
            self.held[key] = self.held.pop(key)

    def drop(self, key: bytes) -> None:
        self._gone.append(key)

    def take_news(self) -> News | None:
        news = News(self._known, {}, self._gone)
        self._known, self._gone = [], []
        while self.asked and not self.stuck and self._random.random() >= self._delay:
            key = self.asked.pop(0)
            if self._random.random() < self._losses:
                self.held.pop(key, None)
            if key in self.held:
                news.fetched[key] = self.held[key]
            else:
                news.gone.append(key)
        return news if any(news) else None

    def wait_for_scan(self, timeout_s: float) -> None:
        pass

    def wait(self, timeout_s: float) -> None:
        pass

    def close(self, patience_s: float) -> None:
        pass


def hidden_of(history: tuple[int, ...]) -> float:
    """A hidden state of width 1."""
    digest = hashlib.blake2b(repr(("hidden", history)).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") / 2**32


def vector_of(value: float) -> bytes:
    return struct.pack("<f", value)


def first_allowed(token: int, mask: NDArray[np.int32]) -> int:
    """`token`, or the next one that the mask allows, in a circle; −1 if it allows none."""
    assert mask.shape == (-(-(END + 1) // 32),) and mask.dtype == np.int32
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")[: END + 1]
    allowed = np.flatnonzero(np.roll(bits, -token))
    return (token + int(allowed[0])) % (END + 1) if len(allowed) else -1


def logprob_of(history: tuple[int, ...], token: int) -> float:
    digest = hashlib.blake2b(repr((history, token)).encode(), digest_size=2).digest()
    return -int.from_bytes(digest, "little") / 4096


def limits(**changes: int) -> Limits:
    """Small sizes, changed by name."""
    sizes = {"num_blocks": 64, "block_size": 16, "max_slots": 16, "max_step_tokens": 64, "max_model_len": 256}
    return Limits(**{**sizes, **changes})


def scripted_info(scheduler: Scheduler) -> EngineInfo:
    """What an engine without a model says of itself."""
    limits = scheduler.limits
    return EngineInfo(
        model="scripted",
        backend="scripted",
        invariant=True,
        arithmetic_id="scripted",
        capacity=scheduler.capacity,
        num_blocks=limits.num_blocks,
        block_size=limits.block_size,
        block_bytes=0,
        max_step_tokens=limits.max_step_tokens,
        kv_dtype="fp32",
        threads=1,
        pid=os.getpid(),
    )


def make_engine(
    sizes: Limits | None = None,
    script: Script = hashed,
    depth: int = 0,
    groups: int = 1,
    log: str | None = None,
    disk: FakeDisk | DiskCache | None = None,
    speculator: Callable[[Scheduler], Any] | None = None,
    **settings: Any,
) -> Engine:
    """A real engine and scheduler over a scripted backend, on a manual clock. `settings`: of SchedulerConfig."""
    sizes = sizes or limits()
    config = SchedulerConfig(sizes, groups, (END,), disk_fetches=FETCHES if disk else 0, **settings)
    scheduler = Scheduler(config, VOCABULARY)
    info = scripted_info(scheduler)
    steps = StepLog(log, config, VOCABULARY) if log else None
    backend = ScriptedBackend(sizes, script, groups)
    carrier = Carrier(backend, disk) if disk is not None else None  # type: ignore[arg-type]
    return Engine(
        scheduler,
        backend,  # type: ignore[arg-type]
        info,
        clock=ManualClock(),
        depth=depth,
        log=steps,
        carrier=carrier,
        speculator=speculator(scheduler) if speculator else None,
    )


def timed(engine: Engine, seconds: Callable[[Plan], float]) -> ManualClock:
    """Every step takes so long from now on, on the engine's clock."""
    clock, backend = engine.clock, engine.backend
    assert isinstance(clock, ManualClock)
    launch = backend.launch

    def slow(plan: Plan) -> object:
        clock.advance(seconds(plan))
        return launch(plan)

    backend.launch = slow  # type: ignore[method-assign]
    return clock


def plans_of(engine: Engine) -> list[Plan]:
    """Every plan that was launched."""
    assert isinstance(engine.backend, ScriptedBackend)
    return list(engine.backend.plans)


def request(request_id: str, prompt: Sequence[int] | str, **params: object) -> Add:
    """An Add with a seed, from ids or text."""
    ids = tuple(prompt.encode()) if isinstance(prompt, str) else tuple(prompt)
    salt = str(params.pop("cache_salt", ""))
    arrival_s = float(str(params.pop("arrival_s", 0.0)))
    pooling = params.pop("pooling", None)
    params = {"max_tokens": 0, **params} if pooling else params
    own = {name: params.pop(name) for name in ("priority", "tenant", "user", "profile") if name in params}
    return Add(
        request_id,
        ids,
        SamplingParams(**{"seed": 0, **params}),  # type: ignore[arg-type]
        arrival_s,
        cache_salt=salt,
        service=Service(**own),  # type: ignore[arg-type]
        pooling=pooling,  # type: ignore[arg-type]
    )


def run(engine: Engine, *adds: Add, steps: int = 10_000) -> dict[tuple[str, int], list[SequenceOutput]]:
    """Add the requests and step until idle; outputs by (request id, child). Checks conservation after each step."""
    for add in adds:
        engine.add(add)
    outputs: dict[tuple[str, int], list[SequenceOutput]] = {}
    for _ in range(steps):
        if engine.idle:
            break
        for item in engine.step().items:
            outputs.setdefault((item.request_id, item.child), []).append(item)
        engine.check()
    assert engine.idle, "the engine did not come to rest"
    stats = engine.stats()
    assert stats.blocks_used == stats.running == stats.waiting == 0
    return outputs


def come_and_go(
    engine: Engine,
    traffic: Sequence[tuple[Add, int, int | None]],
    *,
    most: int,
    least: int,
    between: Callable[[], object] = lambda: None,
) -> dict[tuple[str, int], list[SequenceOutput]]:
    """Each request comes before a step, and may leave before one: outputs by (request id, child). Goes on to rest, more
    than `least` steps and `most` at most; `between` is called after each. Checks conservation after each step."""
    outputs: dict[tuple[str, int], list[SequenceOutput]] = {}
    for step in range(most):
        for add, arrival, leaving in traffic:
            if step == arrival:
                engine.add(add)
            if step == leaving and step >= arrival:
                engine.abort(add.request_id)
        if engine.idle and step > least:
            break
        for item in engine.step().items:
            outputs.setdefault((item.request_id, item.child), []).append(item)
        between()
        engine.check()
    assert engine.idle and engine.stats().blocks_used == 0
    return outputs


def tokens(outputs: Sequence[SequenceOutput]) -> list[int]:
    """The token ids of one sequence's outputs."""
    return [sample.token for item in outputs for sample in item.samples]
