"""A field that holds one prompt or several, texts or token ids, as OpenAI has it. Knows no route and no tokenizer."""

from __future__ import annotations

from typing import Any

from octavo.errors import InvalidParameter

__all__ = ["PROMPT_SCHEMA", "is_several", "prompts_of"]

_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
PROMPT_SCHEMA = {
    "oneOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}, "minItems": 1},
        _IDS,
        {"type": "array", "items": {"type": "array", "items": _IDS["items"]}, "minItems": 1},
    ]
}


def is_several(given: str | list[Any]) -> bool:
    """It is a list of prompts, be it of one."""
    return isinstance(given, list) and not _is_ids(given)


def prompts_of(
    given: str | list[Any], name: str, most: int, *, may_be_empty: bool = False
) -> list[str] | list[list[int]]:
    """One or more prompts, all texts or all token ids. `name` is the field, `most` how many there may be; an empty text
    is one only if it `may_be_empty`. Raises InvalidParameter."""

    def check(text: str, name: str) -> None:
        if not text and not may_be_empty:
            raise InvalidParameter(f"{name} is empty; send at least one character.", name)

    if isinstance(given, str):
        check(given, name)
        return [given]
    if not given:
        raise InvalidParameter(f"{name} is an empty list; send at least one prompt.", name)
    if _is_ids(given):
        return [given]
    if len(given) > most:
        raise InvalidParameter(f"{name} is a list of {len(given)} prompts; at most {most} are allowed.", name)
    texts = isinstance(given[0], str)
    for i, part in enumerate(given):
        if texts != isinstance(part, str) or not (texts or (isinstance(part, list) and _is_ids(part))):
            raise InvalidParameter(
                f"{name}[{i}] is not like the others: send texts, token ids, or lists of token ids, none empty.",
                f"{name}[{i}]",
            )
        if texts:
            check(part, f"{name}[{i}]")
    return given


def _is_ids(given: list[Any]) -> bool:
    return bool(given) and all(type(token) is int for token in given)
