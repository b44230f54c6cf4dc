"""What the client expects as the answer, as OpenAI's `prediction` says. Knows no model.

An answer that is mostly known (a file with one function changed) is verified instead of written, and found again behind
each change.
"""

from __future__ import annotations

from collections.abc import Sequence

from octavo.speculation.drafter import Guess, Prior, Text
from octavo.speculation.ngram import Lookup

__all__ = ["PredictionDrafter"]


class PredictionDrafter:
    """From the prediction's beginning on, and wherever the answer has come to since."""

    name = "prediction"
    priors: tuple[Prior, ...] = (
        Prior(-3.4, 1.7, 1.2, -2.2, 1.8, -1.6),
        Prior(-0.2, 1.7, 1.0, -1.6, 0.8, -0.4),
    )

    def __init__(self, least: int = 2, most: int = 16) -> None:
        self._least, self._most = least, most

    def draft(self, texts: Sequence[Text], count: int) -> list[list[Guess]]:
        found: list[list[Guess]] = []
        for text in texts:
            if not text.prediction:
                found.append([])
                continue
            lookup = text.memory.get(self.name)
            if lookup is None:
                lookup = Lookup(list(text.prediction), self._least, self._most, begins_at=text.prompt_tokens)
                text.memory[self.name] = lookup
            assert isinstance(lookup, Lookup)
            found.append(lookup.guesses(text.tokens, count))
        return found

    def ended(self, text: Text) -> None:
        text.memory.pop(self.name, None)
