"""Compiled grammars: what they allow, over which vocabularies, and that only the tokens so far decide it."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from octavo.errors import InvalidParameter
from octavo.sampling.grammar import Grammar, lark_json, lark_text
from octavo.sampling.guide import Compiler, Guide, MaskFiller
from octavo.text.vocabulary import Vocabulary
from tests.fakes import END, VOCABULARY

BYTES = Compiler(VOCABULARY, (END,))
WORDS = Vocabulary(
    [
        b"<unk>",
        b"<s>",
        b"</s>",
        b"<call>",
        *(bytes([b]) for b in range(256)),
        b"yes",
        b' "',
        b'{"',
        b"",
        b"call",
        b"",
    ],
    {0, 1, 2, 3},
)
"""Like a file's from SentencePiece: control tokens, a byte each, pieces, padding; two end tokens below."""
NESTED = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["a", "b"]},
        "list": {
            "type": "array",
            "items": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
            "maxItems": 3,
        },
        "code": {"type": "string", "pattern": "^[A-Z]{2}[0-9]+$"},
    },
    "required": ["kind", "list", "code"],
    "additionalProperties": False,
}

ENDLESS_LATER = {
    "type": "object",
    "properties": {"x": {"type": "string", "maxLength": 3}, "n": {"$ref": "#/$defs/n"}},
    "required": ["x", "n"],
    "$defs": {"n": {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}, "required": ["n"]}},
}


def allowed(guide: Guide, size: int) -> set[int]:
    return next(iter(rows(guide, size)))


def rows(guide: Guide, size: int, *drafts: int) -> list[set[int]]:
    masks = MaskFiller(size, 1).fill([(guide, drafts)])
    bits = np.unpackbits(masks.view(np.uint8), axis=1, bitorder="little")
    assert not bits[:, size:].any()
    return [set(map(int, np.flatnonzero(row))) for row in bits]


def written(grammar: Grammar, text: str, compiler: Compiler = BYTES, size: int = END + 1) -> set[int]:
    """What may come behind `text`, which is allowed."""
    guide = compiler.compile(grammar)
    assert guide.allowed(list(text.encode())) == len(text.encode())
    guide.follow(list(b"prompt" + text.encode()), 6)
    return allowed(guide, size)


@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        (Grammar.json(NESTED), '{"kind": "b", "list": [1, "x"], "code": "AB7"}'),
        (Grammar.json({"type": "object"}), '{"a": [], "b": {"c": null}}'),
        (Grammar.json(NESTED, compact=True), '{"kind":"b","list":[1,"x"],"code":"AB7"}'),
        (
            Grammar.json(NESTED, whitespace_pattern=" {0,2}"),
            '{  "kind" :"b" , "list": [1 ,"x"],"code":"AB7"}',
        ),
        (Grammar("json_schema", '{"type": "array"}'), "[1, 2]"),
        (Grammar("regex", "[a-c]{2}é"), "abé"),
        (Grammar.choice(["a", 'say "é\n"', "ab"]), 'say "é\n"'),
        (Grammar("lark", 'start: "x" NUMBER\nNUMBER: /[0-9]/'), "x7"),
        (Grammar("gbnf", 'root ::= "x" [0-9]\n'), "x7"),
        (
            Grammar("lark", 'start: %json {"uniqueItems": false, "const": [1]} "x" %json {"const": 2}'),
            "[1]x2",
        ),
        (
            Grammar("gbnf", r'root ::= "\u0430\u0022\\u0430" [\u0430-\u044f] [\U0001F600-\U0001F604]'),
            'а"\\u0430я😂',
        ),
        (
            Grammar.json({"type": "array", "uniqueItems": False, "items": {"const": 1 << 53}}),
            "[9007199254740992]",
        ),
        (
            Grammar(
                "lark", f"start: {lark_text('<call>')} {lark_json({'type': 'integer'})} {lark_text('!')}"
            ),
            "<call>12!",
        ),
    ],
)
def test_the_end_is_allowed_where_the_grammar_is_fulfilled(grammar: Grammar, text: str) -> None:
    assert END in written(grammar, text)
    assert END not in written(grammar, text[:-1])


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        (Grammar.json({"type": "nope"}), "nope"),
        (Grammar.json({"not": {}}), "not"),
        (Grammar.json({"enum": []}), "empty"),
        (Grammar.json({"type": "integer", "minimum": 3, "maximum": 2}), "minimum"),
        (Grammar.json({"$ref": "http://example.com/x"}), "retriev"),
        (Grammar.json({"$ref": "#/$defs/no"}), "no"),
        (Grammar("json_schema", "{"), "JSON"),
        (Grammar.json({"const": (1 << 53) + 1}), "rounded"),
        (Grammar("lark", 'start: "x" %json {"const": 9007199254740993} "y"'), "rounded"),
        (Grammar("lark", 'start: "x" %json {"const": '), "EOF"),
        (Grammar.json({"$ref": "#"}), "Nothing can ever fulfil it"),
        (Grammar("regex", r"[^\s\S]"), "Nothing can ever fulfil it"),
        (Grammar("gbnf", "root ::= root"), "requires itself"),
        (Grammar("gbnf", r'root ::= "\ud800"'), "d800"),
        (Grammar("regex", "["), "unclosed"),
        (Grammar("regex", r"(a)\1"), "backreferences"),
        (Grammar("regex", "(" * 3000 + ")" * 3000), "invalid regex"),
        (Grammar("lark", "start: nothing"), "nothing"),
        (Grammar("lark", "start: <nothing>"), "unknown special token"),
        (Grammar("gbnf", "root ::= ("), r"\)"),
        (Grammar("gbnf", "root ::= " + "(" * 9000), "deep"),
        (Grammar("choice", "[1]"), "list of strings"),
    ],
)
def test_a_broken_grammar_has_a_reason(grammar: Grammar, reason: str) -> None:
    """Case 27."""
    with pytest.raises(InvalidParameter, match=reason) as raised:
        BYTES.compile(grammar)
    assert len(str(raised.value)) < 600 and "\n" not in str(raised.value)


def test_a_schema_that_requires_itself_is_refused() -> None:
    """Case 28: no answer to it ends."""
    schema = {
        "$ref": "#/$defs/n",
        "$defs": {"n": {"type": "object", "properties": {"c": {"$ref": "#/$defs/n"}}}},
    }
    BYTES.compile(Grammar.json(schema))
    schema["$defs"]["n"]["required"] = ["c"]  # type: ignore[index]
    with pytest.raises(InvalidParameter, match="require itself"):
        BYTES.compile(Grammar.json(schema))


def test_control_tokens_padding_and_several_ends() -> None:
    compiler, size = Compiler(WORDS, (2, 1)), WORDS.size
    assert written(Grammar.choice(["yes"]), "", compiler, size) == {WORDS.pieces.index(b"yes")}
    done = compiler.compile(Grammar.choice(["yes"]))
    done.follow([WORDS.pieces.index(b"yes")], 0)
    assert allowed(done, size) == {1, 2}
    text = compiler.compile(Grammar("regex", "(?s:.*)"))
    free = allowed(text, size)
    assert {1, 2} < free and not free & {0, 3}, "a control token is no text"
    assert not any(WORDS.pieces[token] == b"" for token in free)
    called = compiler.compile(Grammar("lark", 'start: <call> "call"'))
    assert allowed(called, size) == {3}
    literal = compiler.compile(Grammar("lark", 'start: "<call>"'))
    assert 3 not in allowed(literal, size)


def test_a_model_without_an_end_token_follows_no_grammar() -> None:
    with pytest.raises(InvalidParameter, match="no end token"):
        Compiler(VOCABULARY, ()).compile(Grammar("regex", "a"))


def test_rows_behind_drafts() -> None:
    guide = BYTES.compile(Grammar("regex", "ab[cd]"))
    a, b, c, d = b"abcd"
    assert rows(guide, END + 1, a, b, c) == [{a}, {b}, {c, d}, {END}]
    assert rows(guide, END + 1, a, c, c) == [{a}, {b}, set(), set()], (
        "nothing follows a draft that is not allowed"
    )
    assert rows(guide, END + 1, a, b, c, c, c) == [{a}, {b}, {c, d}, {END}, set(), set()]
    assert rows(guide, END + 1) == [{a}], "the place is where it was"
    assert guide.allowed([a, b, b]) == 2 and guide.forced() == [a, b]


def test_what_may_come_follows_from_the_tokens_alone() -> None:
    """In whatever pieces they are taken in, with masks, drafts and questions in between or without."""
    draw = random.Random(3)
    beginning = BYTES.compile(Grammar.json(NESTED))
    for _ in range(20):
        curious = beginning.copy()
        tokens: list[int] = []
        while True:
            here = allowed(curious, END + 1)
            late = beginning.copy()
            late.follow(tokens, 0)
            assert allowed(late, END + 1) == here
            if END in here:
                break
            token = draw.choice(sorted(here))
            if draw.random() < 0.5:
                rows(curious, END + 1, token, draw.randrange(256), draw.randrange(256))
            forced = curious.forced()
            assert curious.allowed(forced) == len(forced)
            tokens.append(token)
            if draw.random() < 0.7:
                curious.follow(tokens, 0)
            curious.follow(tokens, 0)
        json.loads(bytes(tokens))


def test_an_answer_too_complex_for_its_limits_says_so() -> None:
    """What requires itself is not at the beginning."""
    guide = BYTES.compile(Grammar.json(ENDLESS_LATER))
    tokens = list(b'{"x": "a"')
    guide.follow(tokens, 0)
    while guide.error is None and len(tokens) < 100:
        tokens += guide.forced()[:1]
        guide.follow(tokens, 0)
    assert "Too many items" in (guide.error or "")
