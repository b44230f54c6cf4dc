"""Calls in every family's format: read back however the text is cut, and forced by the grammar of their answers."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.sampling.grammar import Grammar, lark_json
from octavo.sampling.guide import Compiler
from octavo.text.calls import FORMATS, CallFormat, CallSplitter, format_of
from octavo.text.forcing import Tool, answer_grammar
from octavo.text.pieces import Piece, PlainText, Splitter
from octavo.text.reasoning import ReasoningFormat, ReasoningSplitter, reasoning_of
from octavo.text.vocabulary import Vocabulary

THINK = ReasoningFormat("<think>", "</think>")
NAMES = (
    "<end>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "<|python_tag|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
)
CONTROL = {name: 256 + place for place, name in enumerate(NAMES)}
VOCABULARY = Vocabulary(
    [*(bytes([byte]) for byte in range(256)), *(name.encode() for name in NAMES)], CONTROL.values()
)
COMPILER = Compiler(VOCABULARY, [CONTROL["<end>"]])

NUMBER = {
    "type": "object",
    "properties": {"x": {"type": "integer"}},
    "required": ["x"],
    "additionalProperties": False,
}
TOOLS = [Tool("f", lark_json(NUMBER)), Tool("get-g.x", lark_json({"type": "object"}))]
CALLS = [("f", '{"x": 12}'), ("get-g.x", '{"a": "}\\"]{ü", "b": [{}, [1]]}')]


def written(form: CallFormat, calls: Sequence[tuple[str, str]]) -> str:
    """Calls as the family writes them."""
    opening, between, closing, separator = form.written
    texts = [
        opening + (json.dumps(name) if form.quoted else name) + between + arguments + closing
        for name, arguments in calls
    ]
    return (form.mark or "") + form.around[0] + separator.join(texts) + form.around[1]


def told(splitter: Splitter, text: str, cuts: Sequence[int] = ()) -> tuple[str, str, list[tuple[str, str]]]:
    """Text, reasoning and calls of a text that comes in pieces."""
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces: list[Piece] = []
    for start, end in itertools.pairwise(edges):
        pieces += splitter.push(text[start:end])
    pieces += splitter.finish()
    calls: list[list[str]] = []
    for piece in pieces:
        if piece.kind == "call":
            if piece.name is not None:
                assert piece.call == len(calls)
                calls.append([piece.name, ""])
            calls[piece.call][1] += piece.text
    texts = ["".join(p.text for p in pieces if p.kind == kind) for kind in ("text", "reasoning")]
    return texts[0], texts[1], [(name, arguments) for name, arguments in calls]


def tokens_of(text: str, control: dict[str, int]) -> list[int]:
    """Bytes, and the control tokens that there are."""
    for name, token in control.items():
        if name in text:
            before, _, behind = text.partition(name)
            return [*tokens_of(before, control), token, *tokens_of(behind, control)]
    return list(text.encode())


def allows(grammar: str, text: str, control: dict[str, int]) -> bool:
    """The text, and its end there."""
    guide = COMPILER.compile(Grammar("lark", grammar))
    tokens = [*tokens_of(text, control), CONTROL["<end>"]]
    return guide.allowed(tokens) == len(tokens)


CUTS = st.lists(st.integers(0, 200), max_size=8)


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
@given(cuts=CUTS)
def test_two_calls_with_quotes_brackets_and_unicode_are_read_however_they_are_cut(
    form: CallFormat, cuts: list[int]
) -> None:
    """Case 30."""
    text = "" if form.mark is None else "Sure.\n"
    said = told(CallSplitter(form), text + written(form, CALLS), cuts)
    assert said == (text.strip(), "", CALLS)
    assert all(json.loads(arguments) for _, arguments in said[2])


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
@given(text=st.text(st.sampled_from('<>tool_cal/{}"name: \n[TOOL_CALLS]é'), max_size=40), cuts=CUTS)
def test_a_text_without_a_call_is_told_whole(form: CallFormat, text: str, cuts: list[int]) -> None:
    whole = told(CallSplitter(form), text)
    assert told(CallSplitter(form), text, cuts) == whole
    if (form.mark or '{"name"') not in text:
        assert whole == (text, "", [])


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
@given(length=st.integers(0, 200), cuts=CUTS)
def test_of_a_call_that_has_to_come_nothing_is_text(form: CallFormat, length: int, cuts: list[int]) -> None:
    splitter = CallSplitter(form, must=True)
    assert told(splitter, written(form, CALLS)[:length], cuts)[0] == ""
    full = [*CALLS, ("", "")]
    calls = told(CallSplitter(form, must=True), written(form, CALLS)[:length])[2]
    assert splitter.cut_off == (bool(calls) and calls[-1] != full[len(calls) - 1])


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
@given(length=st.integers(0, 200), cuts=CUTS)
def test_a_call_that_is_cut_off_keeps_what_there_is(form: CallFormat, length: int, cuts: list[int]) -> None:
    text = written(form, CALLS)[:length]
    whole = told(CallSplitter(form), text)
    assert told(CallSplitter(form), text, cuts) == whole
    assert (form.mark or '{"name"').startswith(whole[0].strip())
    for (name, arguments), (full_name, full) in zip(whole[2], CALLS, strict=False):
        assert name == full_name and full.startswith(arguments)


@given(text=st.text(st.sampled_from("<think/>ab \n"), max_size=60), begun=st.booleans(), cuts=CUTS)
def test_reasoning_is_told_apart_however_the_text_is_cut(text: str, begun: bool, cuts: list[int]) -> None:
    whole = told(ReasoningSplitter(THINK, PlainText(), begun=begun), text)
    assert told(ReasoningSplitter(THINK, PlainText(), begun=begun), text, cuts) == whole
    opened = begun or text.lstrip().startswith("<think>")
    inside = text if begun else text.lstrip().removeprefix("<think>")
    if not opened:
        assert whole == (text, "", [])
    elif "</think>" in inside:
        thought, _, answer = inside.partition("</think>")
        assert whole == (answer.lstrip(), thought.strip(), [])
    else:
        assert whole[0] == "" and whole[1] == inside.lstrip()


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
@pytest.mark.parametrize("with_tokens", [False, True])
@pytest.mark.parametrize("must", [False, True])
@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("thinks", [None, "itself", "begun"])
def test_the_grammar_allows_what_the_family_writes(
    form: CallFormat, with_tokens: bool, must: bool, several: bool, thinks: str | None
) -> None:
    control = {name: token for name, token in CONTROL.items() if with_tokens and name in form.marks}
    grammar = answer_grammar(
        control.get,
        reasoning=THINK if thinks else None,
        begun=thinks == "begun",
        calls=form,
        tools=TOOLS,
        must=must,
        several=several,
    )
    before = {None: "", "itself": "<think>well\n</think>\n\n", "begun": "well, <\n</think>\n\n"}[thinks]
    one, two = written(form, CALLS[:1]), written(form, CALLS)
    assert allows(grammar, before + one, control)
    assert allows(grammar, before + two, control) == several or thinks == "itself"
    assert allows(grammar, before + "Just a text.", control) != must
    if form.mark is not None:
        assert allows(grammar, before + "Sure. " + one, control) != must
    if not (thinks == "itself" and form.mark is None):  # there all of it may be a text
        for wrong in (one.replace("12", '"a"'), one.replace("f", "g", 1), one[:-1]):
            assert not allows(grammar, before + wrong, control)


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_an_answer_may_be_json_of_a_schema_or_a_call(form: CallFormat) -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"y": {"type": "null"}}, "required": ["y"]}
    grammar = answer_grammar(lambda _: None, calls=form, tools=TOOLS, instead=lark_json(schema))
    assert allows(grammar, '{"y": null}', {})
    assert allows(grammar, written(form, CALLS), {})
    assert not allows(grammar, "text", {})


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{{ '<tool_call>' }}", "hermes"),
        ("{% if tools %}[TOOL_CALLS] [", "mistral"),
        ("[TOOL_CALLS]{{ name }}[ARGS]", "mistral-args"),
        ("<|python_tag|>", "llama"),
        ('Environment: ipython {"name": x, "parameters": y}', "llama"),
        ("nothing of all that", "hermes"),
    ],
)
def test_the_template_says_which_format(template: str, name: str) -> None:
    assert format_of(template).name == name


def test_the_template_says_whether_there_is_reasoning() -> None:
    assert reasoning_of("… </think> …") == THINK
    assert reasoning_of("[THINK][/THINK]") == ReasoningFormat("[THINK]", "[/THINK]")
    assert reasoning_of("plain") is None
    assert reasoning_of(None) is None
