"""Strings that break tokenizers, for hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

__all__ = ["TEXT"]

_HARD = [
    " ", "  ", "\n", "\n\n", "\r\n", "\t", "\u3000", "\xa0", "\x85", "\x00", "\x7f", "\u200b", "▁", "▁▁", "_",
    "the", "the ", " the", "tokens", " request", "engine", "Hello", "don't", "'s", "'LL", "'ſ", "a", "b", "E",
    ",", ".", "...", "<=>$", "＋", "1", "23", "456", "５", "½", "①", "ﬁ", "Ａ", "Å", "é", "e\u0301", "ß",
    "中文", "没有", "ไทย", "ไม่", "ا", "العربية", "한", "한국어", "🌶️", "👨‍👩‍👧", "🇫🇷",
    "<|im_start|>", "<|im_", "end|>", "<0x41>", "<s>", "</s>", "<unk>", "<tag>", "<ta",
]  # fmt: skip

TEXT: st.SearchStrategy[str] = st.lists(st.sampled_from(_HARD), max_size=14).map("".join) | st.text(
    st.characters(exclude_categories=["Cs"]), max_size=30
)
"""Any text that is no lone surrogate; half of the time joined from hard pieces."""
