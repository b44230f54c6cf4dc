"""Which sequence advances by how many tokens, and what becomes of the chosen ones. Knows no tensor and no clock.

A deterministic state machine: all that it learns enters through `schedule(inputs)` and `commit(plan, samples)`,
so the same log gives the same plans. A sequence has tokens and computed tokens; a step closes part of the gap.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence as Items
from itertools import count
from typing import NamedTuple

import msgspec

from octavo.backends.base import BlockCopy, Limits, Plan, PlanRow, SampleRow, Samples, SlotOpen, TokenSample
from octavo.errors import ClientError
from octavo.memory.pool import BlockPool
from octavo.memory.table import BlockTable, Growth
from octavo.scheduling.admission import Capacity
from octavo.scheduling.inputs import Abort, Add, Inputs
from octavo.scheduling.outputs import FinishReason, SequenceOutput
from octavo.scheduling.policies import Policy, StallFree
from octavo.scheduling.sequence import Request, Sequence
from octavo.scheduling.sharing import Sharing
from octavo.text.vocabulary import Vocabulary

__all__ = ["Counters", "Scheduler", "SchedulerConfig"]


class SchedulerConfig(msgspec.Struct, frozen=True):
    """What a scheduler must know of model and memory; it goes into the head of the step log."""

    limits: Limits
    kv_groups: int
    end_ids: tuple[int, ...]
    """Tokens that end any sequence (the model's)."""
    prefix_cache: bool = True
    """Whether computed blocks are found again by sequences that begin alike."""

    def capacity(self, vocab_size: int) -> Capacity:
        limits = self.limits
        return Capacity(
            vocab_size=vocab_size,
            max_model_len=limits.max_model_len,
            max_running=limits.max_slots,
            kv_tokens=limits.num_blocks * limits.block_size,
        )


class Counters(msgspec.Struct):
    """Totals since the start."""

    steps: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0
    """Of every request taken, once each."""
    generation_tokens: int = 0
    prefix_queried_tokens: int = 0
    """Of the prompts that were looked up, each sequence's once."""
    prefix_hit_tokens: int = 0
    """Of those, the tokens that had been computed."""


class _Advance(NamedTuple):
    """A decision of the step in the making: a sequence computes `tokens` tokens, in tables grown to hold them."""

    tokens: int
    growths: tuple[Growth | None, ...]


class _Flight(NamedTuple):
    """What a plan's samples mean: whose each one is and at which position its token stands; who ends with it."""

    owners: list[tuple[Sequence, int]]
    ends: list[Sequence]
    computed: list[tuple[Sequence, tuple[BlockTable, ...], int]]
    """What the plan has computed when it is done: a sequence's tokens up to a place, in the tables that it had."""


class Scheduler:
    """Owns every sequence, its blocks and its slot, from `Add` to the finishing output."""

    def __init__(self, config: SchedulerConfig, vocabulary: Vocabulary, policy: Policy | None = None) -> None:
        self.config = config
        self.limits = limits = config.limits
        self.vocabulary = vocabulary
        self.policy = policy or StallFree()
        self.capacity = config.capacity(vocabulary.size)
        self.pools = tuple(BlockPool(limits.num_blocks) for _ in range(config.kv_groups))
        self.sharing = Sharing(self.pools, limits.block_size, enabled=config.prefix_cache)
        self.counters = Counters()
        self.running: list[Sequence] = []
        """Sequences that hold a slot and a table, in the one order."""
        self.waiting: list[Sequence] = []
        """Sequences that hold neither, in the one order."""
        self._requests: dict[str, Request] = {}
        self._end_ids = frozenset(config.end_ids)
        self._slots = list(range(limits.max_slots - 1, -1, -1))
        self._flights: dict[int, _Flight] = {}
        self._awaited: dict[Sequence, int] = {}
        """Who waits for a token of the last plan, and for which of its samples."""
        self._numbers = count()
        self._outbox: list[SequenceOutput] = []

    # ---- what the engine calls

    @property
    def idle(self) -> bool:
        """Nothing runs, waits, flies, or is to be told."""
        return not (self._requests or self._flights or self._outbox)

    def schedule(self, inputs: Inputs) -> Plan:
        """Take the messages in and decide one step. The plan has no rows when there is nothing to compute."""
        for message in inputs.messages:
            if isinstance(message, Add):
                self._add(message)
            else:
                self._abort(message)
        return self._write(self._decide())

    def commit(self, plan: Plan, samples: Samples) -> None:
        """Take in what the oldest plan in flight chose: append, stop, finish, free."""
        flight = self._flights.pop(plan.step)
        for sequence, tables, end in flight.computed:
            if sequence.tables is tables:
                self.sharing.store(sequence, end)
        for (sequence, position), sample in zip(flight.owners, samples, strict=True):
            if position < sequence.prompt_tokens:
                sequence.request.prompt_samples[position] = sample
                continue
            if not sequence.finished:
                self._append(sequence, sample)
        for sequence in flight.ends:
            if not sequence.finished:
                self._finish(sequence, "length")

    def take_outputs(self) -> tuple[SequenceOutput, ...]:
        """Everything to be told since the last call."""
        outputs, self._outbox = tuple(self._outbox), []
        return outputs

    def check(self) -> None:
        """Prove that no block and no slot leaked. Raises AssertionError."""
        everyone = [s for request in self._requests.values() for s in request.sequences]
        for group, pool in enumerate(self.pools):
            pool.check(s.tables[group].blocks for s in everyone if s.tables)
        held = [s.slot for s in everyone if s.slot is not None]
        assert sorted([*held, *self._slots]) == list(range(self.limits.max_slots)), "a slot leaked"
        unforked = [s for request in self._requests.values() for s in request.unforked]
        assert {*self.running, *self.waiting, *unforked} == set(everyone), "a sequence is nowhere"
        assert len(self.running) + len(self.waiting) + len(unforked) == len(everyone), "a sequence is twice"
        assert all(s.tables for s in self.running) and not any(s.tables for s in self.waiting)
        self.sharing.check(self.running)

    # ---- messages

    def _add(self, add: Add) -> None:
        try:
            self.capacity.check(add.prompt, add.params)
            if add.request_id in self._requests:
                raise ClientError(f"request id {add.request_id!r} is in use; choose another.")
        except ClientError as error:
            self._outbox.append(SequenceOutput(add.request_id, 0, finish_reason="error", error=str(error)))
            return
        request = Request(add, next(self._numbers), self._end_ids, self.limits.max_model_len)
        self.counters.prompt_tokens += len(add.prompt)
        delivered = add.outputs or ((),) * add.params.n
        for child, outputs in enumerate(delivered):
            if child in add.finished:
                continue
            sequence = Sequence(request, child, outputs, block_size=self.limits.block_size)
            request.sequences.append(sequence)
            for token in outputs:
                sequence.stop.feed(self._piece(sequence, token), armed=False)
        begun = [s for s in request.sequences if s.output_tokens]
        fresh = [s for s in request.sequences if not s.output_tokens]
        request.unforked = fresh[1:]
        request.scores_prompt = request.scores_prompt and not any(delivered)
        for sequence in [*begun, *fresh[:1]]:
            insort(self.waiting, sequence, key=_order)
        if request.sequences:
            self._requests[request.id] = request

    def _abort(self, abort: Abort) -> None:
        request = self._requests.get(abort.request_id)
        for sequence in list(request.sequences) if request is not None else ():
            self._finish(sequence, "abort")

    # ---- deciding: who computes how much, and where it is stored

    def _decide(self) -> dict[Sequence, _Advance]:
        advances: dict[Sequence, _Advance] = {}
        preemptions = self.counters.preemptions
        left = self.limits.max_step_tokens
        for sequence in list(self.policy.offers(self.running)):
            wanted = min(sequence.gap, left)
            if wanted and sequence.slot is not None and (not sequence.pending or sequence in self._awaited):
                left += self._make_room(sequence, wanted, advances)
                if sequence.slot is not None:
                    advances[sequence] = self._grow(sequence, wanted)
                    left -= wanted
        # Memory that was just taken from a sequence is not for a new one.
        if self.counters.preemptions == preemptions:
            for sequence in list(self.waiting):
                if not left:
                    break
                names = self.sharing.found(sequence)
                if names is None:
                    continue
                if not self._admit(sequence, names):
                    break
                self.waiting.remove(sequence)
                wanted = min(sequence.gap, left)
                advances[sequence] = self._grow(sequence, wanted)
                left -= wanted
        return advances

    def _make_room(self, sequence: Sequence, wanted: int, advances: dict[Sequence, _Advance]) -> int:
        """Preempt from the other end of the order until `sequence` can grow, or was itself the victim.

        Returns the tokens that are back in the budget because a victim had been given them.
        """
        returned = 0
        start, end = sequence.computed, sequence.computed + wanted
        while any(table.lacks(start, end) for table in sequence.tables):
            victim = self.running[-1]
            advance = advances.pop(victim, None)
            returned += advance.tokens if advance is not None else 0
            self._release(victim)
            insort(self.waiting, victim, key=_order)
            self.counters.preemptions += 1
        return returned

    def _grow(self, sequence: Sequence, wanted: int) -> _Advance:
        start, end = sequence.computed, sequence.computed + wanted
        return _Advance(wanted, tuple([table.grow(start, end) for table in sequence.tables]))

    def _admit(self, sequence: Sequence, names: Items[bytes]) -> bool:
        """Give a waiting sequence (and its unforked siblings) slots, and tables that begin with the blocks of `names`,
        if it can run now."""
        siblings = sequence.request.unforked if not sequence.output_tokens else []
        if sequence.pending or len(self._slots) <= len(siblings):
            return False
        prefixes = self.sharing.prefixes
        for group, pool in enumerate(self.pools):
            promised = sum(s.tables[group].needed(s.computed, max(s.total, s.computed)) for s in self.running)
            spare = pool.total // 100 if self.running else 0
            wanted = self._blocks(sequence.total) - len(names) + prefixes.idle_of(group, names)
            if wanted + promised + spare > pool.free:
                return False
        for taker in (sequence, *siblings):
            taker.slot = self._slots.pop()
        sequence.tables = tuple(
            BlockTable(pool, self.limits.block_size, prefixes.take(group, names))
            for group, pool in enumerate(self.pools)
        )
        fresh = not sequence.begun
        self.sharing.begin(sequence, len(names))
        if fresh and self.config.prefix_cache:
            self.counters.prefix_queried_tokens += sequence.prompt_tokens
            self.counters.prefix_hit_tokens += sequence.cached_tokens
        insort(self.running, sequence, key=_order)
        return True

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.limits.block_size)

    # ---- writing the decisions down

    def _write(self, advances: dict[Sequence, _Advance]) -> Plan:
        opens: list[SlotOpen] = []
        copies: list[BlockCopy] = []
        rows: list[PlanRow] = []
        samples: list[SampleRow] = []
        flight = _Flight([], [], [])
        awaited: dict[Sequence, int] = {}

        def choose(sequence: Sequence, offset: int) -> None:
            if not sequence.request.max_output:
                flight.ends.append(sequence)
                return
            awaited[sequence] = len(samples)
            flight.owners.append((sequence, sequence.total))
            assert sequence.slot is not None
            samples.append(SampleRow(len(rows) - 1, offset, sequence.slot))
            sequence.total += 1

        for sequence, advance in advances.items():
            rows.append(self._row(sequence, advance, opens, copies))
            end = sequence.computed = sequence.computed + advance.tokens
            flight.computed.append((sequence, sequence.tables, end))
            if sequence.request.scores_prompt:
                self._score(sequence, end - advance.tokens, len(rows) - 1, samples, flight)
            if end < sequence.total:
                continue
            forks = self._fork(sequence, opens) if end == sequence.prompt_tokens else []
            for chooser in (sequence, *forks):
                choose(chooser, advance.tokens - 1)
        self._awaited = awaited
        plan = Plan(self.counters.steps, tuple(opens), tuple(copies), tuple(rows), tuple(samples))
        if rows:
            self._flights[plan.step] = flight
            self.counters.steps += 1
        return plan

    def _row(
        self, sequence: Sequence, advance: _Advance, opens: list[SlotOpen], copies: list[BlockCopy]
    ) -> PlanRow:
        """The row of one sequence; opens its slot first if the backend has not heard of it."""
        assert sequence.slot is not None
        end = sequence.computed + advance.tokens
        if not sequence.told:
            opens.append(self._open(sequence))
            return PlanRow(sequence.slot, sequence.computed, advance.tokens)
        tokens = tuple(sequence.tokens[sequence.told : end])
        if sequence.told + len(tokens) < end:
            tokens += (-self._awaited[sequence] - 1,)
        sequence.told = end if tokens else sequence.told
        if not any(advance.growths):
            return PlanRow(sequence.slot, sequence.computed, advance.tokens, tokens)
        for group, growth in enumerate(advance.growths):
            if growth is not None and growth.copy is not None:
                copies.append(BlockCopy(group, *growth.copy))
        return PlanRow(
            sequence.slot,
            sequence.computed,
            advance.tokens,
            tokens,
            tuple(growth.at if growth is not None else 0 for growth in advance.growths),
            tuple(growth.blocks if growth is not None else () for growth in advance.growths),
        )

    def _open(self, sequence: Sequence) -> SlotOpen:
        assert sequence.slot is not None
        sequence.told = len(sequence.tokens)
        tables = tuple(tuple(table.blocks) for table in sequence.tables)
        return SlotOpen(sequence.slot, tuple(sequence.tokens), tables, sequence.request.rule(sequence.child))

    def _score(
        self, sequence: Sequence, start: int, row: int, samples: list[SampleRow], flight: _Flight
    ) -> None:
        """Ask for the log-probability of each prompt token that the tokens start … computed − 1 predict."""
        request = sequence.request
        assert sequence.slot is not None
        for position in range(start + 1, min(sequence.computed, sequence.prompt_tokens - 1) + 1):
            top = request.params.prompt_logprobs or 0
            samples.append(
                SampleRow(row, position - 1 - start, sequence.slot, sequence.tokens[position], top)
            )
            flight.owners.append((sequence, position))

    def _fork(self, sequence: Sequence, opens: list[SlotOpen]) -> list[Sequence]:
        """The siblings that waited for this prompt share its blocks from now on."""
        children, sequence.request.unforked = sequence.request.unforked, []
        for child in children:
            child.tables = tuple(table.fork() for table in sequence.tables)
            child.computed = sequence.prompt_tokens
            child.stored = sequence.prompt_tokens // self.limits.block_size * self.limits.block_size
            child.begun = True
            child.chain = sequence.chain.copy()
            opens.append(self._open(child))
            insort(self.running, child, key=_order)
        return children

    # ---- ends

    def _append(self, sequence: Sequence, sample: TokenSample) -> None:
        token = sample.token
        request = sequence.request
        params = request.params
        if token < 0:
            message = "The model's output is not a number for this prompt; the model or its file is damaged."
            self._finish(sequence, "error", error=message)
            return
        sequence.tokens.append(token)
        self.counters.generation_tokens += 1
        outputs = len(sequence.tokens) - sequence.prompt_tokens
        armed = outputs >= params.min_tokens
        piece = self._piece(sequence, token)
        if armed and (token in request.end_ids or token in request.stop_ids):
            reason = token if token in request.stop_ids else None
            cut = 0 if params.include_stop_str_in_output else len(piece)
            self._finish(sequence, "stop", sample, stop_reason=reason, cut_bytes=cut)
            return
        match = sequence.stop.feed(piece, armed=armed)
        if match is not None:
            cut = match.after + (0 if params.include_stop_str_in_output else match.length)
            self._finish(sequence, "stop", sample, stop_reason=params.stop[match.which], cut_bytes=cut)
        elif outputs >= request.max_output:
            self._finish(sequence, "length", sample)
        else:
            self._tell(sequence, sample)

    def _tell(
        self,
        sequence: Sequence,
        sample: TokenSample | None = None,
        finish_reason: FinishReason | None = None,
        stop_reason: int | str | None = None,
        cut_bytes: int = 0,
        error: str | None = None,
    ) -> None:
        request = sequence.request
        prompt_samples: tuple[TokenSample | None, ...] = ()
        if request.scores_prompt and finish_reason not in ("abort", "error"):
            scored = request.prompt_samples
            prompt_samples = (None, *(scored[position] for position in range(1, sequence.prompt_tokens)))
            request.scores_prompt = False
        self._outbox.append(
            SequenceOutput(
                request_id=request.id,
                child=sequence.child,
                samples=() if sample is None else (sample,),
                held_bytes=0 if finish_reason else sequence.stop.held_bytes,
                finish_reason=finish_reason,
                stop_reason=stop_reason,
                cut_bytes=cut_bytes,
                prompt_samples=prompt_samples,
                cached_tokens=sequence.cached_tokens,
                error=error,
            )
        )

    def _finish(
        self,
        sequence: Sequence,
        finish_reason: FinishReason,
        sample: TokenSample | None = None,
        stop_reason: int | str | None = None,
        cut_bytes: int = 0,
        error: str | None = None,
    ) -> None:
        self._tell(sequence, sample, finish_reason, stop_reason, cut_bytes, error)
        request = sequence.request
        if sequence.tables:
            self._release(sequence)
        elif sequence in request.unforked:
            request.unforked.remove(sequence)
            if sequence.slot is not None:
                self._slots.append(sequence.slot)
                sequence.slot = None
        else:
            self.waiting.remove(sequence)
        sequence.finished = True
        request.sequences.remove(sequence)
        if not request.sequences:
            del self._requests[request.id]

    def _release(self, sequence: Sequence) -> None:
        """Take slot and blocks from a running sequence, and the slots kept for siblings it has not forked yet."""
        self.running.remove(sequence)
        for table in sequence.tables:
            table.release()
        sequence.tables = ()
        self.sharing.leave(sequence)
        sequence.computed = sequence.told = 0
        siblings = sequence.request.unforked if not sequence.output_tokens else []
        for giver in (sequence, *siblings):
            if giver.slot is not None:
                self._slots.append(giver.slot)
                giver.slot = None

    def _piece(self, sequence: Sequence, token: int) -> bytes:
        return self.vocabulary.bytes_of(token, sequence.request.params.skip_special_tokens)


def _order(sequence: Sequence) -> tuple[int, int]:
    return sequence.order
