"""A smaller model that guesses for a larger one: it reads the same text, and chooses by the same rule and noise.

With the same counter-based noise (see `backends.base.ChoiceRule`) both choose the same token wherever their
probabilities are much alike, so drafts are right at temperature 1 as often as the models agree, not by the luck of two
draws. The idea of a draft model is Leviathan et al.'s (2023, arXiv:2211.17192) and Chen et al.'s (2023,
arXiv:2302.01318).

It has slots, a block pool and a prefix cache of its own. What it has computed of a text stays as long as the text does,
and guesses that were right are not computed twice. Knows a backend, no scheduler.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from octavo.backends.base import Backend, BlockCopy, ChoiceRule, Plan, PlanRow, SampleRow, SlotOpen
from octavo.memory.pool import BlockPool
from octavo.memory.prefix import Chain, PrefixCache
from octavo.memory.table import BlockTable, Growth, written
from octavo.speculation.drafter import Guess, Prior, Text
from octavo.timing.clock import Clock
from octavo.timing.step_time import StepLoad, StepTime

__all__ = ["ModelDrafter"]

_CHUNK = 256
"""Tokens of texts that are new to it, in one call: others wait for it meanwhile."""


class _Followed:
    """What the model has computed of one text."""

    __slots__ = ("chain", "computed", "guessed", "opened", "slot", "stored", "tables")

    def __init__(self, slot: int, tables: tuple[BlockTable, ...], chain: Chain, computed: int) -> None:
        self.slot = slot
        self.opened = False
        """The backend knows of it."""
        self.tables = tables
        self.chain = chain
        self.computed = self.stored = computed
        """Tokens of the text whose K and V are there, and those of them that the prefix cache was told of."""
        self.guessed: list[int] = []
        """Guesses whose K and V stand behind them."""


class ModelDrafter:
    """One draft model. Guesses are made for all texts together, a token of each in one step of it."""

    name = "draft"
    priors: tuple[Prior, ...] = (Prior(0.0, 0.0, 2.5, 0.0, 0.0, 0.0),)

    def __init__(self, backend: Backend, vocab_size: int, clock: Clock) -> None:
        """`vocab_size`: of the model that verifies; ids beyond it are not guessed."""
        self.backend = backend
        self.step_time = StepTime()
        """Of this model's steps."""
        self.steps = 0
        self.spent_s = 0.0
        """How long the last guesses took."""
        self._vocab_size = min(vocab_size, backend.spec.vocab_size)
        self._clock = clock
        limits = backend.limits
        self._size, self._most = limits.block_size, limits.max_model_len
        self._pools = tuple(BlockPool(limits.num_blocks) for _ in backend.spec.kv_groups)
        self._prefixes = PrefixCache(self._pools)
        self._slots = list(range(limits.max_slots))
        self._followed: dict[Text, _Followed] = {}
        """The one that was used last stands last."""

    def draft(self, texts: Sequence[Text], count: int) -> list[list[Guess]]:
        began_s = self._clock.now_s()
        wanted = set(texts)
        short = [text for text in texts if len(text.tokens) + count <= self._most]
        followed = [(text, one) for text in short if (one := self._follow(text, wanted)) is not None]
        followed.sort(
            key=lambda pair: len(pair[0].tokens) - pair[1].computed
        )  # those that have little to read first
        rows = []
        left = min(self.backend.limits.max_step_tokens, _CHUNK + len(texts))
        for text, one in followed:
            end = len(text.tokens)
            gap = min(end - one.computed, left)
            reach = end + count - 1 if one.computed + gap == end else one.computed + gap
            growths = self._grow(one, reach, wanted) if gap else None
            if growths is not None:
                rows.append((text, one, gap, growths))
                left -= gap
        guesses = self._read(rows) if rows else {}
        going = [(text, self._followed[text]) for text in guesses]
        for _ in range(count - 1):
            going = [(text, one) for text, one in going if guesses[text] and guesses[text][-1] >= 0]
            if not going:
                break
            self._guess_on(going, guesses)
        self.spent_s = self._clock.now_s() - began_s
        return [
            [Guess(tuple(found), 0)] if (found := self._known(guesses.get(text, []))) else []
            for text in texts
        ]

    def ended(self, text: Text) -> None:
        followed = self._followed.pop(text, None)
        if followed is not None:
            self._slots.append(followed.slot)
            for table in followed.tables:
                table.release()

    def close(self) -> None:
        """Free the model."""
        self.backend.close()

    def seconds(self, streams: int, kv_tokens: int) -> float:
        """Of one of its steps, for so many texts which have that many tokens together; 0 while that is not known."""
        return self.step_time.predict(StepLoad(streams, streams, kv_tokens, 0))

    def check(self) -> None:
        """Prove that no block and no slot leaked. Raises AssertionError."""
        for group, pool in enumerate(self._pools):
            pool.check(one.tables[group].blocks for one in self._followed.values())
        self._prefixes.check()
        held = [one.slot for one in self._followed.values()]
        assert sorted([*held, *self._slots]) == list(range(self.backend.limits.max_slots)), "a slot leaked"

    # ---- one text

    def _follow(self, text: Text, wanted: set[Text]) -> _Followed | None:
        """How far it has come with this text; None where there is no slot for one more."""
        followed = self._followed.pop(text, None)
        if followed is None:
            if not self._slots and not self._drop_one(wanted):
                return None
            chain = Chain(text.scope.encode(), self._size)
            names = chain.names(text.tokens, (len(text.tokens) - 1) // self._size)
            names = names[: self._prefixes.find(names)]
            tables = tuple(
                BlockTable(pool, self._size, self._prefixes.take(group, names))
                for group, pool in enumerate(self._pools)
            )
            followed = _Followed(self._slots.pop(), tables, chain, len(names) * self._size)
        self._followed[text] = followed
        right = 0
        for guessed, token in zip(followed.guessed, text.tokens[followed.computed : -1], strict=False):
            if guessed != token:
                break
            right += 1
        # The last token is computed in any case: the first guess comes from it.
        followed.computed = min(followed.computed + right, len(text.tokens) - 1)
        followed.guessed = []
        self._store(text, followed)
        return followed

    def _open(self, text: Text, followed: _Followed) -> SlotOpen:
        tables = tuple(tuple(table.blocks) for table in followed.tables)
        return SlotOpen(followed.slot, tuple(text.tokens), tables, self._rule(text.rule))

    def _rule(self, rule: ChoiceRule) -> ChoiceRule:
        """The same rule, for ids that this model has."""
        size = self.backend.spec.vocab_size
        return msgspec.structs.replace(
            rule,
            logprobs=-1,
            bias=tuple(pair for pair in rule.bias if pair[0] < size),
            banned_early=tuple(token for token in rule.banned_early if token < size),
        )

    def _grow(self, followed: _Followed, end: int, wanted: set[Text]) -> tuple[Growth | None, ...] | None:
        """Blocks for the tokens up to `end`; texts that nobody asks for give theirs. None where that is not enough."""
        while any(table.lacks(followed.computed, end) for table in followed.tables):
            if not self._drop_one(wanted):
                return None
        return tuple(table.grow(followed.computed, end) for table in followed.tables)

    def _drop_one(self, wanted: set[Text]) -> bool:
        """Forget the text that was asked for least recently, unless it is wanted now."""
        for text in self._followed:
            if text not in wanted:
                self.ended(text)
                return True
        return False

    def _store(self, text: Text, followed: _Followed) -> None:
        """Full blocks can be found by texts that begin alike."""
        full, stored = followed.computed // self._size, followed.stored // self._size
        if full <= stored:
            return
        names = followed.chain.names(text.tokens, full)
        for at in range(stored, full):
            for group, table in enumerate(followed.tables):
                self._prefixes.store(group, names[at], table.blocks[at])
        followed.stored = full * self._size

    # ---- steps

    def _read(
        self, rows: Sequence[tuple[Text, _Followed, int, tuple[Growth | None, ...]]]
    ) -> dict[Text, list[int]]:
        """Compute so many tokens of each text; the first guess for those that are known to the end then."""
        opens, copies, plan_rows, samples, chosen = [], [], [], [], []
        load = StepLoad()
        for number, (text, followed, gap, growths) in enumerate(rows):
            start, end = followed.computed, followed.computed + gap
            for group, growth in enumerate(growths):
                if growth is not None and growth.copy is not None:
                    copies.append(BlockCopy(group, *growth.copy))
            at: tuple[int, ...] = ()
            blocks: tuple[tuple[int, ...], ...] = ()
            if not followed.opened:
                opens.append(self._open(text, followed))
                followed.opened = True
            elif any(growths):
                at, blocks = written(growths)
            tokens = tuple(text.tokens[start:end])
            plan_rows.append(PlanRow(followed.slot, start, gap, tokens, at, blocks))
            ready = end == len(text.tokens)
            load = load.with_chunk(start, gap, int(ready))
            if ready:
                samples.append(SampleRow(number, gap - 1, followed.slot))
                chosen.append(text)
            followed.computed = end
        plan = Plan(self.steps, tuple(opens), tuple(copies), tuple(plan_rows), tuple(samples))
        first = self._run(plan, load)
        for text, followed, _, _ in rows:
            self._store(text, followed)
        return {text: [token] for text, token in zip(chosen, first, strict=True)}

    def _guess_on(self, going: Sequence[tuple[Text, _Followed]], guesses: dict[Text, list[int]]) -> None:
        """One token more behind each one's guesses."""
        load = StepLoad()
        rows = []
        for text, followed in going:
            place = followed.computed + len(followed.guessed)
            rows.append(PlanRow(followed.slot, place, 1, (guesses[text][-1],)))
            followed.guessed.append(guesses[text][-1])
            load = load.with_chunk(place, 1, 1)
        samples = tuple(SampleRow(number, 0, one.slot) for number, (_, one) in enumerate(going))
        tokens = self._run(Plan(self.steps, rows=tuple(rows), samples=samples), load)
        for (text, _), token in zip(going, tokens, strict=True):
            guesses[text].append(token)

    def _run(self, plan: Plan, load: StepLoad) -> list[int]:
        """The tokens that a plan chooses."""
        began_s = self._clock.now_s()
        handle = self.backend.launch(plan)
        self.backend.sample(handle)
        samples = self.backend.collect(handle)
        self.steps += 1
        self.step_time.observe(load, self._clock.now_s() - began_s)
        return [sample.token for sample in samples]

    def _known(self, tokens: list[int]) -> list[int]:
        """Up to the first one that the other model has not got."""
        for place, token in enumerate(tokens):
            if not 0 <= token < self._vocab_size:
                return tokens[:place]
        return tokens
