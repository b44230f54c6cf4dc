"""Prompt lookup: what came after the last tokens when they came before, in the same text. Knows no model.

The idea is prompt lookup decoding's (Saxena 2023) and of speculation by reference (Yang et al. 2023,
arXiv:2304.04487): answers that edit, extract or go on with a text repeat it.
"""

from __future__ import annotations

from collections.abc import Sequence

from octavo.speculation.drafter import Guess, Text

__all__ = ["NgramDrafter", "NgramIndex"]

_CANDIDATES = 8
"""Earlier places that are compared, the newest first."""


class NgramIndex:
    """Where each run of `least` tokens of one growing text ended."""

    def __init__(self, least: int, most: int) -> None:
        self._least, self._most = least, most
        self._last: dict[tuple[int, ...], int] = {}
        self._before: list[int] = []
        """By the end of a run: the end of the same run before it; −1: none."""

    def guess(self, tokens: list[int], count: int) -> tuple[list[int], int]:
        """At most `count` tokens that may come next, and how many tokens before them were the same. O(1) but for the
        tokens that are new."""
        least, end = self._least, len(tokens) - 1
        last, before = self._last, self._before
        for at in range(len(before), end):
            if at + 1 < least:
                before.append(-1)
                continue
            run = tuple(tokens[at + 1 - least : at + 1])
            before.append(last.get(run, -1))
            last[run] = at
        if end + 1 < least:
            return [], 0
        place = last.get(tuple(tokens[end + 1 - least :]), -1)
        best = length = 0
        for _ in range(_CANDIDATES):
            if place < 0 or length == self._most:
                break
            same = least
            while same < self._most and same <= place and tokens[place - same] == tokens[end - same]:
                same += 1
            if same > length:
                best, length = place, same
            place = before[place]
        if not length:
            return [], 0
        found = tokens[best + 1 : best + 1 + count]
        while len(found) < count:  # the run goes on into itself: a loop
            found.append(found[len(found) - (end - best)])
        return found, length


class NgramDrafter:
    """`least` to `most`: how many of the last tokens must be found before, and how many are compared."""

    name = "ngram"
    priors: tuple[tuple[float, ...], ...] = (
        (0.2, 0.2, 0.2, 0.35, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.87, 0.89, 0.9, 0.91, 0.92, 0.93, 0.94),
    )

    def __init__(self, least: int = 2, most: int = 16) -> None:
        if not 1 <= least <= most:
            raise ValueError(f"least is {least} and most {most}; 1 <= least <= most is needed")
        self._least, self._most = least, most

    def draft(self, texts: Sequence[Text], count: int) -> list[Guess]:
        guesses = []
        for text in texts:
            index = text.memory.get(self.name)
            if index is None:
                index = text.memory[self.name] = NgramIndex(self._least, self._most)
            assert isinstance(index, NgramIndex)
            tokens, same = index.guess(text.tokens, count)
            guesses.append(Guess(tuple(tokens), same))
        return guesses

    def ended(self, text: Text) -> None:
        text.memory.pop(self.name, None)
