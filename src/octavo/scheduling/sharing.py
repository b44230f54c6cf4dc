"""What a sequence can take over from others instead of computing it, and whom it waits for. Knows tokens and blocks.

The prefix cache has what is computed. What is being computed has a name too, and the sequence that computes it: another
one that begins alike waits for that, at most until its owner ends. What is on disk (see `swap`) is waited for likewise.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as Items

from octavo.memory.pool import BlockPool
from octavo.memory.prefix import PrefixCache
from octavo.scheduling.sequence import Sequence
from octavo.scheduling.swap import Swap

__all__ = ["Sharing"]


class Sharing:
    """Blocks that sequences share by their names; nothing of it happens unless `enabled`. `fetches`: how many blocks
    may be asked of the disk cache at once; 0 where there is none."""

    def __init__(self, pools: Items[BlockPool], block_size: int, *, enabled: bool, fetches: int = 0) -> None:
        self.prefixes = PrefixCache(pools)
        self.swap = Swap(self.prefixes, pools, block_size, fetches) if enabled and fetches else None
        self._block_size = block_size
        self.enabled = enabled
        self._computing: dict[bytes, Sequence] = {}

    def found(self, sequence: Sequence) -> Items[bytes] | None:
        """The names of the blocks that a waiting sequence can take over now; None while another one computes more, or
        the disk gives more."""
        names = self._beginning(sequence)
        found = self.prefixes.find(names)
        if found < len(names) and (
            names[found] in self._computing
            or (self.swap is not None and self.swap.awaited(sequence, names, found))
        ):
            return None
        return names[:found]

    def begin(self, sequence: Sequence, blocks: int) -> None:
        """The sequence runs from now on, and has taken over its first `blocks`: others wait for its other full ones.

        What a preempted sequence finds again is not counted: it had been computed for it before.
        """
        size = self._block_size
        sequence.computed = sequence.stored = blocks * size
        if not sequence.begun:
            sequence.cached_tokens = min(sequence.computed, sequence.prompt_tokens)
        sequence.begun = True
        sequence.asked = 0
        if self.enabled:
            for name in sequence.chain.names(sequence.tokens, len(sequence.tokens) // size)[blocks:]:
                self._computing.setdefault(name, sequence)

    def store(self, sequence: Sequence, end: int) -> None:
        """Blocks that are full and computed up to the token `end` can be found by others."""
        # A token that could not be chosen was computed and is not known: no name without it.
        size, tokens = self._block_size, sequence.tokens
        full = min(end, len(tokens)) // size
        if not self.enabled or full * size <= sequence.stored:
            return
        for at in range(sequence.stored // size, full):
            name = sequence.chain.name(tokens, at)
            for group, table in enumerate(sequence.tables):
                self.prefixes.store(group, name, table.blocks[at])
            self._end(sequence, name)
        sequence.stored = full * size

    def leave(self, sequence: Sequence) -> None:
        """The sequence does not run any more; nobody waits for it."""
        for name in sequence.chain.made:
            self._end(sequence, name)
        sequence.stored = 0

    def check(self, running: Collection[Sequence]) -> None:
        """Prove that names, blocks and owners agree. Raises AssertionError."""
        assert set(self._computing.values()) <= set(running), "someone computes who does not run"
        self.prefixes.check()

    def _beginning(self, sequence: Sequence) -> Items[bytes]:
        """The names of all blocks that it may take over: its last token is always computed, and where something is
        wanted of each token of the prompt, all are."""
        if not self.enabled or not sequence.request.reads_cache:
            return ()
        return sequence.chain.names(sequence.tokens, (len(sequence.tokens) - 1) // self._block_size)

    def _end(self, sequence: Sequence, name: bytes) -> None:
        if self._computing.get(name) is sequence:
            del self._computing[name]
