"""Token ids for prompts that nobody computes: all that matters is which are equal. Knows requests, no vocabulary."""

from __future__ import annotations

import hashlib

from octavo.simulation.backend import TOKEN
from octavo.workload.request import Part, Request

__all__ = ["prompt_of", "tokens_of"]

_IDS = 1 << 31
_RANDOM = 4
"""Ids at the start of each part that are drawn; the others count on from the last of them. So two parts differ with all
but certainty in every block that holds four of their ids, at a thousandth of the cost of drawing each."""
_BYTES_A_TOKEN = 4
"""Of a text whose tokens nobody counted."""


def tokens_of(request: Request) -> int:
    """In its prompt. A text whose tokens nobody counted has one for each four bytes."""
    tokens = request.input_tokens
    if tokens is None:
        said = request.text if request.text is not None else repr(request.messages)
        tokens = max(len(said.encode()) // _BYTES_A_TOKEN, 1)
    return tokens


def prompt_of(request: Request) -> tuple[int, ...]:
    """Equal parts are equal ids; a part that stands for an answer is what the simulated backend answers. Ids are of a
    vocabulary of 2³¹ tokens, so that parts that differ do so in the prefix cache too."""
    if request.ids is not None:
        return request.ids
    if request.text is not None or request.messages is not None:
        return tuple(_ids(request.seed, Part(f"text/{request.index}", tokens_of(request))))
    ids: list[int] = []
    for part in request.parts:
        ids += [TOKEN] * part.tokens if part.answer_of is not None else _ids(request.seed, part)
    return tuple(ids)


def _ids(seed: int, part: Part) -> list[int]:
    digest = hashlib.blake2b(f"{seed}/{part.key}".encode(), digest_size=4 * _RANDOM).digest()
    drawn = [
        1 + int.from_bytes(digest[at : at + 4], "little") % (_IDS - 1) for at in range(0, len(digest), 4)
    ]
    last = drawn[-1] % (_IDS - max(part.tokens, 1) - 1) + 1
    return [*drawn[: min(_RANDOM - 1, part.tokens)], *range(last, last + max(part.tokens - _RANDOM + 1, 0))]
