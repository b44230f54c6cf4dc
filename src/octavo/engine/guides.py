"""Which tokens the grammars allow in each step, and grammars that are still being compiled. Decides nothing.

A request with a grammar waits here, outside the scheduler's inputs, while a thread compiles it; then it enters at a
step boundary, so step logs know nothing of this. Where an answer stands in its grammar follows from its tokens alone:
it is the same in a batch, after a preemption, behind right and wrong drafts, and after a restart.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Items
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import TYPE_CHECKING

from octavo.errors import InvalidParameter
from octavo.sampling.grammar import Grammar
from octavo.sampling.guide import Compiler, Guide, MaskFiller
from octavo.scheduling.inputs import Add
from octavo.scheduling.outputs import FinishReason, SequenceOutput
from octavo.scheduling.sequence import Sequence
from octavo.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Guided", "Guides", "give_way", "told"]

_logger = logging.getLogger(__name__)

KEPT = 128
"""Compiled grammars that are kept for requests to come, and the bytes of their sources."""
KEPT_BYTES = 2 << 20
THREADS = 2
"""That compile: a large grammar does not hold up a small one."""
STACK_BYTES = 512 << 20
"""Of these threads; only what is used of it is ever there. llguidance recurses over a grammar, and a chain of 100,000
rules, as long as a source can hold, takes more than 256 MiB. A server lets only through what needs much less."""
NICENESS = 10
"""Of these threads: a step goes first."""
REST_S = 0.005
"""How long a step that has nothing to compute sleeps until a grammar is compiled; a message may come meanwhile."""


class Guided:
    """A request with a grammar: its beginning, and where each of its answers stands."""

    __slots__ = ("beginning", "children")

    def __init__(self, beginning: Guide) -> None:
        self.beginning = beginning
        self.children: dict[int, Guide] = {}


class Guides:
    """One engine's grammars."""

    def __init__(self, vocabulary: Vocabulary, end_ids: Items[int], *, threads: int = 1) -> None:
        """`threads`: that compute masks."""
        self._compiler = Compiler(vocabulary, end_ids)
        self._vocab_size = vocabulary.size
        self._threads = threads
        self._filler: MaskFiller | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._kept: OrderedDict[Grammar, Future[Guide]] = OrderedDict()
        self.compiling: dict[str, tuple[Add, Future[Guide]]] = {}
        """Requests that wait for their grammars."""
        self.guided: dict[str, Guided] = {}
        """Those whose grammars are compiled, until they end."""

    # ---- compiling

    def check(self, grammar: Grammar) -> None:
        """Compile it, now. Raises InvalidParameter for one that cannot be."""
        self._compiled(grammar).result()

    def enter(self, add: Add) -> None:
        """A request with a grammar: `take` gives it back when that is compiled. Its id is new."""
        assert add.params.grammar is not None and add.request_id not in self.compiling
        self.compiling[add.request_id] = add, self._compiled(add.params.grammar)

    def leave(self, request_id: str) -> Add | None:
        """The request, if it waits for its grammar; it is forgotten."""
        waiting = self.compiling.pop(request_id, None)
        return None if waiting is None else waiting[0]

    def take(self) -> tuple[list[Add], list[SequenceOutput]]:
        """Requests whose grammars are compiled since the last call, in the order of their arrival, and what those are
        told whose grammars cannot be."""
        adds: list[Add] = []
        refused: list[SequenceOutput] = []
        for name, (add, future) in list(self.compiling.items()):
            if not future.done():
                continue
            del self.compiling[name]
            error = future.exception()
            if error is None:
                self.guided.setdefault(name, Guided(future.result()))
                adds.append(add)
                continue
            known = isinstance(error, InvalidParameter)
            if not known:
                # Its message may quote the grammar, which is a client's; who asked is told.
                _logger.error("the grammar of %s could not be compiled: %s", name, type(error).__name__)
            refused += told(add, "error", f"The grammar cannot be used: {error}", refused=known)
        return adds, refused

    def rest(self) -> bool:
        """There was nothing to compute: sleep a little if a grammar is being compiled. Is one?"""
        if self.compiling:
            wait([future for _, future in self.compiling.values()], REST_S, "FIRST_COMPLETED")
        return bool(self.compiling)

    def _compiled(self, grammar: Grammar) -> Future[Guide]:
        future = self._kept.get(grammar)
        if future is None or (future.done() and future.exception() is not None):
            if self._pool is None:
                self._pool = ThreadPoolExecutor(THREADS, "octavo-grammar", initializer=give_way)
            before = threading.stack_size(STACK_BYTES)
            try:
                future = self._kept[grammar] = self._pool.submit(self._compiler.compile, grammar)
            finally:
                threading.stack_size(before)
        self._kept.move_to_end(grammar)
        size = sum([len(one.source) for one in self._kept])
        while len(self._kept) > KEPT or (size > KEPT_BYTES and len(self._kept) > 1):
            size -= len(self._kept.popitem(last=False)[0].source)
        return future

    # ---- answers on their way

    def of(self, sequence: Sequence) -> Guide | None:
        """Where a sequence's answer stands; None without a grammar."""
        guided = self.guided.get(sequence.request.id)
        if guided is None:
            return None
        guide = guided.children.get(sequence.child)
        if guide is None:
            guide = guided.children[sequence.child] = guided.beginning.copy()
        guide.follow(sequence.tokens, sequence.prompt_tokens)
        return guide

    def masks(self, owners: Items[tuple[Sequence, int, int]]) -> list[NDArray[np.int32] | None] | None:
        """One for each sample of a plan (its sequence, the position of its token, the draft before it or −1), as a
        backend takes them; None where no grammar is among them."""
        places: list[tuple[Guide, list[int]]] = []
        rows: list[int] = []
        for row, (sequence, position, draft) in enumerate(owners):
            if position < sequence.prompt_tokens or sequence.request.params.grammar is None:
                continue
            rows.append(row)
            if draft >= 0:
                places[-1][1].append(draft)  # behind the sequence's own row
                continue
            guide = self.of(sequence)
            assert guide is not None
            places.append((guide, []))
        if not places:
            return None
        if self._filler is None:
            self._filler = MaskFiller(self._vocab_size, self._threads)
        words = self._filler.fill(places)
        masks: list[NDArray[np.int32] | None] = [None] * len(owners)
        for row, mask in zip(rows, words, strict=True):
            masks[row] = mask
        row = 0
        for guide, drafts in places:
            if guide.error:
                _logger.warning("an answer ends before its time, for its grammar has become too complex")
                words[row : row + 1 + len(drafts)] = 0  # its mask allows the end, and the answer is not whole
            row += 1 + len(drafts)
        return masks

    def forget(self, known: Callable[[str], bool]) -> None:
        """Drop what is kept for requests that are no longer known."""
        for request_id in [one for one in self.guided if not known(one)]:
            del self.guided[request_id]

    def close(self) -> None:
        """End the threads; what is being compiled is not waited for. Calling it twice is harmless."""
        self.compiling.clear()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None


def told(
    add: Add, reason: FinishReason, error: str | None = None, *, refused: bool = False
) -> Iterable[SequenceOutput]:
    """The end of a request that the scheduler never saw; `refused`: the error is the client's."""
    for child in range(add.params.n):
        if child not in add.finished:
            yield SequenceOutput(add.request_id, child, finish_reason=reason, error=error, refused=refused)


def give_way() -> None:
    """Let this thread run where no other one wants to (Linux: a thread has its own niceness)."""
    with suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
