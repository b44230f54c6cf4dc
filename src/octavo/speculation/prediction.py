"""What the client expects as the answer, as OpenAI's `prediction` says. Knows no model.

An answer that is mostly known (a file with one function changed) is verified instead of written, and found again behind
each change.
"""

from __future__ import annotations

from octavo.speculation.drafter import Prior, Text
from octavo.speculation.ngram import Lookup, NgramDrafter

__all__ = ["PredictionDrafter"]


class PredictionDrafter(NgramDrafter):
    """From the prediction's beginning on, and wherever the answer has come to since."""

    name = "prediction"
    priors: tuple[Prior, ...] = (
        Prior(-3.4, 1.7, 1.2, -2.2, 1.8, -1.6),
        Prior(-0.2, 1.7, 1.0, -1.6, 0.8, -0.4),
    )

    def _begin(self, text: Text) -> Lookup | None:
        if not text.prediction:
            return None
        return Lookup(list(text.prediction), self._least, self._most, begins_at=text.prompt_tokens)
