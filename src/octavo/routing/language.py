"""Which language a prompt is in, as far as a rule needs it: by its script, and by its small words. Knows no model.

A language that is written in Latin letters is told by how many of its commonest words are there; where too few are, or
two languages are as likely, there is no answer. Other scripts are told by their letters.
"""

from __future__ import annotations

import re
from collections import Counter

__all__ = ["LANGUAGES", "language_of"]

_MOST_CHARS = 2_000
_LEAST_WORDS = 2
"""Small words that must be there."""
_LEAST_LETTERS = 0.3
"""Of all letters, from which a script other than Latin names the language: in such texts names are Latin too."""

_SMALL_WORDS = {
    "de": "der die das und ist nicht ein eine ich zu mit auf für von dem den wie was wird sind auch wir sie bitte",
    "en": "the and is of to in that it for what how are with this on be you as have does which please i can",
    "es": "el la los las de que y es en un una por con para como qué se del cuál está son más no me",
    "fr": "le la les de des et est un une que qui dans pour pas vous je sur avec ce quel quelle sont du au comment",
    "it": "il lo la gli le di che e è un una per con non sono come cosa del della nel quale si mi qual",
    "nl": "de het een en van is dat niet wat hoe ik je met voor op zijn aan wordt die naar bij kan ook",
    "pl": "i w na z do nie się jest to że jak co czy są dla o po przez od jaki jaka które tego",
    "pt": "o os as de que e é em um uma por com para como não do da qual são se mais está no na",
    "sv": "och är att det en ett som inte på för med av den vad hur jag kan har till vi du var från",
}
_WORDS = {name: frozenset(words.split()) for name, words in _SMALL_WORDS.items()}
_SCRIPTS = {
    "ja": re.compile(r"[\u3040-\u30ff]"),
    "ko": re.compile(r"[\uac00-\ud7af\u1100-\u11ff]"),
    "zh": re.compile(r"[\u4e00-\u9fff\u3400-\u4dbf]"),
    "ar": re.compile(r"[\u0600-\u06ff]"),
    "el": re.compile(r"[\u0370-\u03ff]"),
    "he": re.compile(r"[\u0590-\u05ff]"),
    "hi": re.compile(r"[\u0900-\u097f]"),
    "ru": re.compile(r"[\u0400-\u04ff]"),
    "th": re.compile(r"[\u0e00-\u0e7f]"),
}
LANGUAGES = tuple(sorted({*_WORDS, *_SCRIPTS}))
"""Codes that a rule may name. `ar`, `hi`, `ru` stand for everything in their scripts, Ukrainian and Persian too."""

_WORD = re.compile(r"[^\W\d_]+")


def language_of(text: str) -> str | None:
    """One of LANGUAGES, by the text's beginning; None where it cannot be told."""
    text = text[:_MOST_CHARS]
    words = _WORD.findall(text.lower())
    letters = sum(map(len, words))
    if not letters:
        return None
    if not text.isascii():
        found = {name: len(letter.findall(text)) for name, letter in _SCRIPTS.items()}
        if found["ja"]:
            found["ja"] += found["zh"]
        name = max(found, key=lambda one: found[one])
        if found[name] >= _LEAST_LETTERS * letters:
            return name
    counts = Counter({name: sum(word in small for word in words) for name, small in _WORDS.items()})
    (first, most), (_, next_most) = counts.most_common(2)
    return first if most >= _LEAST_WORDS and most > next_most else None
