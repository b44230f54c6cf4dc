"""The stop automaton against a plain search."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from octavo.sampling.stops import StopAutomaton, StopMatcher

words = st.text("ab", min_size=1, max_size=5).map(str.encode)


@given(
    stops=st.lists(words, max_size=4),
    pieces=st.lists(st.text("abc", max_size=4).map(str.encode), max_size=12),
)
def test_matches_and_held_bytes_equal_a_plain_search(stops: list[bytes], pieces: list[bytes]) -> None:
    matcher = StopMatcher(StopAutomaton(stops))
    text = b""
    for piece in pieces:
        match = matcher.feed(piece)
        whole = text + piece
        ends = [e for e in range(len(text) + 1, len(whole) + 1) if any(whole[:e].endswith(s) for s in stops)]
        if ends:
            assert match is not None
            longest = max((s for s in stops if whole[: ends[0]].endswith(s)), key=len)
            assert stops[match.which] == longest and match.length == len(longest)
            assert match.after == len(whole) - ends[0]
            return
        assert match is None
        text = whole
        held = max((k for s in stops for k in range(len(s)) if text.endswith(s[:k])), default=0)
        assert matcher.held_bytes == held


def test_not_armed_a_match_passes_by() -> None:
    matcher = StopMatcher(StopAutomaton([b"ab"]))
    assert matcher.feed(b"ab", armed=False) is None
    assert matcher.feed(b"xab") is not None


def test_no_stops_hold_nothing() -> None:
    matcher = StopMatcher(StopAutomaton([]))
    assert matcher.feed(b"anything") is None and matcher.held_bytes == 0
