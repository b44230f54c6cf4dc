"""How many tokens each event of an answer brought, by the best that the server tells. Knows no wire.

Several tokens may share an event: a server that is late sends what has come together, speculative decoding accepts
several at once, and a character of several tokens appears with the last of them. To count an event as a token is then
wrong, so there is an order of trust; what was used is written beside the numbers (`Exchange.counted`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Counts", "count_tokens"]


@dataclass(frozen=True)
class Counts:
    """Of one answer: tokens of each event, their sum, and how they are known (see `Exchange.counted`)."""

    tokens: list[int]
    total: int | None
    counted: str


def count_tokens(
    characters: Sequence[int],
    finish: int | None,
    *,
    total: int | None,
    usage: Sequence[int | None],
    ids: Sequence[int | None],
    logprobs: Sequence[int | None],
) -> Counts:
    """For each event: its characters, what `usage` said there of all so far, its token ids and its logprobs.

    `finish`: which event had the finish reason. `total`: the server's count of the whole. A token that has no text and
    no event of its own, such as the one that ends an answer, is laid to the event with the finish reason.
    """
    texts = [place for place, count in enumerate(characters) if count]
    if not characters or (not texts and not total):
        return Counts([0] * len(characters), total, "none")
    last = finish if finish is not None else texts[-1] if texts else len(characters) - 1
    for name, found in (
        ("usage", _differences(usage, texts)),
        ("ids", _all(ids, texts)),
        ("logprobs", _all(logprobs, texts)),
    ):
        if found is None:
            continue
        missing = 0 if total is None else total - sum(found)
        if missing >= 0:
            found[last] += missing
            return Counts(found, sum(found), name)
    found = [1 if count else 0 for count in characters]
    if total is None:
        return Counts(found, None, "events")
    missing = total - len(texts)
    if missing == 0 or (missing == 1 and not characters[last]):
        found[last] += missing
        return Counts(found, total, "chunks")
    return Counts(_spread(characters, total, last), total, "spread")


def _differences(sums: Sequence[int | None], texts: Sequence[int]) -> list[int] | None:
    """Of running sums; None where an event with text has none, or they fall."""
    if not texts or any(sums[place] is None for place in texts):
        return None
    found, before = [], 0
    for one in sums:
        now = before if one is None else one
        if now < before:
            return None
        found.append(now - before)
        before = now
    # A server that says only the final number, with each event, tells nothing of them.
    return found if len(texts) == 1 or sum(1 for place in texts if found[place]) > 1 else None


def _all(counts: Sequence[int | None], texts: Sequence[int]) -> list[int] | None:
    if not texts or any(not counts[place] for place in texts):
        return None
    return [count or 0 for count in counts]


def _spread(characters: Sequence[int], total: int, last: int) -> list[int]:
    """`total`, by characters; running sums are rounded, so that nothing is lost."""
    whole = sum(characters)
    found, so_far, given = [], 0, 0
    for place, count in enumerate(characters):
        so_far += count
        now = (so_far * total * 2 + whole) // (whole * 2) if whole else (total if place >= last else 0)
        found.append(now - given)
        given = now
    return found
