"""What the scripted engine is told to say, and what an answer must then be: strategies and an oracle, no HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from hypothesis import strategies as st

from octavo.text.tokenizer import Tokenizer
from octavo.text.vocabulary import Vocabulary
from tests.server.scripted_engine import Script

__all__ = ["FUNCTIONS", "Case", "Parts", "cases", "cases_with_tools", "expected_text"]

TEXTS = (
    "Hello", " world", "\n\n", '"', "\\", "é", "naïve ", "🙂", "👩‍👩‍👧",
    "🏳️‍🌈", "漢字", "。", "สวัสดี", "א", "\u2028", "\x00",
    "ST", "OP", "STOP", "EN", "D", "</", "<|im_", "\ufffd",
)  # fmt: skip
"""Characters of one to four bytes, some that combine, and pieces of the stop strings."""
STOPS = ("STOP", "OP", "TOE", "END", "字", "🙂", "\n", " w", "</")


FUNCTIONS: dict[str, dict[str, Any]] = {
    "add": {
        "type": "object",
        "properties": {"x": {"type": "integer"}, "y": {"type": "string"}},
        "required": ["x", "y"],
        "additionalProperties": False,
    },
    "now": {"type": "object", "properties": {}, "additionalProperties": False},
}
"""What may be called: the schema of each function's arguments."""


class Parts(NamedTuple):
    """What one choice says."""

    text: str
    reasoning: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    """Functions and their arguments, JSON."""


@dataclass(frozen=True)
class Case:
    """A script and the request that it answers. A field that an API does not have stays at its default there."""

    script: Script
    max_tokens: int
    stop: tuple[str, ...] = ()
    n: int = 1
    logprobs: int | None = None
    echo: bool = False
    skip_special_tokens: bool = True
    include_stop: bool = False
    token_ids: bool = False
    continuous_usage: bool = False
    parts: tuple[Parts, ...] | None = None
    """Of each choice, where the script has been made of them."""


@st.composite
def cases(draw: st.DrawFn, tokenizer: Tokenizer, ends: Sequence[int], *, choices: bool) -> Case:
    """Any tokens in any groups. `choices`: of a request that may ask for more than text."""
    n = draw(st.integers(1, 3)) if choices else 1
    said = _said(tokenizer, ends)
    script = Script(
        tokens=[draw(said) for _ in range(n)],
        groups=[draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)) for _ in range(n)],
        pause_s=draw(st.sampled_from((0.0005, 0.0))),
    )
    max_tokens = draw(st.sampled_from((200, 200, 7, 1)))
    stop = tuple(draw(st.lists(st.sampled_from(STOPS), max_size=3, unique=True)))
    if not choices:
        return Case(script, max_tokens, stop)
    return Case(
        script,
        max_tokens,
        stop,
        n=n,
        logprobs=draw(st.sampled_from((None, 0, 2))),
        echo=draw(st.booleans()),
        skip_special_tokens=draw(st.booleans()),
        include_stop=draw(st.booleans()),
        token_ids=draw(st.booleans()),
        continuous_usage=draw(st.booleans()),
    )


@st.composite
def cases_with_tools(draw: st.DrawFn, tokenizer: Tokenizer, *, choices: bool) -> Case:
    """Reasoning, text and calls as models of the Hermes family write them. Where the answer is cut off, its parts are
    not known."""
    n = draw(st.integers(1, 2)) if choices else 1
    plain = [text for text in TEXTS if "<" not in text and text.isprintable()]
    words = st.lists(st.sampled_from(plain), max_size=6).map(lambda texts: "".join(texts).strip())
    strings = st.one_of(words, st.just('"\n\\'))
    arguments: st.SearchStrategy[tuple[str, dict[str, Any]]] = st.one_of(
        st.builds(lambda x, y: ("add", {"x": x, "y": y}), st.integers(-99, 9999), strings),
        st.just(("now", {})),
    )
    calls = st.lists(
        arguments.map(lambda call: (call[0], json.dumps(call[1], ensure_ascii=False))), max_size=2
    )
    parts = tuple(Parts(draw(words), draw(words), tuple(draw(calls))) for _ in range(n))
    shortest = draw(st.booleans())
    spell = _speller(tokenizer) if shortest else tokenizer.encode
    max_tokens = draw(st.sampled_from((2000, 2000, 20)))
    script = Script(
        tokens=[spell(_written(one)) for one in parts],
        groups=[draw(st.lists(st.integers(1, 12), min_size=1, max_size=4)) for _ in range(n)],
        shortest=shortest,
    )
    whole = all(len(tokens) < max_tokens for tokens in script.tokens)
    logprobs = draw(st.sampled_from((None, 1))) if choices else None
    return Case(
        script,
        max_tokens,
        n=n,
        logprobs=logprobs,
        token_ids=draw(st.booleans()) if choices else False,
        continuous_usage=draw(st.booleans()) if choices else False,
        parts=parts if whole else None,
    )


def _written(parts: Parts) -> str:
    """As a model writes it."""
    thought = f"<think>\n{parts.reasoning}\n</think>\n\n" if parts.reasoning else ""
    calls = (
        f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
        for name, arguments in parts.calls
    )
    return thought + parts.text + "\n".join(calls)


def _speller(tokenizer: Tokenizer) -> Callable[[str], list[int]]:
    """Byte after byte, where the vocabulary has a token of that byte alone."""
    of_byte = {piece[0]: token for token, piece in enumerate(tokenizer.vocabulary.pieces) if len(piece) == 1}

    def spelled(text: str) -> list[int]:
        tokens = []
        for character in text:
            data = character.encode()
            known = of_byte.keys() >= set(data)
            tokens += [of_byte[byte] for byte in data] if known else tokenizer.encode(character)
        return tokens

    return spelled


def _said(tokenizer: Tokenizer, ends: Sequence[int]) -> st.SearchStrategy[list[int]]:
    """Token ids: of texts as a tokenizer writes them and byte by byte, single bytes, any token at all."""
    vocabulary = tokenizer.vocabulary
    of_byte = {piece[0]: token for token, piece in enumerate(vocabulary.pieces) if len(piece) == 1}

    text = st.sampled_from(TEXTS)
    control = [token for token in sorted(vocabulary.special) if token not in ends]
    pieces = (
        text.map(tokenizer.encode),
        text.map(_speller(tokenizer)),
        st.sampled_from(sorted(of_byte.values())).map(lambda token: [token]),
        st.integers(0, vocabulary.size - 1).map(lambda token: [token]),
        st.sampled_from([*control, ends[-1]]).map(lambda token: [token]),
    )
    return st.lists(st.one_of(pieces), max_size=12).map(
        lambda parts: [token for part in parts for token in part]
    )


def expected_text(case: Case, child: int, vocabulary: Vocabulary, ends: Sequence[int]) -> str:
    """The text of one choice, by the plainest reading of the rules: token after token, and a search in all bytes."""
    stops = [stop.encode() for stop in case.stop]
    data = b""
    for count, token in enumerate([*case.script.tokens[child], ends[0]], 1):
        piece = vocabulary.bytes_of(token, case.skip_special_tokens)
        if token in ends:
            data += piece if case.include_stop else b""
            break
        data += piece
        found = [(data.find(stop) + len(stop), -len(stop)) for stop in stops if stop in data]
        if found:
            end, less = min(found)
            data = data[: end if case.include_stop else end + less]
            break
        if count == case.max_tokens:
            break
    return data.decode(errors="replace")
