"""What is drawn where a model would choose: by a request's number and the place in its answer, never by the batch.

So an answer is the same whatever runs beside it, and in whatever order. Knows no plan and no clock.
"""

from __future__ import annotations

import hashlib
import math
import struct

__all__ = ["CHILDREN", "candidates", "number_of", "uniform"]

CHILDREN = 256
"""Seeds of one request: child i has the request's seed + i. More than a request may have."""
_VARIETY = 1.0
"""How open the next token is: the mean entropy of its distribution is then 1 nat (see `candidates`)."""
_STICKS = 2
"""Tokens that are drawn for each one that is wanted: of those drawn later hardly any would be among the first."""
_IDS = 1 << 31
_UNIT = 1 << 32


def number_of(seed: int, index: int) -> int:
    """The sampling seed of a workload's request: its children's are the next ones."""
    digest = hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=6).digest()
    return int.from_bytes(digest, "little") * CHILDREN


def uniform(seed: int, position: int) -> float:
    """In (0, 1), for the token at `position` of the sequence with this sampling seed."""
    return (_words(f"{seed}/{position}", 1)[0] + 0.5) / _UNIT


def candidates(seed: int, position: int, last: int, count: int) -> tuple[tuple[int, float], ...]:
    """The `count` most likely tokens at `position` behind the token `last`, with their log-probabilities.

    Their probabilities are pieces of a stick that is broken again and again (Griffiths, Engen and McCloskey; sorted,
    the distribution of Poisson and Dirichlet with parameter θ): each piece is a share 1 - u^(1/θ) of what is left.
    The mean entropy is ψ(θ + 1) - ψ(1) nats, so θ = 1 makes it 1: a beam search meets clear and open places, as in a
    text. Ids are drawn too, so that beams which differ in one token differ in all that follow.
    """
    sticks = _STICKS * count
    first, *words = _words(f"{seed}/{position}/{last}", sticks + 1)
    base = CHILDREN + first % (_IDS - CHILDREN - sticks)
    left, found = 0.0, []
    for place, word in enumerate(words):
        rest = math.log((word + 0.5) / _UNIT) / _VARIETY
        found.append((base + place, left + math.log(-math.expm1(rest))))
        left += rest
    found.sort(key=lambda one: (-one[1], one[0]))
    return tuple(found[:count])


def _words(key: str, count: int) -> tuple[int, ...]:
    """Numbers of 32 bits."""
    return struct.unpack(f"<{count}I", hashlib.shake_128(key.encode()).digest(4 * count))
