"""Streamed text: whole characters only, equal to the whole text, nothing shown that is still held back."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.text.stream import TextStream
from octavo.text.vocabulary import Vocabulary
from tests.text.texts import TEXT

BYTES = Vocabulary([*(bytes([byte]) for byte in range(256)), b"<|im_end|>"], [256])
DATA = st.lists(TEXT.map(str.encode) | st.binary(max_size=6), max_size=6).map(b"".join)


@given(data=DATA, cuts=st.lists(st.integers(0, 60)), held=st.lists(st.integers(0, 9)), cut=st.integers(0, 9))
def test_pushes_and_finish_join_to_the_whole_text(
    data: bytes, cuts: list[int], held: list[int], cut: int
) -> None:
    """Also when bytes are held back in between, and some at the end are cut."""
    cut = min(cut, len(data))
    stream = TextStream(BYTES)
    bounds = [0, *sorted(min(c, len(data)) for c in cuts), len(data)]
    shown, shown_bytes = "", 0
    for n, (start, end) in enumerate(pairwise(bounds)):
        last = n == len(bounds) - 2
        back = cut if last else (held[n] if n < len(held) else 0)
        back = max(back, end - (len(data) - cut))  # what will be cut is held back, as the engine does
        piece = stream.push(data[start:end], back)
        piece.encode()  # valid Unicode
        shown += piece
        shown_bytes = max(shown_bytes, end - back)
        assert data[:shown_bytes].decode(errors="replace").startswith(shown)
    shown += stream.finish(cut)
    assert shown == data[: len(data) - cut].decode(errors="replace")


def test_a_character_comes_whole() -> None:
    stream = TextStream(BYTES)
    pieces = [stream.push([byte]) for byte in "a🌶中".encode()]
    assert pieces == ["a", "", "", "", "🌶", "", "", "中"]
    assert stream.finish() == ""


def test_a_broken_character_at_the_end() -> None:
    stream = TextStream(BYTES)
    assert stream.push("é🌶".encode()[:-1]) == "é"
    assert stream.finish() == "\ufffd"


def test_held_bytes_are_not_shown_until_freed() -> None:
    stream = TextStream(BYTES)
    assert stream.push(b"one st", held_bytes=2) == "one "
    assert stream.push(b"o", held_bytes=3) == ""
    assert stream.push(b"ne", held_bytes=0) == "stone"
    assert stream.push(b" stop", held_bytes=5) == ""
    assert stream.finish(cut_bytes=4) == " "


def test_a_cut_into_shown_text_is_a_fault() -> None:
    stream = TextStream(BYTES)
    stream.push(b"stop")
    with pytest.raises(ValueError, match="cut_bytes is 4, but only 0 bytes"):
        stream.finish(cut_bytes=4)


def test_control_tokens() -> None:
    assert TextStream(BYTES).push([97, 256, 98]) == "ab"
    assert TextStream(BYTES, skip_special=False).push([97, 256]) == "a<|im_end|>"
    assert TextStream(BYTES).push([9999]) == ""


def test_the_tokenizers_leading_space_is_dropped_once() -> None:
    stream = TextStream(BYTES, drop_leading_space=True)
    assert stream.push([256]) == ""
    assert stream.push(b" ") == ""
    assert stream.push(b"  a ") == "  a "
    assert TextStream(BYTES, drop_leading_space=True).push(b"a b") == "a b"
    assert TextStream(BYTES).push(b" a") == " a"


def test_endless_invalid_bytes_do_not_pile_up() -> None:
    """Whatever a model emits, all but three bytes of it are shown."""
    for pattern in (b"\x80", b"\xff", b"\xf0\x9f", b"\xe4\xb8", b"\xf4\x90\x80\x80"):
        data = pattern * 5000
        stream = TextStream(BYTES)
        shown = "".join(stream.push(chunk) for chunk in batched_bytes(data, 3))
        assert len(data.decode(errors="replace")) - len(shown) <= 3
        assert shown + stream.finish() == data.decode(errors="replace")


def batched_bytes(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]
