"""What a server's KV memory was good for, in words: of a record that has its account. Knows no server.

The kinds of waste are those of octavo.memory.accounting; names and units are here, since a record keeps only numbers.
"""

from __future__ import annotations

from collections.abc import Mapping

from octavo.charts.figure import Axis, shown

__all__ = ["NAMES", "memory_rows", "memory_words"]

_SHARE = Axis(label="", quantity="share")
_NUMBER = Axis(label="")

_ROWS: tuple[tuple[str, str, Axis], ...] = (
    ("utilization", "KV memory held by somebody, of all", _SHARE),
    ("internal_waste", "internal waste: without a token, of what is held", _SHARE),
    ("external_waste", "external waste: free, and not side by side, of all", _SHARE),
    ("duplicate_waste", "duplicate waste: stored twice or more, of what is stored", _SHARE),
    ("sharing_saved", "saved by sharing, of what would be held without", _SHARE),
    ("prefix_hit_rate", "tokens of prompts found computed", _SHARE),
    ("running", "sequences at once, on average in steps", _NUMBER),
    ("most_running", "sequences at once, at most", _NUMBER),
    ("idle_slots", "slots kept for answers that had ended", _NUMBER),
    ("steps", "steps", _NUMBER),
    ("step_tokens", "tokens in a step", _NUMBER),
    ("preemptions", "preemptions", _NUMBER),
)
NAMES = tuple(name for name, _, _ in _ROWS)


def memory_rows(account: Mapping[str, float]) -> list[list[str]]:
    """A name and a value for each that the account has."""
    return [[words, shown(account[name], axis)] for name, words, axis in _ROWS if name in account]


def memory_words(account: Mapping[str, float]) -> str:
    """One sentence; nothing where there is no account."""
    if not {"utilization", "internal_waste", "external_waste"} <= account.keys():
        return ""
    held, internal = account["utilization"], account["internal_waste"]

    def said(share: float) -> str:
        return shown(share, _SHARE)

    words = f"Of the KV memory {said(held * (1 - internal))} held tokens while steps ran; "
    words += f"{said(held * internal)} was held without one"
    if account["external_waste"]:
        words += f", {said(account['external_waste'])} was free in pieces too small"
    words += f", and {said(max(1 - held - account['external_waste'], 0.0))} was free."
    if account.get("sharing_saved"):
        words += f" Sharing saved {said(account['sharing_saved'])} of what sequences would hold without it."
    return words
