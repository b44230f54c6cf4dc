"""Which name was meant. Knows words alone."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["nearest"]


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about a name that is not known: which was meant, or which there are."""
    known = tuple(known)
    near = difflib.get_close_matches(name, known, n=2, cutoff=0.6)
    if near:
        return f"did you mean {' or '.join(near)}?"
    return f"there {'is' if len(known) == 1 else 'are'} {', '.join(known)}."
