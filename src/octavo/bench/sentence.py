"""Where the first sentence of an answer is whole: when a voice can begin to speak. Knows text, no time.

Speech synthesis works on whole sentences, so a voice answers when the first one is there (time to first sentence).
The rule is small and has no lists of words: a sentence ends

- at `.`, `!`, `?`, `…`, `؟` or `।`, with closing quotes or brackets behind it, if white space or the answer's end
  follows (so not in 3.5 or example.org);
- at `。`, `！` or `？`, which are followed by no blank;
- at a line break;

in each case after a letter. A single full stop does not end it after a word that has one within (e.g., U.S.) or that
is one letter, other than I (an initial). "Dr." does; the answer is then taken to be a few tokens faster.
"""

from __future__ import annotations

import re

__all__ = ["FirstSentence"]

_END = re.compile(r"""[.!?…؟।]+["'”’)\]»*_]*(?=\s|$)|[。！？\n]""")
_ALONE = "。！？\n"
"""These need nothing behind them."""
_MARK = re.compile(r"[.!?…؟।。！？\n]")
_LONG = 1000
_LETTER = re.compile(r"[^\W\d_]")


class FirstSentence:
    """Feed it the answer's text piece by piece, each with its number."""

    __slots__ = ("_candidate", "_letters", "_word")

    def __init__(self) -> None:
        self._word = ""
        """What came since the last white space, and perhaps more before it."""
        self._letters = False
        """There was a letter before that word."""
        self._candidate: int | None = None
        """The piece that brought an end mark, of which it is not known what follows."""

    def feed(self, text: str, piece: int) -> int | None:
        """The number of the piece with which the sentence was whole, once that is known."""
        candidate = self._candidate
        if candidate is None:
            if not _MARK.search(text):  # most pieces
                self._word += text
                if len(self._word) > _LONG:
                    self._shorten()
                return None
        elif text[:1].isspace():
            return candidate
        before, self._word = len(self._word), self._word + text
        self._candidate = None
        for match in _END.finditer(self._word):
            if not self._ends(match):
                continue
            self._candidate = candidate if match.start() < before and candidate is not None else piece
            if match.end() < len(self._word) or match[0] in _ALONE:
                return self._candidate
        self._shorten()
        return None

    def close(self) -> int | None:
        """The answer has ended."""
        return self._candidate

    def _ends(self, match: re.Match[str]) -> bool:
        before = self._word[: match.start()]
        if not (self._letters or _LETTER.search(before)):
            return False
        if match[0].rstrip("\"'”’)]»*_") != ".":
            return True
        word = before.rsplit(None, 1)[-1] if before and not before[-1].isspace() else ""
        return "." not in word and (len(word) != 1 or not word.isalpha() or word == "I")

    def _shorten(self) -> None:
        """Keeps the last word, which may be part of what comes."""
        words = self._word.rsplit(None, 1)
        if self._word[-1:].isspace():
            words.append("")
        if len(words) == 2:
            self._letters = self._letters or bool(_LETTER.search(words[0]))
            self._word = words[1]
