"""Words of others, such as a server's, as they may stand on a terminal. Knows no terminal."""

from __future__ import annotations

__all__ = ["printable"]


def printable(text: str) -> str:
    """One line without what moves a cursor, sets colours or turns the direction of writing: blanks stand for it."""
    return "".join(character if character.isprintable() else " " for character in text)
