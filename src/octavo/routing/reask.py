"""Whether somebody asks nearly the same again: then the first answer was probably no good. Knows texts and times.

Two requests are alike when most of their words are, and neither names or counts what the other does not: questions
that differ by a name or a number alone are two questions. Words are looked at, not meanings: a question in
quite other words is not found. Of what was asked, words' hashes are kept, and no text.
"""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

__all__ = ["MINUTES", "Asking", "ReAsks", "alike"]

MINUTES = 10.0
ALIKE = 0.6
"""Of the words of both: twice those that both have, over all."""
SURE = 0.85
"""From here on a word each that the other lacks does no harm,"""
SHORT = 40
"""in requests of at most so many words: a long form that is filled in otherwise is another request."""
LONG_LETTERS = 4000
MOST_USERS = 10_000
MOST_EACH = 8
_STEM = 5
_WORDS = re.compile(r"\d+(?:[.,]\d+)*|[^\W\d_]+\d*")
_SMALL_WORDS = """
a an and are as at be but by can could did do does for from give has have how i in is it its list me
my no not of on or please so some tell than that the their then there these this those to was we
were what when where which who whom why will with would you your again wrong asked answer need want
one other real still said ask forgot now just only if der die das ein eine ist man wie nochmal bitte
nein le la les un une est que el los las es de write explain mean meaning word amount much many
yes yeah ok okay thanks thank continue next more go sure right hello hi test question
"""
_SMALL = frozenset(_SMALL_WORDS.split())


@dataclass(frozen=True, slots=True)
class Asking:
    """A request, as far as it is compared."""

    words: frozenset[int]
    """Hashes of stems."""
    marks: frozenset[int]
    """Those of them that are names or numbers."""
    whole: int
    """Of all words in their order."""

    @classmethod
    def of(cls, prompt: str) -> Asking:
        """From a prompt. Of one with more than 4,000 letters only its being the same is looked at: its words would take
        longer than a request may be held up."""
        if len(prompt) > LONG_LETTERS:
            whole = hash(prompt.strip())
            return cls(frozenset((whole,)), frozenset(), whole)
        found = list(_WORDS.finditer(prompt))
        words, marks = set(), set()
        often: Counter[str] = Counter()  # 2 + 2 has two numbers
        for match in found:
            text = match[0].lower()
            if text in _SMALL:
                continue
            number = text[-1].isdigit()
            often[text] += number
            stem = hash((text, often[text]) if number else text[:_STEM].rstrip("s"))
            words.add(stem)
            before = prompt[: match.start()].rstrip()[-1:]
            if number or (match[0][0].isupper() and before not in ("", ".", "?", "!", ":")):
                marks.add(stem)
        return cls(frozenset(words), frozenset(marks), hash(tuple(match[0].lower() for match in found)))


def alike(first: Asking, second: Asking) -> bool:
    """Whether the second asks what the first did."""
    if first.whole == second.whole:
        return bool(first.words)
    if not first.words or not second.words:
        return False
    lacks, new = first.words - second.words, second.words - first.words
    if (new & second.marks) and lacks:
        return False
    if (lacks & first.marks) and new:
        return False
    both = len(first.words & second.words)
    share = 2 * both / (len(first.words) + len(second.words))
    if lacks and new and (share < SURE or len(first.words) > SHORT):
        return False
    return share >= ALIKE


class ReAsks:
    """What each user asked in the last minutes."""

    def __init__(self, minutes: float = MINUTES) -> None:
        self._seconds = 60 * minutes
        self._by_user: OrderedDict[Hashable, list[tuple[float, str, Asking]]] = OrderedDict()

    def ask(self, user: Hashable, prompt: str, name: str, now_s: float) -> str | None:
        """Remembers this request as `name`, and gives the name of the latest that it asks again, or None."""
        asking = Asking.of(prompt)
        known = [one for one in self._by_user.pop(user, []) if now_s - one[0] <= self._seconds]
        found = next((one[1] for one in reversed(known) if alike(one[2], asking)), None)
        self._by_user[user] = [*known[-MOST_EACH + 1 :], (now_s, name, asking)]
        while len(self._by_user) > MOST_USERS:
            self._by_user.popitem(last=False)
        return found
