"""Runs sequences on a backend through plans made by hand: a naive scheduler, so that tests need no real one.

It prefills in chunks, decodes, forks with copy-on-write, mixes sequences in a plan, takes blocks in random
order, keeps `depth` plans in flight, can share equal beginnings, and can drop and recompute sequences. It knows no
stop: every sequence makes exactly the tokens it was asked for.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from octavo.backends.base import (
    Backend,
    BlockCopy,
    ChoiceRule,
    Handle,
    Plan,
    PlanRow,
    SampleRow,
    SlotOpen,
    TokenSample,
)
from octavo.config import Pooling

__all__ = ["Ask", "Told", "run"]

WHOLE = 1 << 30

Receiver = Callable[[TokenSample], None]


@dataclass(frozen=True)
class Ask:
    """One request."""

    prompt: tuple[int, ...]
    new_tokens: int = 0
    rule: ChoiceRule | None = None
    """None is greedy with five logprobs. `prompt_tokens` is filled in; child i gets `seed` + i."""
    n: int = 1
    prompt_top: int | None = None
    """Score the prompt, with so many of the most likely ids."""
    arrive: int = 0
    """The step at which it may start."""
    pooling: Pooling | None = None
    """Its only answer is its prompt's vector."""


@dataclass(frozen=True)
class Told:
    """What came back."""

    prompt: tuple[TokenSample, ...]
    """For positions 1 … of the prompt, if it was to be scored."""
    children: tuple[tuple[TokenSample, ...], ...]

    @property
    def tokens(self) -> tuple[int, ...]:
        """The new tokens of the only child."""
        (child,) = self.children
        return tuple(sample.token for sample in child)


@dataclass(eq=False)
class Running:
    """A sequence: what it wants and how far it is."""

    ask: Ask
    family: list[Running]
    """The children of its request so far, itself among them."""
    rule: ChoiceRule
    slot: int
    ids: list[int]
    """Known ids. One that is still in flight is a reference to its sample (see `PlanRow.tokens`)."""
    left: int
    """Tokens still to be chosen."""
    blocks: list[int] = field(default_factory=list)
    computed: int = 0
    told_ids: int = 0
    """How many ids the backend knows; 0 before the slot is opened."""
    unscored: int = 0
    """Prompt positions still to be scored."""
    scores: list[TokenSample] = field(default_factory=list)
    chosen: list[TokenSample] = field(default_factory=list)

    def expect(self, reference: int) -> Receiver:
        """A token is being chosen; the result takes its answer."""
        index = len(self.ids)
        self.ids.append(reference)
        self.left -= 1

        def receive(sample: TokenSample) -> None:
            self.ids[index] = sample.token
            self.chosen.append(sample)

        return receive


def run(
    backend: Backend,
    asks: Sequence[Ask],
    *,
    chunk: int = WHOLE,
    depth: int = 0,
    drop_every: int = 0,
    seed: int = 0,
    share: bool = False,
) -> list[Told]:
    """Run all requests to their end.

    `chunk`: the most tokens of a row. `drop_every`: after so many steps, forget all KV and recompute (depth 0
    only). `seed`: of the order in which blocks are taken. `share`: a request that arrives takes over the full blocks
    of a running one that begins alike, as far as these are computed.
    """
    return Driver(backend, asks, chunk, depth, drop_every, seed, share).run()


class Driver:
    """The state of one `run`."""

    def __init__(
        self,
        backend: Backend,
        asks: Sequence[Ask],
        chunk: int,
        depth: int,
        drop_every: int,
        seed: int,
        share: bool,
    ) -> None:
        assert len(backend.spec.kv_groups) == 1
        assert not (depth and drop_every)
        self.backend, self.chunk, self.depth, self.drop_every = backend, chunk, depth, drop_every
        self.share = share
        self.size = backend.limits.block_size
        self.free = list(range(backend.limits.num_blocks))
        random.Random(seed).shuffle(self.free)
        self.owners: Counter[int] = Counter()  # how many sequences hold a block
        self.slots = list(range(backend.limits.max_slots))
        self.waiting = sorted(enumerate(asks), key=lambda pair: pair[1].arrive)
        self.running: list[Running] = []
        self.families: list[list[Running]] = [[] for _ in asks]
        self.flights: deque[tuple[Handle, list[Receiver]]] = deque()

    def run(self) -> list[Told]:
        step = 0
        while self.waiting or self.running:
            while self.waiting and self.waiting[0][1].arrive <= step:
                self.admit(*self.waiting.pop(0))
            if self.drop_every and step % self.drop_every == self.drop_every - 1:
                self.drop_all()
            if self.running:
                plan, receivers = self.plan(step)
                handle = self.backend.launch(plan)
                self.backend.sample(handle)
                self.flights.append((handle, receivers))
            self.collect(self.depth)
            step += 1
        self.collect(0)
        assert not +self.owners
        return [
            Told(tuple(family[0].scores), tuple(tuple(child.chosen) for child in family))
            for family in self.families
        ]

    def admit(self, index: int, ask: Ask) -> None:
        rule = ask.rule or ChoiceRule(prompt_tokens=0, logprobs=5)
        rule = msgspec.structs.replace(rule, prompt_tokens=len(ask.prompt))
        first = Running(ask, self.families[index], rule, self.slots.pop(0), list(ask.prompt), ask.new_tokens)
        if ask.pooling is not None:
            assert ask.n == 1
            first.left = 1
        if ask.prompt_top is not None:
            first.unscored = len(ask.prompt) - 1
        elif self.share and ask.pooling != "mean":
            self.find_prefix(first)
        first.family.append(first)
        self.running.append(first)

    def find_prefix(self, seq: Running) -> None:
        """The longest one; its last token is never found, for somebody must compute it."""
        for other in self.running:
            most = min(len(seq.ids) - 1, other.computed)
            alike = next((i for i in range(most) if seq.ids[i] != other.ids[i]), most)
            blocks = other.blocks[: alike // self.size]
            if len(blocks) > len(seq.blocks):
                seq.blocks = blocks
        seq.computed = len(seq.blocks) * self.size
        self.owners.update(seq.blocks)

    def plan(self, step: int) -> tuple[Plan, list[Receiver]]:
        opens: list[SlotOpen] = []
        copies: list[BlockCopy] = []
        rows: list[PlanRow] = []
        samples: list[SampleRow] = []
        receivers: list[Receiver] = []
        room = self.backend.limits.max_step_tokens

        for seq in list(self.running):
            start, count = seq.computed, min(self.chunk, len(seq.ids) - seq.computed, room)
            if count == 0:
                continue
            room -= count
            if seq.told_ids == 0:
                seq.told_ids = len(seq.ids)
                opens.append(
                    SlotOpen(seq.slot, tuple(seq.ids), (tuple(seq.blocks),), seq.rule, seq.ask.pooling)
                )
            changed = self.find_blocks(seq, start, start + count, copies)
            new_ids = tuple(seq.ids[seq.told_ids : start + count])
            seq.told_ids += len(new_ids)
            seq.computed += count
            blocks = tuple(seq.blocks[changed:])
            tables = ((changed,), (blocks,)) if blocks else ((), ())
            rows.append(PlanRow(seq.slot, start, count, new_ids, *tables))

            for offset in range(count):
                target = len(seq.ask.prompt) - seq.unscored
                if seq.unscored and start + offset == target - 1:
                    seq.unscored -= 1
                    top = seq.ask.prompt_top or 0
                    samples.append(SampleRow(len(rows) - 1, offset, seq.slot, seq.ids[target], top))
                    receivers.append(seq.scores.append)
            if seq.computed == len(seq.ids):
                askers = [seq, *(self.fork(seq, opens) for _ in range(seq.ask.n - len(seq.family)))]
                for asker in askers:
                    if asker.left:
                        receivers.append(asker.expect(-len(samples) - 1))
                        samples.append(SampleRow(len(rows) - 1, count - 1, asker.slot))

        # Only now, for a block given back here must not be taken by another row of this plan.
        for seq in list(self.running):
            if not seq.left and (seq.ask.new_tokens or seq.ask.pooling or seq.computed == len(seq.ids)):
                self.running.remove(seq)
                self.release(seq)
                self.slots.append(seq.slot)
        return Plan(step, tuple(opens), tuple(copies), tuple(rows), tuple(samples)), receivers

    def fork(self, parent: Running, opens: list[SlotOpen]) -> Running:
        seed = (parent.family[0].rule.seed + len(parent.family)) % 2**64
        child = Running(
            parent.ask,
            parent.family,
            msgspec.structs.replace(parent.rule, seed=seed),
            self.slots.pop(0),
            list(parent.ids),
            parent.ask.new_tokens,
            list(parent.blocks),
            parent.computed,
            len(parent.ids),
        )
        self.owners.update(child.blocks)
        opens.append(SlotOpen(child.slot, tuple(child.ids), (tuple(child.blocks),), child.rule))
        parent.family.append(child)
        self.running.append(child)
        return child

    def find_blocks(self, seq: Running, start: int, end: int, copies: list[BlockCopy]) -> int:
        """Give the sequence its own blocks for positions start … end − 1; return the first that changed."""
        changed = len(seq.blocks)
        for logical in reversed(range(start // self.size, len(seq.blocks))):
            shared = seq.blocks[logical]
            if self.owners[shared] > 1:
                self.owners[shared] -= 1
                seq.blocks[logical] = self.take()
                copies.append(BlockCopy(0, shared, seq.blocks[logical]))
                changed = logical
        while len(seq.blocks) * self.size < end:
            seq.blocks.append(self.take())
        return changed

    def take(self) -> int:
        block = self.free.pop()
        self.owners[block] = 1
        return block

    def release(self, seq: Running) -> None:
        for block in seq.blocks:
            self.owners[block] -= 1
            if not self.owners[block]:
                self.free.insert(0, block)
        seq.blocks.clear()

    def drop_all(self) -> None:
        for seq in self.running:
            self.release(seq)
            seq.computed = seq.told_ids = 0

    def collect(self, in_flight: int) -> None:
        while len(self.flights) > in_flight:
            handle, receivers = self.flights.popleft()
            for receive, sample in zip(receivers, self.backend.collect(handle), strict=True):
                receive(sample)
