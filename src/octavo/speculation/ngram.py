"""Prompt lookup: what came after the last tokens when they came before, in the same text. Knows no model.

The idea is prompt lookup decoding's (Saxena 2023) and of speculation by reference (Yang et al. 2023,
arXiv:2304.04487): answers that edit, extract or go on with a text repeat it. Where an answer leaves what it copies, by
a word more or another one, it is most likely to come back to it nearby: a single token is then enough to find it.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from octavo.speculation.drafter import Elsewhere, Guess, Prior, Text

__all__ = ["Lookup", "NgramDrafter"]

_CANDIDATES = 8
"""Earlier places that are compared, the newest first."""
_ANCHOR = 4
"""Tokens that must be the same for a place to be taken as what the text copies."""
_APART = 6
"""Tokens by which a text may differ from what it copies until it has left it."""
_NEAR = 12
"""How far from where it should go on it is looked for."""

RUN, ALIGNED = 0, 1
"""Sources: found by its last tokens, and by going on in what it copied."""


class Lookup:
    """Finds a growing text in a reference, which is the same text before, or another one that stays as it is."""

    def __init__(self, reference: list[int], least: int, most: int, *, begins_at: int | None = None) -> None:
        """`begins_at`: where a text is expected to begin with the reference."""
        self._reference = reference
        self._least, self._most = least, most
        self._last: dict[tuple[int, ...], int] = {}
        """Where each run of `least` tokens ended last, in the reference."""
        self._before: list[int] = []
        """By the end of a run: the end of the same run before it; −1: none."""
        self._anchor = -1 if begins_at is None else 0
        """Where in the reference the text is, or was when it left: the next token there. −1: nowhere."""
        self._run = self._apart = 0
        """Tokens that were the same up to there, and different ones since."""
        self._seen = begins_at

    def guesses(self, tokens: list[int], count: int) -> list[Guess]:
        """At most one of each source, of `count` tokens at most. O(1) but for the tokens that are new."""
        self._index(len(self._reference) - (self._reference is tokens))
        self._follow(tokens)
        places = self._places(tokens)
        found: list[Guess] = []
        start = length = 0
        if places:
            _, start, length = max(places, key=itemgetter(2))  # of equal ones the first, which is the newest
            found.append(self._guess(tokens, start, length, RUN, places, count))
        goes_on = self._anchor >= 0 and (not self._apart or self._find_near(tokens))
        if goes_on and self._anchor != start and self._anchor < len(self._reference):
            found.append(self._guess(tokens, self._anchor, self._run, ALIGNED, places, count))
        if length >= _ANCHOR and (self._anchor < 0 or self._apart):
            self._anchor, self._run, self._apart = start, length, 0
        return found

    def _index(self, end: int) -> None:
        """Runs that end before `end`: something comes after them."""
        reference, least, last, before = self._reference, self._least, self._last, self._before
        for at in range(len(before), end):
            if at + 1 < least:
                before.append(-1)
                continue
            run = tuple(reference[at + 1 - least : at + 1])
            before.append(last.get(run, -1))
            last[run] = at

    def _follow(self, tokens: list[int]) -> None:
        """Go along in the reference with the tokens that are new."""
        if self._seen is None:
            self._seen = len(tokens)
        reference = self._reference
        for token in tokens[self._seen :] if self._anchor >= 0 else ():
            if not self._apart and self._anchor < len(reference) and reference[self._anchor] == token:
                self._anchor += 1
                self._run = min(self._run + 1, self._most)
                continue
            self._apart += 1
            if self._apart > _APART:
                self._anchor = -1
                break
        self._seen = len(tokens)

    def _places(self, tokens: list[int]) -> list[tuple[list[int], int, int]]:
        """Where the last tokens stand in the reference, the newest place first: the reference, the place behind them,
        and how many of them stand there."""
        reference, least, most, end = self._reference, self._least, self._most, len(tokens) - 1
        places: list[tuple[list[int], int, int]] = []
        place = self._last.get(tuple(tokens[end + 1 - least :]), -1)
        while place >= 0 and len(places) < _CANDIDATES:
            if place + 1 < len(reference):
                same = least
                longest = min(most, place + 1, end + 1)
                while same < longest and reference[place - same] == tokens[end - same]:
                    same += 1
                places.append((reference, place + 1, same))
            place = self._before[place]
        return places

    def _find_near(self, tokens: list[int]) -> bool:
        """Does the text go on near the place where it left the reference? It does if its last tokens, of those since,
        stand there; the most of them, and of such places the nearest to where it would be by now."""
        reference, apart, end = self._reference, self._apart, len(tokens)
        expected = self._anchor + apart
        last = tokens[-1]
        best = place = 0
        lowest, highest = max(self._anchor - 1, 1), min(expected + _NEAR, len(reference) - 1)
        for start in sorted(range(lowest, highest + 1), key=lambda start: abs(start - expected)):
            if reference[start - 1] != last:
                continue
            same = 1
            while same < min(apart, start) and reference[start - 1 - same] == tokens[end - 1 - same]:
                same += 1
            if same > best:
                best, place = same, start
        if best:
            self._anchor, self._run, self._apart = place, best, 0
        return best > 0

    def _guess(
        self,
        tokens: list[int],
        start: int,
        same: int,
        source: int,
        places: Sequence[tuple[list[int], int, int]],
        count: int,
    ) -> Guess:
        reference = self._reference
        found = reference[start : start + count]
        if reference is tokens:
            while len(found) < count:  # the run goes on into itself: a loop
                found.append(found[len(found) - (len(tokens) - start)])
        guessed = tuple(found)
        return Guess(guessed, same, source, Elsewhere(guessed, places))


class NgramDrafter:
    """`least` to `most`: how many of the last tokens must be found before, and how many are compared."""

    name = "ngram"
    priors: tuple[Prior, ...] = (
        Prior(-3.9, 1.7, 1.2, -2.2, 1.8, -1.6),
        Prior(-1.4, 1.7, 0.5, -2.6, 0.8, -0.4),
    )

    def __init__(self, least: int = 2, most: int = 16) -> None:
        if not 1 <= least <= most:
            raise ValueError(f"least is {least} and most {most}; 1 <= least <= most is needed")
        self._least, self._most = least, most

    def draft(self, texts: Sequence[Text], count: int) -> list[list[Guess]]:
        found: list[list[Guess]] = []
        for text in texts:
            lookup = text.memory.get(self.name) or self._begin(text)
            if lookup is None:
                found.append([])
                continue
            assert isinstance(lookup, Lookup)
            text.memory[self.name] = lookup
            found.append(lookup.guesses(text.tokens, count))
        return found

    def ended(self, text: Text) -> None:
        text.memory.pop(self.name, None)

    def _begin(self, text: Text) -> Lookup | None:
        """Where this text is looked up; None where there is nothing to look it up in."""
        return Lookup(text.tokens, self._least, self._most)
