"""Log-probabilities in OpenAI's forms."""

from __future__ import annotations

import codecs
import math

from hypothesis import example, given
from hypothesis import strategies as st

from octavo.backends.base import TokenSample
from octavo.protocol.logprobs import TextOffsets, chat_logprobs, completion_logprobs
from octavo.text.vocabulary import Vocabulary

VOCABULARY = Vocabulary([b"a", b"\xe2\x82", b"\xac", b"a"])


def owners(data: bytes) -> list[int]:
    """For each byte, the place of its character in the decoded text."""
    broken: dict[int, int] = {}

    def note(error: UnicodeError) -> tuple[str, int]:
        assert isinstance(error, UnicodeDecodeError)
        broken[error.start] = error.end - error.start
        return "\ufffd", error.end

    codecs.register_error("note", note)
    places: list[int] = []
    for place, character in enumerate(data.decode(errors="note")):
        places += [place] * broken.get(len(places), len(character.encode()))
    return places


@example([b"\xed", b"\xa0", b"a"])  # half a surrogate, of which decoders keep the first two bytes
@given(st.lists(st.binary(max_size=3) | st.sampled_from(["é".encode()[:1], "🙂".encode()[:3], b"\xac"])))
def test_offsets_are_where_the_first_byte_of_each_token_lands(pieces: list[bytes]) -> None:
    places = owners(b"".join(pieces))
    offsets, at = TextOffsets(), 0
    for piece in pieces:
        offset = offsets.next(piece)
        if piece:
            assert offset == places[at]
        at += len(piece)


def test_completions_keep_tokens_apart_that_are_no_whole_characters() -> None:
    sample = TokenSample(1, -3.0, ((2, -0.5), (0, -1.0), (3, -1.5)))
    assert completion_logprobs([None, sample], [0, 1], [0, 1], VOCABULARY) == {
        "tokens": ["a", "bytes:\\xe2\\x82"],
        "token_logprobs": [None, -3.0],
        "top_logprobs": [None, {"bytes:\\xac": -0.5, "a": -1.0, "bytes:\\xe2\\x82": -3.0}],
        "text_offset": [0, 1],
    }


def test_chat_gives_bytes_and_has_a_number_for_the_impossible() -> None:
    answer = chat_logprobs([TokenSample(1, -math.inf, ((0, -0.25),))], VOCABULARY)
    assert answer["content"] == [
        {
            "token": "\ufffd",
            "logprob": -9999.0,
            "bytes": [0xE2, 0x82],
            "top_logprobs": [{"token": "a", "logprob": -0.25, "bytes": [97]}],
        }
    ]
