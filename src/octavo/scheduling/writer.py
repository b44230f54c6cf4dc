"""Writes a step's decisions down as a plan, and what its samples will mean. Decides nothing, knows no memory."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Items
from typing import NamedTuple

from octavo.backends.base import BlockCopy, Plan, PlanRow, SampleRow, SlotOpen
from octavo.memory.table import BlockTable, Growth, written
from octavo.scheduling.sequence import Sequence
from octavo.scheduling.swap import NO_ORDERS, Orders

__all__ = ["Advance", "Flight", "Writer"]


class Advance(NamedTuple):
    """A decision of the step in the making: a sequence computes `tokens` tokens, in tables grown to hold them."""

    tokens: int
    growths: tuple[Growth | None, ...]
    drafts: tuple[int, ...] = ()
    """The last ones of these tokens, where they are guesses."""


class Flight(NamedTuple):
    """What a plan's samples mean: whose each one is and at which position its token stands; who ends with it."""

    owners: list[tuple[Sequence, int, int]]
    """And the draft before it, which must have been right for the sample to mean anything; −1: there is none."""
    ends: list[Sequence]
    computed: list[tuple[Sequence, tuple[BlockTable, ...], int]]
    """What the plan has computed when it is done: a sequence's tokens up to a place, in the tables that it had. Only of
    sequences with whole blocks that the prefix cache was not told of."""
    drafted: list[Sequence]
    """Those that compute guesses in it."""
    advancing: list[Sequence]
    """All that the plan computes for."""


class Writer:
    """One plan after the other: an id that the plan before is still choosing is named by its place there."""

    def __init__(self, block_size: int, fork: Callable[[Sequence], Items[Sequence]]) -> None:
        """`fork` makes the siblings that take over a prompt which is computed now; they hold slots and tables."""
        self._block_size = block_size
        self._fork = fork
        self._awaited: dict[Sequence, int] = {}
        """Who waits for a token of the last plan, and for which of its samples."""

    def may_advance(self, sequence: Sequence) -> bool:
        """Is its next token known, or chosen by the last plan?"""
        if sequence.drafted:  # how far it has come is known when they are verified
            return False
        if not sequence.pending:
            return True
        params = sequence.request.params
        # A beam's next token, or what a grammar allows then, is known when the one before it is.
        return sequence in self._awaited and not params.beam_width and params.grammar is None

    def write(
        self, step: int, advances: dict[Sequence, Advance], disk: Orders = NO_ORDERS
    ) -> tuple[Plan, Flight]:
        """The plan of `step`; every sequence's counts stand as after it. `disk`: what it says about the disk cache."""
        opens: list[SlotOpen] = []
        copies: list[BlockCopy] = []
        rows: list[PlanRow] = []
        samples: list[SampleRow] = []
        flight = Flight([], [], [], [], list(advances))
        awaited: dict[Sequence, int] = {}

        def choose(sequence: Sequence, offset: int) -> None:
            assert sequence.slot is not None
            if sequence.request.pooling is not None:
                flight.owners.append((sequence, sequence.total, -1))
                samples.append(SampleRow(len(rows) - 1, offset, sequence.slot))
                return
            if not sequence.request.max_output:
                flight.ends.append(sequence)
                return
            awaited[sequence] = len(samples)
            flight.owners.append((sequence, sequence.total, -1))
            samples.append(SampleRow(len(rows) - 1, offset, sequence.slot))
            sequence.total += 1

        for sequence, advance in advances.items():
            rows.append(self._row(sequence, advance, opens, copies))
            end = sequence.computed = sequence.computed + advance.tokens - len(advance.drafts)
            if end - sequence.stored >= self._block_size:
                flight.computed.append((sequence, sequence.tables, end))
            if sequence.request.scores_prompt:
                _score(sequence, end - advance.tokens, len(rows) - 1, samples, flight)
            if end < sequence.total:
                continue
            forks = self._fork(sequence) if end == sequence.prompt_tokens else ()
            opens.extend(map(_open, forks))
            for chooser in (sequence, *forks):
                choose(chooser, advance.tokens - len(advance.drafts) - 1)
            if advance.drafts:
                _verify(sequence, advance, len(rows) - 1, samples, flight)
        self._awaited = awaited
        return Plan(step, tuple(opens), tuple(copies), tuple(rows), tuple(samples), *disk), flight

    def _row(
        self, sequence: Sequence, advance: Advance, opens: list[SlotOpen], copies: list[BlockCopy]
    ) -> PlanRow:
        """The row of one sequence; opens its slot first if the backend has not heard of it."""
        assert sequence.slot is not None
        end = sequence.computed + advance.tokens - len(advance.drafts)
        growths = advance.growths if any(advance.growths) else ()  # of a decode, mostly none
        for group, growth in enumerate(growths):
            if growth is not None and growth.copy is not None:
                copies.append(BlockCopy(group, *growth.copy))
        if not sequence.told:
            opens.append(_open(sequence))
            return PlanRow(sequence.slot, sequence.computed, advance.tokens)
        tokens = tuple(sequence.tokens[sequence.told : end])
        if sequence.told + len(tokens) < end:
            tokens += (-self._awaited[sequence] - 1,)
        sequence.told = end if tokens else sequence.told
        tokens += advance.drafts
        if not growths:
            return PlanRow(sequence.slot, sequence.computed, advance.tokens, tokens)
        return PlanRow(
            sequence.slot,
            sequence.computed,
            advance.tokens,
            tokens,
            *written(growths),
        )


def _open(sequence: Sequence) -> SlotOpen:
    assert sequence.slot is not None
    sequence.told = len(sequence.tokens)
    tables = tuple(tuple(table.blocks) for table in sequence.tables)
    request = sequence.request
    return SlotOpen(
        sequence.slot, tuple(sequence.tokens), tables, request.rule(sequence.child), request.pooling
    )


def _verify(sequence: Sequence, advance: Advance, row: int, samples: list[SampleRow], flight: Flight) -> None:
    """Choose behind each draft as if it were right."""
    assert sequence.slot is not None
    sequence.drafted = len(advance.drafts)
    sequence.tried += len(advance.drafts)
    flight.drafted.append(sequence)
    first = advance.tokens - len(advance.drafts)
    for place, draft in enumerate(advance.drafts):
        samples.append(SampleRow(row, first + place, sequence.slot))
        flight.owners.append((sequence, sequence.total + place, draft))


def _score(sequence: Sequence, start: int, row: int, samples: list[SampleRow], flight: Flight) -> None:
    """Ask for the log-probability of each prompt token that the tokens start … computed − 1 predict."""
    assert sequence.slot is not None
    top = sequence.request.params.prompt_logprobs or 0
    for position in range(start + 1, min(sequence.computed, sequence.prompt_tokens - 1) + 1):
        samples.append(SampleRow(row, position - 1 - start, sequence.slot, sequence.tokens[position], top))
        flight.owners.append((sequence, position, -1))
