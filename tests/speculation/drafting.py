"""Guesses that are right, wrong, or either, for requests whose answers are known. Knows no drafter."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal
from zlib import crc32

from octavo.scheduling.inputs import Draft
from octavo.scheduling.scheduler import Scheduler
from octavo.scheduling.verifying import Verified

Kind = Literal["right", "wrong", "random", "each"]
KINDS: tuple[Kind, ...] = ("right", "wrong", "random")
Answers = dict[tuple[str, int], list[int]]


class Drafting:
    """Offers each stream `most` tokens in each step, as a speculator does; with 0, one to eight. Kind "each": one
    stream's are right, the next one's wrong, the third one's random."""

    def __init__(self, scheduler: Scheduler, answers: Answers, kind: Kind, most: int, ids: int = 256) -> None:
        self._scheduler, self._answers, self._kind, self._most, self._ids = (
            scheduler,
            answers,
            kind,
            most,
            ids,
        )
        self._random = random.Random(most)
        self.seen: list[Verified] = []
        self.accepted_at: list[int] = []
        self.reached_at: list[int] = []

    def propose(self) -> tuple[Draft, ...]:
        drafts = []
        for one in self._scheduler.running:
            name = (one.request.id, one.child)
            begun = len(one.tokens) - one.prompt_tokens
            count = self._most or self._random.randint(1, 8)
            known = self._answers[name][begun : begun + count]
            # Behind the known end too: what is guessed there must never come out.
            known += [1] * (count - len(known))
            kind = self._kind if self._kind != "each" else KINDS[crc32(repr(name).encode()) % 3]
            drafts.append(Draft(*name, tuple(self._guess(kind, token) for token in known)))
        return tuple(drafts)

    def check(self) -> None:
        pass

    def close(self) -> None:
        pass

    def verified(self, drafts: Sequence[Verified]) -> None:
        self.seen.extend(drafts)

    def _guess(self, kind: Kind, token: int) -> int:
        wrong = kind == "wrong" or (kind == "random" and self._random.random() < 0.3)
        return (token + 1) % self._ids if wrong else token % self._ids
