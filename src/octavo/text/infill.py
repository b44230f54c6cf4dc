"""Fill in the middle: which tokens of a vocabulary say "before", "after" and "now between". Knows no request.

Models learn it from texts whose middle was moved to the end (Bavarian et al. 2022, arXiv:2207.14255): a prompt is
prefix token, text before, suffix token, text after, middle token, and the model goes on with what lies between.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from octavo.text.tokenizer import Tokenizer
from octavo.text.vocabulary import SPACE

__all__ = ["Infill"]

_FAMILIES: tuple[tuple[str, str, str | None], ...] = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    (f"{SPACE}<PRE>", f"{SPACE}<SUF>", f"{SPACE}<MID>"),  # Code Llama
    (" <PRE>", " <SUF>", " <MID>"),  # the same, where they are no control tokens
    ("<PRE>", "<SUF>", "<MID>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek
    ("<|fim_begin|>", "<|fim_hole|>", "<|fim_end|>"),
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM
    ("[PREFIX]", "[SUFFIX]", None),  # Codestral
)
"""Names of the three by family, best known first. Without a middle token, what comes after stands first."""

_ENDS = (
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<fim_pad>",
    "<repo_name>",
    "<reponame>",
    "<file_sep>",
)
"""Names of these families' tokens that begin something else, with which a filled middle has ended."""


class Infill(msgspec.Struct, frozen=True, kw_only=True):
    """One vocabulary's tokens for it."""

    prefix: int
    suffix: int
    middle: int | None
    ends: tuple[int, ...]
    """Control tokens that end the answer, besides the model's own."""

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Infill | None:
        """What the model file says, else what the names say; None for a model that was not taught it."""
        vocabulary = tokenizer.vocabulary
        ids: dict[bytes, int] = {}
        for token, piece in enumerate(vocabulary.pieces):
            ids.setdefault(piece, token)
        named = [
            [ids[name.encode()] for name in names if name and name.encode() in ids] for names in _FAMILIES
        ]
        whole = (
            found
            for found, names in zip(named, _FAMILIES, strict=True)
            if len(found) == 3 - names.count(None)
        )
        found = list(tokenizer.rules.infill_ids) or next(whole, [])
        if not found:
            return None
        ends = {ids[name.encode()] for name in _ENDS if name.encode() in ids} | set(found)
        return cls(
            prefix=found[0],
            suffix=found[1],
            middle=found[2] if len(found) > 2 else None,
            ends=tuple(sorted(ends & vocabulary.special)),
        )

    def prompt(
        self, tokenizer: Tokenizer, before: str | Sequence[int], after: str, *, add_bos: bool | None = None
    ) -> list[int]:
        """The prompt. Both texts stay text, whatever names of tokens they hold; ids are taken as they are."""
        first = self._text(tokenizer, before) if isinstance(before, str) else list(before)
        head = []
        bos = tokenizer.bos_id
        if bos is not None and (tokenizer.add_bos if add_bos is None else add_bos):
            head = [bos]
            first = first[1:] if first[:1] == [bos] else first
        last = self._text(tokenizer, after, goes_on=True)
        if self.middle is None:
            return [*head, self.suffix, *last, self.prefix, *first]
        return [*head, self.prefix, *first, self.suffix, *last, self.middle]

    def _text(self, tokenizer: Tokenizer, text: str, *, goes_on: bool = False) -> list[int]:
        """A name that the vocabulary has as an ordinary token is cut in two, so that it stays letters."""
        cuts = []
        for token in (self.prefix, self.suffix, self.middle):
            if token is not None and token not in tokenizer.vocabulary.special:
                name = tokenizer.vocabulary.pieces[token].decode(errors="replace")
                half = len(name) // 2
                cuts.append(f"(?<={re.escape(name[:half])})(?={re.escape(name[half:])})")
        parts = re.split("|".join(cuts), text) if cuts else [text]
        ids: list[int] = []
        for place, part in enumerate(parts):
            ids += tokenizer.encode(part, add_bos=False, goes_on=goes_on or place > 0)
        return ids
