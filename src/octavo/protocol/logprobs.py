"""Log-probabilities in OpenAI's two forms: of chat, and of completions. Knows tokens' bytes, not requests.

Everything is a natural logarithm of the raw model distribution. −9999 stands for "impossible", since JSON has no
infinity (OpenAI's own convention).
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from octavo.backends.base import TokenSample
from octavo.text.vocabulary import Vocabulary

__all__ = ["TextOffsets", "chat_logprobs", "completion_logprobs", "prompt_logprobs"]

_IMPOSSIBLE = -9999.0


class TextOffsets:
    """Where each token begins in the text, in characters; a token inside a character has that character's place."""

    def __init__(self, *, drop_leading_space: bool = False) -> None:
        """`drop_leading_space`: as in text/stream."""
        self._drop = drop_leading_space
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._characters = 0

    def next(self, shown: bytes) -> int:
        """The offset of the next token, whose bytes in the text are `shown` (b"" for a hidden control token)."""
        offset = self._characters
        if shown and (begun := self._decoder.getstate()[0]):
            offset += _broken_off(begun, shown[:1])
        text = self._decoder.decode(shown)
        if self._drop and text:
            self._drop = False
            text = text.removeprefix(" ")
        self._characters += len(text)
        return offset


def _broken_off(begun: bytes, byte: bytes) -> int:
    """How many characters (U+FFFD) the bytes of one that was begun have become, when `byte` does not go on with it.

    The decoder itself keeps some such bytes back, those of surrogates.
    """
    data, count = begun + byte, 0
    while len(data) > 1:
        try:
            data.decode()
            break
        except UnicodeDecodeError as error:
            if error.reason == "unexpected end of data":
                break
            data, count = data[error.end :], count + 1
    return count


def chat_logprobs(
    samples: Sequence[TokenSample], vocabulary: Vocabulary, *, as_ids: bool = False
) -> dict[str, Any]:
    """`{"content": [...]}`: each token with its bytes and its alternatives. `as_ids`: tokens are `token_id:42`."""
    content = []
    for sample in samples:
        entry = _chat_token(sample.token, sample.logprob, vocabulary, as_ids)
        entry["top_logprobs"] = [
            _chat_token(token, logprob, vocabulary, as_ids) for token, logprob in sample.top
        ]
        content.append(entry)
    return {"content": content, "refusal": None}


def _chat_token(token: int, logprob: float | None, vocabulary: Vocabulary, as_ids: bool) -> dict[str, Any]:
    piece = vocabulary.bytes_of(token, skip_special=False)
    name = f"token_id:{token}" if as_ids else piece.decode(errors="replace")
    return {"token": name, "logprob": _finite(logprob), "bytes": list(piece)}


def completion_logprobs(
    samples: Sequence[TokenSample | None],
    tokens: Sequence[int],
    offsets: Sequence[int],
    vocabulary: Vocabulary,
    *,
    as_ids: bool = False,
    most: int | None = None,
) -> dict[str, Any]:
    """The four parallel lists. A sample is None where there is no probability: the first token of an echoed prompt.

    A token's alternatives hold the token itself, also where it is not among the most likely. `most`: so many of them,
    where a sample may have more. `as_ids`: tokens are `token_id:42`.
    """

    def name_of(token: int) -> str:
        return f"token_id:{token}" if as_ids else _completion_token(token, vocabulary)

    names = [name_of(token) for token in tokens]
    tops: list[dict[str, float | None] | None] = []
    for sample, name in zip(samples, names, strict=True):
        if sample is None:
            tops.append(None)
            continue
        top: dict[str, float | None] = {}
        for token, logprob in sample.top[:most]:
            top.setdefault(name_of(token), _finite(logprob))
        top.setdefault(name, _finite(sample.logprob))
        tops.append(top)
    return {
        "tokens": names,
        "token_logprobs": [None if sample is None else _finite(sample.logprob) for sample in samples],
        "top_logprobs": tops,
        "text_offset": list(offsets),
    }


def prompt_logprobs(
    samples: Sequence[TokenSample | None], vocabulary: Vocabulary, most: int
) -> list[dict[str, Any] | None]:
    """vLLM's: of each token of a prompt, by id, its log-probability and its `most` likely alternatives'. The rank is
    None for a token that is not among them."""
    entries: list[dict[str, Any] | None] = []
    for sample in samples:
        if sample is None:
            entries.append(None)
            continue
        entry = {
            str(token): _prompt_token(token, logprob, rank, vocabulary)
            for rank, (token, logprob) in enumerate(sample.top[:most], 1)
        }
        entry.setdefault(str(sample.token), _prompt_token(sample.token, sample.logprob, None, vocabulary))
        entries.append(entry)
    return entries


def _prompt_token(
    token: int, logprob: float | None, rank: int | None, vocabulary: Vocabulary
) -> dict[str, Any]:
    text = vocabulary.bytes_of(token, skip_special=False).decode(errors="replace")
    return {"logprob": _finite(logprob), "rank": rank, "decoded_token": text}


def _completion_token(token: int, vocabulary: Vocabulary) -> str:
    """A token's text; where its bytes are no whole characters, `bytes:\\xNN…`, which stays distinct as a key."""
    piece = vocabulary.bytes_of(token, skip_special=False)
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def _finite(logprob: float | None) -> float | None:
    return None if logprob is None else max(logprob, _IMPOSSIBLE)
