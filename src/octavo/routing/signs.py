"""Cheap signs of what a prompt asks: a few dozen numbers from its text alone. Knows no label and no model.

Lengths, digits and symbols, the shape of a list of choices, negations, words of quantity. Each has a name, so that a
policy that is written by hand can use it. A tenth of a millisecond for a hundred words; of a very long prompt the
first and the last 4,000 characters are read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["SIGNS", "clipped", "signs", "signs_of"]

MOST_CHARS = 8_000

_CHOICE = re.compile(r"^\(?[A-J][.)]\s", re.MULTILINE)
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_NEGATED = re.compile(r"\b(?:not|except|least|incorrect|false|never|none)\b", re.IGNORECASE)
_NEGATED_LOUD = re.compile(r"\b(?:NOT|EXCEPT|LEAST|FALSE)\b")
_QUANTITY = re.compile(
    r"\b(?:each|every|per|twice|half|times|total|remaining|left|more than|less than|altogether|average)\b",
    re.IGNORECASE,
)
_ASKS_QUANTITY = re.compile(r"\bhow (?:many|much|long|far|old)\b", re.IGNORECASE)
_SYMBOL = re.compile(r"[+\-*/=^<>()\[\]{}\\|$%∑∫√≤≥±∈∀∃→∧∨¬]")
_VARIABLE = re.compile(r"\b[xyznk]\b")
_YEAR = re.compile(r"\b(?:1\d{3}|20\d\d)\b")
_WHY = re.compile(
    r"\b(?:why|explain|describe|discuss|compare|justify|prove|derive|show that)\b", re.IGNORECASE
)
_WHAT = re.compile(r"\b(?:what|which|who|whose|when|where)\b", re.IGNORECASE)
_WRITE = re.compile(
    r"\b(?:write|draft|essay|feedback|review|critique|improve|rewrite|thesis|paragraph|argument)\b",
    re.IGNORECASE,
)
_CODE = re.compile(
    r"```|\bdef |\bclass |\breturn\b|;\s*$|\{\s*$|\bSELECT\b|#include|=>|\bimport ", re.MULTILINE
)
_PERSON = re.compile(r"\b(?:I|my|me)\b")
_CONDITION = re.compile(r"\b(?:if|unless|suppose|assume|given)\b", re.IGNORECASE)
_WORD = re.compile(r"\w+")

SIGNS = (
    "log_chars", "log_words", "log_stem_chars", "log_lines", "log_sentences", "word_chars", "distinct_words",
    "choices", "log_choice_chars_mean", "log_choice_chars_spread", "log_choice_chars_most", "log_choice_chars_least",
    "choices_with_digits", "log_numbers", "log_stem_numbers", "digit_share", "symbol_share", "upper_share",
    "other_letters", "dollar", "percent", "blank", "quoted", "statements", "scenarios", "negated_loud", "negations",
    "all_of_above", "none_of_above", "questions", "ends_asking", "person", "asks_quantity", "quantities", "variables",
    "years", "conditions", "asks_why", "asks_what", "asks_writing", "code",
)  # fmt: skip
"""The names of what `signs_of` gives, in its order."""


def clipped(text: str) -> str:
    """The text, or the two ends of a very long one."""
    if len(text) <= MOST_CHARS:
        return text
    return f"{text[: MOST_CHARS // 2]} {text[-MOST_CHARS // 2 :]}"


def signs_of(text: str) -> list[float]:
    """The numbers for one prompt, in the order of SIGNS; all are finite."""
    text = clipped(text)
    chars = max(1, len(text))
    starts = [match.start() for match in _CHOICE.finditer(text)]
    stem = text[: starts[0]] if starts else text
    choices = [text[start:end] for start, end in zip(starts, [*starts[1:], len(text)], strict=False)]
    lengths = [len(choice) for choice in choices] or [0]
    mean = sum(lengths) / len(lengths)
    spread = math.sqrt(sum((length - mean) ** 2 for length in lengths) / len(lengths))
    words = _WORD.findall(text.lower())
    lower = text.lower()
    return [
        math.log1p(len(text)),
        math.log1p(len(words)),
        math.log1p(len(stem)),
        math.log1p(text.count("\n")),
        math.log1p(stem.count(".") + stem.count("?") + stem.count("!")),
        sum(map(len, words)) / max(1, len(words)),
        len(set(words)) / max(1, len(words)),
        float(min(len(choices), 10)),
        math.log1p(mean),
        math.log1p(spread),
        math.log1p(max(lengths)),
        math.log1p(min(lengths)),
        sum(any(map(str.isdigit, choice)) for choice in choices) / max(1, len(choices)),
        math.log1p(len(_NUMBER.findall(text))),
        math.log1p(len(_NUMBER.findall(stem))),
        sum(map(str.isdigit, text)) / chars,
        len(_SYMBOL.findall(text)) / chars,
        sum(map(str.isupper, text)) / chars,
        float(not text.isascii()),
        float("$" in text),
        float("%" in text),
        float("__" in text),
        float('"' in text or "“" in text),
        float("statement 1" in lower),
        float("scenario" in lower),
        float(_NEGATED_LOUD.search(stem) is not None),
        math.log1p(len(_NEGATED.findall(stem))),
        float("all of the above" in lower),
        float("none of the above" in lower),
        math.log1p(stem.count("?")),
        float(stem.rstrip().endswith(("?", "?:"))),
        float(_PERSON.search(text) is not None),
        float(_ASKS_QUANTITY.search(text) is not None),
        math.log1p(len(_QUANTITY.findall(text))),
        float(_VARIABLE.search(text) is not None),
        float(_YEAR.search(text) is not None),
        math.log1p(len(_CONDITION.findall(text))),
        float(_WHY.search(stem) is not None),
        float(_WHAT.search(stem) is not None),
        math.log1p(len(_WRITE.findall(text))),
        float(_CODE.search(text) is not None),
    ]


def signs(texts: Sequence[str]) -> NDArray[np.float64]:
    """[texts, signs]."""
    return np.array([signs_of(text) for text in texts], dtype=np.float64).reshape(len(texts), len(SIGNS))
