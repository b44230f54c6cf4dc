"""What came after the same tokens in earlier requests of the same scope: answers resemble one another. Knows no model.

The idea is SuffixDecoding's (Oliaro et al. 2024, arXiv:2411.04975), with runs in a table instead of a tree: the longest
end of a text that some earlier one has is found from its last few tokens, and what is longer is compared.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from operator import itemgetter

from octavo.speculation.drafter import Elsewhere, Guess, Prior, Text

__all__ = ["SuffixDrafter"]

_CANDIDATES = 4
"""Earlier places that are compared, the newest first."""
_SCOPES = 64
"""That are remembered; the one that was used last stays longest."""


class _Past:
    """The answers of one scope."""

    def __init__(self, least: int, most_tokens: int) -> None:
        self._least, self._most_tokens = least, most_tokens
        self._texts: deque[list[int]] = deque()
        self._tokens = 0
        self._places: dict[tuple[int, ...], deque[tuple[list[int], int]]] = {}
        """By a run of tokens: the texts that have it, and where it ends there."""

    def note(self, tokens: list[int]) -> None:
        self._texts.append(tokens)
        self._tokens += len(tokens)
        for end in range(self._least, len(tokens)):
            run = tuple(tokens[end - self._least : end])
            self._places.setdefault(run, deque(maxlen=_CANDIDATES)).append((tokens, end))
        while self._tokens > self._most_tokens:
            self._drop(self._texts.popleft())

    def _drop(self, tokens: list[int]) -> None:
        self._tokens -= len(tokens)
        for end in range(self._least, len(tokens)):
            run = tuple(tokens[end - self._least : end])
            places = self._places.get(run)
            while places and places[0][0] is tokens:
                places.popleft()
            if places is not None and not places:
                del self._places[run]

    def find(self, tokens: list[int], most: int, count: int) -> list[Guess]:
        """What came after the longest end of `tokens` that is here; nothing where there is none."""
        places = []
        for text, end in reversed(self._places.get(tuple(tokens[-self._least :]), ())):
            same = self._least
            least = min(most, end, len(tokens))
            while same < least and text[end - same - 1] == tokens[-same - 1]:
                same += 1
            places.append((text, end, same))
        if not places:
            return []
        text, start, same = max(places, key=itemgetter(2))  # of equal ones the first, which is the newest
        found = tuple(text[start : start + count])
        return [Guess(found, same, elsewhere=Elsewhere(found, places))]


class SuffixDrafter:
    """`least` to `most`: how many of the last tokens must be found before, and how many are compared. `most_tokens` of
    each scope are remembered."""

    name = "suffix"
    priors: tuple[Prior, ...] = (Prior(-3.9, 1.7, 1.2, -2.2, 1.8, -1.6),)

    def __init__(self, least: int = 3, most: int = 16, most_tokens: int = 16_384) -> None:
        if not 1 <= least <= most:
            raise ValueError(f"least is {least} and most {most}; 1 <= least <= most is needed")
        self._least, self._most, self._most_tokens = least, most, most_tokens
        self._scopes = OrderedDict[str, _Past]()

    def draft(self, texts: Sequence[Text], count: int) -> list[list[Guess]]:
        guesses: list[list[Guess]] = []
        for text in texts:
            past = self._scopes.get(text.scope)
            if past is None:
                guesses.append([])
                continue
            self._scopes.move_to_end(text.scope)
            guesses.append(past.find(text.tokens, self._most, count))
        return guesses

    def ended(self, text: Text) -> None:
        past = self._scopes.get(text.scope)
        if past is None:
            past = self._scopes[text.scope] = _Past(self._least, self._most_tokens)
            if len(self._scopes) > _SCOPES:
                self._scopes.popitem(last=False)
        self._scopes.move_to_end(text.scope)
        begin = max(
            text.prompt_tokens - self._least, 0
        )  # the answer may be found from the prompt's last tokens
        past.note(text.tokens[begin:])
