"""What a grammar leaves no choice about, such as the keys of a JSON schema. Knows no model."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.speculation.drafter import Guess, Prior, Text

__all__ = ["GrammarDrafter"]


class GrammarDrafter:
    """The run of tokens that the grammar forces: the mask at each place allows nothing else, so all of it is right."""

    name = "grammar"
    priors: tuple[Prior, ...] = (Prior(7.0, 0.0, 0.0, 0.0, 0.0, 0.0),)

    def draft(self, texts: Sequence[Text], count: int) -> list[list[Guess]]:
        return [
            [Guess(tuple(forced[:count]), 0)]
            if text.guide is not None and (forced := text.guide.forced())
            else []
            for text in texts
        ]

    def ended(self, text: Text) -> None:
        pass
