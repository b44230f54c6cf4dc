"""Which sequence advances by how many tokens, and what becomes of the chosen ones. Knows no tensor and no clock.

A deterministic state machine: all that it learns enters through `schedule(inputs)` and `commit(plan, samples)`,
so the same log gives the same plans. A sequence has tokens and computed tokens; a step closes part of the gap.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from collections.abc import Sequence as Items
from heapq import merge
from itertools import count, takewhile

from octavo.backends.base import Plan, Samples, TokenSample
from octavo.errors import ClientError
from octavo.memory.accounting import Report
from octavo.scheduling.budget import StepBudget
from octavo.scheduling.contest import Beams, Contest
from octavo.scheduling.ends import End, end_after, end_with, output_of, stuck_end, without_token
from octavo.scheduling.inputs import Abort, Add, Inputs
from octavo.scheduling.order import Order, Waiting
from octavo.scheduling.outputs import SequenceOutput, joined
from octavo.scheduling.places import Places
from octavo.scheduling.policies import POLICIES
from octavo.scheduling.profiles import targets_of
from octavo.scheduling.reporting import Reporter
from octavo.scheduling.sequence import Request, Sequence
from octavo.scheduling.settings import Counters, SchedulerConfig
from octavo.scheduling.swap import NO_ORDERS
from octavo.scheduling.verifying import Verifier, offers_of
from octavo.scheduling.writer import Advance, Flight, Writer
from octavo.text.vocabulary import Vocabulary
from octavo.timing.step_time import StepLoad, StepTime

__all__ = ["Counters", "Scheduler", "SchedulerConfig"]

_ONE = Advance(1, ())
"""Of a sequence that decodes into a block that it has."""


class Scheduler:
    """Owns every sequence, its blocks and its slot, from `Add` to the finishing output."""

    def __init__(self, config: SchedulerConfig, vocabulary: Vocabulary) -> None:
        self.config = config
        self.limits = limits = config.limits
        self.vocabulary = vocabulary
        self.policy = POLICIES[config.policy]
        self.capacity = config.capacity(vocabulary.size)
        self.places = Places(config)
        self.swap = self.places.sharing.swap
        self.order = Order(config.aging_s, limits.max_step_tokens)
        self.step_time = StepTime(config.measured)
        self.counters = Counters()
        self.verifier = Verifier(self.places, self.order, self.counters)
        self.reporter = Reporter(config, self.places)
        self.running: list[Sequence] = []
        """Sequences that hold a slot and a table, in the one order."""
        self.waiting = Waiting(self.order)
        """Sequences that hold neither."""
        self.kept: list[Sequence] = []
        """Sequences that ended and keep slot and table until their batch has ended (policy `static`)."""
        self._requests: dict[str, Request] = {}
        self._end_ids = frozenset(config.end_ids)
        self._writer = Writer(limits.block_size, self._fork)
        self._flights: dict[int, Flight] = {}
        self._timed = StepLoad()
        self._drafting_s = 0.0
        """Of the step whose duration comes with the next inputs, and how long its drafts took."""
        self._numbers = count()
        self.outbox: list[SequenceOutput] = []
        """To be told when the step has ended."""
        self._sorted = True
        """`running` is in the order that it keeps while requests differ only in their arrival."""
        self._closed = False
        """Nobody more is admitted in this step."""

    # ---- what the engine calls

    @property
    def idle(self) -> bool:
        """Nothing runs, waits, flies, or is to be told."""
        return not (self._requests or self._flights or self.outbox)

    def schedule(self, inputs: Inputs) -> Plan:
        """Take the messages in and decide one step. The plan has no rows when there is nothing to compute."""
        self.order.now_s = inputs.now_s
        self.lasted(inputs.last_duration_s)
        self._drafting_s = inputs.drafting_s
        if self.swap is not None:
            self.swap.take_in(inputs.disk, inputs.now_s)
        for message in inputs.messages:
            if isinstance(message, Add):
                self._add(message)
            else:
                self._abort(message)
        self.verifier.offered = offers_of(inputs.drafts) if inputs.drafts else {}
        advances, budget = self._decide()
        if not self.order.plain:
            for sequence, advance in advances.items():
                self.order.charge(sequence.request, advance.tokens - len(advance.drafts))
        orders = NO_ORDERS if self.swap is None else self.swap.take_orders()
        plan, flight = self._writer.write(self.counters.steps, advances, orders)
        self._timed = budget.load
        if plan.rows:
            self._flights[plan.step] = flight
            self.stepped(budget.load)
        return plan

    def commit(self, plan: Plan, samples: Samples) -> None:
        """Take in what the oldest plan in flight chose: append, stop, finish, free."""
        flight = self._flights.pop(plan.step)
        for sequence, tables, end in flight.computed:
            if sequence.tables is tables:
                self.places.sharing.store(sequence, end)
        for (sequence, position, draft), sample in zip(flight.owners, samples, strict=True):
            if position < sequence.prompt_tokens:
                sequence.request.prompt_samples[position] = sample
            elif not sequence.finished and (draft < 0 or self.verifier.accept(sequence, position, draft)):
                self._append(sequence, sample)
        if flight.drafted:
            self.verifier.commit(flight)
            self.outbox = joined(self.outbox)
        for sequence in flight.ends:
            if not sequence.finished:
                self._finish(sequence, End("length"))
        if self.kept and not self.running:
            self.end_batch()

    def owners_of(self, plan: Plan) -> Items[tuple[Sequence, int, int]]:
        """Of a plan in flight, as in `Flight.owners`."""
        return self._flights[plan.step].owners

    def knows(self, request_id: str) -> bool:
        """A request of this name has not ended."""
        return request_id in self._requests

    def in_flight(self) -> Iterable[str]:
        """The requests that plans in flight compute for; nothing while none flies."""
        return dict.fromkeys([s.request.id for f in self._flights.values() for s in f.advancing])

    def give_up(self) -> str:
        """End the first request with an error: it keeps all others out, and nothing will change that. Why, in words."""
        stuck = min([s for r in self._requests.values() for s in r.sequences], key=self.order.rank).request
        end = stuck_end(stuck, len(self.running), len(self.waiting), min(p.free for p in self.places.pools))
        for sequence in list(stuck.sequences):
            self._finish(sequence, end)
        return end.error or ""

    def report(self) -> Report:
        """What the memory was good for, since the start."""
        return self.reporter.report(self.counters, idle=self.idle)

    @property
    def expected_s(self) -> float:
        """How long the step that begins should take; 0 while that is not known."""
        return self.step_time.predict(self._timed)

    # ---- what `stretch` calls
    def lasted(self, seconds: float) -> None:
        """The step before took so long."""
        if self._timed.tokens:
            if self.config.times_steps:
                self.step_time.observe(self._timed, seconds - self._drafting_s)
            self.reporter.lasted(seconds)

    def stepped(self, load: StepLoad) -> None:
        """A step begins."""
        self._count(load, 1)
        self.reporter.look(self.running, self.kept, len(self.waiting))

    def stepped_on(self, load: StepLoad, grown: Items[int], durations: Items[float]) -> None:
        """As many steps begin as there are in `grown`, the last with this load and all with as many tokens. The report
        need not look at them, as `Reporter.look_on` has it."""
        self._count(load, len(grown))
        self.reporter.look_on(len(self.running), grown, durations)

    def _count(self, load: StepLoad, steps: int) -> None:
        self._timed = load
        self.counters.steps += steps
        self.counters.step_tokens += steps * load.tokens
        self.counters.idle_slot_steps += steps * len(self.kept)

    def tell(self, sequence: Sequence, samples: Samples) -> None:
        """Tokens that were not committed here; the sequence has them. It ends where they are all that it may have."""
        ended = sequence.output_tokens >= sequence.request.max_output
        self.outbox.append(output_of(sequence, tuple(samples), End("length") if ended else None))
        if ended:
            self._remove(sequence, keep=self.policy.batched)

    def end_batch(self) -> None:
        """Nobody runs any more: what was kept is free."""
        for sequence in self.kept:
            self.places.take_back(sequence)
        self.kept.clear()

    def take_outputs(self) -> tuple[SequenceOutput, ...]:
        """Everything to be told since the last call."""
        outputs, self.outbox = tuple(self.outbox), []
        return outputs

    def check(self) -> None:
        """Prove that no block and no slot leaked. Raises AssertionError."""
        everyone = [s for request in self._requests.values() for s in request.sequences]
        self.places.check([*everyone, *self.kept], self.running)
        unforked = [s for request in self._requests.values() for s in request.unforked]
        assert {*self.running, *self.waiting, *unforked} == set(everyone), "a sequence is nowhere"
        assert len(self.running) + len(self.waiting) + len(unforked) == len(everyone), "a sequence is twice"
        assert all(s.tables for s in self.running) and not any(s.tables for s in self.waiting)
        self.order.check(len(self._requests))

    # ---- messages

    def _add(self, add: Add) -> None:
        try:
            self.capacity.check_message(add)
            if add.request_id in self._requests:
                raise ClientError(f"request id {add.request_id!r} is in use; choose another.")
        except ClientError as error:
            self.outbox.append(SequenceOutput(add.request_id, 0, finish_reason="error", error=str(error)))
            return
        targets = targets_of(add.service, self.config.targets)
        request = Request(add, next(self._numbers), self._end_ids, self.limits.max_model_len, targets)
        self.counters.prompt_tokens += len(add.prompt)
        attempts = add.params.attempts
        if attempts > add.params.n or add.params.beam_width:  # nothing of it was told before a restart
            request.contest = Beams(request) if add.params.beam_width else Contest(request)
        delivered = add.outputs if add.outputs and request.contest is None else ((),) * attempts
        for child, outputs in enumerate(delivered):
            if child in add.finished:
                continue
            sequence = Sequence(request, child, outputs, block_size=self.limits.block_size)
            request.sequences.append(sequence)
            for token in outputs:
                sequence.stop.feed(self._piece(sequence, token), armed=False)
        begun = [s for s in request.sequences if s.output_tokens]
        fresh = [s for s in request.sequences if not s.output_tokens]
        if self.places.allocation.paged:
            request.unforked = fresh[1:]
        request.scores_prompt = request.scores_prompt and not any(delivered)
        if isinstance(request.contest, Beams):
            request.contest.live(fresh[:1])
        self._requests[request.id] = request
        self.order.enter(request)
        for sequence in [*begun, *fresh]:
            if sequence not in request.unforked:
                self.waiting.add(sequence)

    def _abort(self, abort: Abort) -> None:
        request = self._requests.get(abort.request_id)
        for sequence in list(request.sequences) if request is not None else ():
            self._finish(sequence, End("abort"))

    # ---- deciding: who computes how much, and where it is stored

    def _decide(self) -> tuple[dict[Sequence, Advance], StepBudget]:
        advances: dict[Sequence, Advance] = {}
        budget = StepBudget(self.config, self.policy, self.step_time, self.order, spent_s=self._drafting_s)
        if not (self.order.plain and self._sorted):
            self.running.sort(key=self.order.rank)
            self._sorted = self.order.plain
        if self.kept and not self.running:  # the last one of the batch was aborted
            self.end_batch()
        self._closed = self.policy.batched and bool(self.running)
        for slack_only in (False, True):
            decodes: list[Sequence] = []
            prompts: list[Sequence] = []
            for sequence in self.running:
                if (gap := sequence.gap) and sequence.slack_only is slack_only:
                    (decodes if gap == 1 else prompts).append(sequence)
            if self.policy.first == "decodes":
                self._offer_decodes(decodes, advances, budget)
            if self.policy.mixed or not advances:
                self._offer_prompts(prompts, slack_only, advances, budget)
            if self.policy.first == "prompts" and not advances:
                self._offer_decodes(decodes, advances, budget)
        return advances, budget

    def _offer_decodes(
        self, decodes: Items[Sequence], advances: dict[Sequence, Advance], budget: StepBudget
    ) -> None:
        spare, offered = budget.left - len(decodes), bool(self.verifier.offered)
        for sequence in decodes:
            if offered and (used := self.verifier.take(sequence, spare, len(self.running), advances, budget)):
                spare -= used
                continue
            ready = sequence.slot is not None and sequence.computed < sequence.writable and budget.left > 0
            if ready and len(sequence.tokens) == sequence.total and not sequence.slack_only:
                advances[sequence] = _ONE
                budget.take(sequence, 1)
            else:
                self._offer(sequence, advances, budget)

    def _offer_prompts(
        self,
        begun: Items[Sequence],
        slack_only: bool,
        advances: dict[Sequence, Advance],
        budget: StepBudget,
    ) -> None:
        """Those that run and those that wait, in the one order."""
        together: Iterable[Sequence] = begun
        if len(self.waiting):
            waiting = takewhile(lambda _: not self._closed, self.waiting.ranked(slack_only))
            together = merge(begun, waiting, key=self.order.rank)
        passed = 0
        for sequence in together:
            if sequence.slot is not None:
                self._offer(sequence, advances, budget)
                continue
            if self._closed:
                continue
            names = self.places.sharing.found(sequence)
            if names is None and passed < self.limits.max_slots:
                passed += 1
            elif (
                names is not None
                and (self.policy.batched or budget.room(sequence))
                and self._admit(sequence, names, advances, budget)
            ):
                self._offer(sequence, advances, budget)
            else:
                self._closed = True

    def _offer(self, sequence: Sequence, advances: dict[Sequence, Advance], budget: StepBudget) -> None:
        """A running sequence takes what it can of the budget. It may be preempted for lack of memory."""
        wanted = budget.room(sequence)
        if not wanted or sequence.slot is None or not self._writer.may_advance(sequence):
            return
        while (growths := self.places.grow(sequence, sequence.computed + wanted)) is None:
            if self.kept and self.running == [sequence]:
                self.end_batch()
                continue
            self._preempt(self.running[-1], advances, budget)
            self._closed = True  # what was just taken from a sequence is not for a new one
            if not sequence.tables:
                return
        advances[sequence] = Advance(wanted, growths)
        budget.take(sequence, wanted)

    def _admit(
        self,
        sequence: Sequence,
        names: Items[bytes],
        advances: dict[Sequence, Advance],
        budget: StepBudget,
    ) -> bool:
        """Let a waiting sequence run, beginning with the blocks of `names`, if there is room or can be made."""
        group = [sequence]
        if isinstance(sequence.request.contest, Beams):  # whole, so that no part of it waits for the rest
            group += [beam for beam in sequence.request.contest.living if beam is not sequence]
        if any(one.pending for one in group):
            return False
        slots = self.places.lacking_slots(group)
        blocks = max(self.places.lacking(group, names, self.running))
        if slots > 0 or blocks > 0:
            victims = self.order.outranked(sequence, self.running, slots, blocks, self.limits.max_slots)
            if not victims:
                return False
            for victim in victims:
                self._preempt(victim, advances, budget)
            found = self.places.sharing.found(sequence)
            if found is None or not self.places.fits(group, found, self.running):
                return False
            names = found
        if not sequence.begun and self.config.prefix_cache:
            self.counters.prefix_queried_tokens += sequence.prompt_tokens
            self.counters.prefix_hit_tokens += min(
                len(names) * self.limits.block_size, sequence.prompt_tokens
            )
        for one in group:
            self.waiting.remove(one)
            self.places.give(one, names if one is sequence else self.places.sharing.found(one) or ())
            insort(self.running, one, key=self.order.rank)
        return True

    def _preempt(self, victim: Sequence, advances: dict[Sequence, Advance], budget: StepBudget) -> None:
        """Back to those that wait, a beam with its whole group; what it was given in this step is free again."""
        contest = victim.request.contest
        for one in list(contest.living) if isinstance(contest, Beams) else [victim]:
            if one.slot is None:
                continue
            if (advance := advances.pop(one, None)) is not None:
                budget.give_back(one, advance.tokens, len(advance.drafts))
            self.running.remove(one)
            self.places.take_back(one)
            one.preempted += 1
            self.waiting.add(one)
            self.counters.preemptions += 1
            if isinstance(contest, Beams):
                contest.withdraw(one)

    def _fork(self, sequence: Sequence) -> Items[Sequence]:
        """The siblings that waited for this prompt share its blocks from now on."""
        if sequence.request.params.beam_width:  # they differ from the first token on
            return ()
        children, sequence.request.unforked = sequence.request.unforked, []
        for child in children:
            self.places.fork(sequence, child)
            insort(self.running, child, key=self.order.rank)
        return children

    # ---- ends

    def _append(self, sequence: Sequence, sample: TokenSample) -> None:
        request, contest = sequence.request, sequence.request.contest
        if sample.token < 0:
            for one in [sequence] if contest is None else list(request.sequences):
                self._finish(one, without_token(request))
            return
        if request.pooling is not None:
            self._finish(sequence, End("stop"), sample)
            return
        if isinstance(contest, Beams):
            sequence.total -= 1  # which token it is, is decided when those of all beams are there
            if sequence.tables and contest.offer(sequence, sample):
                self._expand(request, contest)
            return
        end = self._learn(sequence, sample.token)
        if contest is not None:
            contest.note(sequence, sample)
        if end is not None:
            self._finish(sequence, end, sample)
        elif contest is None:
            self.outbox.append(output_of(sequence, (sample,)))

    def _learn(self, sequence: Sequence, token: int) -> End | None:
        """A sequence has one token more; how that ends it."""
        piece = self._piece(sequence, token)
        sequence.learn(token, piece)
        self.counters.generation_tokens += 1
        return end_after(sequence, token, piece)

    def _expand(self, request: Request, contest: Beams) -> None:
        """The beams' next generation. The first child of a beam goes on in its tables, others fork them."""
        before = list(contest.living)
        generation = contest.expand(lambda beam, token: end_with(beam, token, self._piece(beam, token)))
        if not generation:
            for sequence in list(request.sequences):
                self._remove(sequence)
            self.outbox.extend(contest.best())
            return
        parents = {parent for parent, _ in generation}
        for sequence in before:
            if sequence not in parents:
                self.running.remove(sequence)
                self.places.drop(sequence)
                request.unforked.append(sequence)
        living: list[Sequence] = []
        for parent, _ in generation:
            if parent in living:
                child = request.unforked.pop()
                child.follow(parent)
                self.places.fork(parent, child)
                insort(self.running, child, key=self.order.rank)
                living.append(child)
            else:
                living.append(parent)
        for sequence, (_, step) in zip(living, generation, strict=True):
            self._learn(sequence, step.token)
            sequence.total += 1
        contest.live(living)

    def _finish(self, sequence: Sequence, end: End, sample: TokenSample | None = None) -> None:
        request, contest = sequence.request, sequence.request.contest
        if contest is None:
            self.outbox.append(output_of(sequence, () if sample is None else (sample,), end))
        else:
            contest.ended(sequence, end)
        self._remove(sequence, keep=self.policy.batched and end.reason != "abort")
        if contest is not None and not request.sequences:
            self.outbox.extend(contest.best())

    def _remove(self, sequence: Sequence, *, keep: bool = False) -> None:
        """A sequence has ended. `keep`: it holds slot and memory until its batch ends."""
        request = sequence.request
        if sequence.tables:
            self.running.remove(sequence)
            if keep:
                self.places.sharing.leave(sequence)
                self.kept.append(sequence)
            else:
                self.places.take_back(sequence)
        elif sequence in request.unforked:
            request.unforked.remove(sequence)
            self.places.take_slot(sequence)
        else:
            self.waiting.remove(sequence)
        sequence.finished = True
        request.sequences.remove(sequence)
        if not request.sequences:
            del self._requests[request.id]
            self.order.leave(request)

    def _piece(self, sequence: Sequence, token: int) -> bytes:
        return self.vocabulary.bytes_of(token, sequence.request.hides(token))
