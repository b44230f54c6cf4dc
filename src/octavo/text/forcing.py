"""Grammars of whole answers: reasoning, then calls of tools or text, in Lark as llguidance reads it. No JSON schemas.

That a call is written as its family writes it, and its arguments as their schema says, is forced from its first
character on, also where the model may choose to call nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from octavo.text.calls import CallFormat
from octavo.text.reasoning import ReasoningFormat

__all__ = ["TokenOf", "Tool", "answer_grammar"]

TokenOf = Callable[[str], int | None]
"""The id of a control token by its name; None for what is ordinary text."""

_TEXT = r"TEXT: /(.|\n)*/"
_CALL = '{"name"'
_MARKS = re.compile(r"(<[^<>\s]+>|\[[A-Z_]+\])")
_JSON_LEXEMES = re.compile(_MARKS.pattern[:-1] + r'|"[^"]*"|[{}]|: |, )')


class Tool(NamedTuple):
    """A function that the model may call."""

    name: str
    arguments: str
    """What its arguments may be, as a part of a Lark grammar."""


def answer_grammar(
    token: TokenOf,
    *,
    reasoning: ReasoningFormat | None = None,
    begun: bool = False,
    calls: CallFormat | None = None,
    tools: Sequence[Tool] = (),
    must: bool = False,
    several: bool = True,
    instead: str | None = None,
) -> str:
    """The answers that a model may give.

    `reasoning`: may come first, and `begun` where the prompt opened it. `calls`: the format of calls of `tools`; with
    `must` there is one at least, and `several` allows more than one. Otherwise the answer is text, or `instead`, a
    part of a grammar.
    """
    rules = ["%llguidance {}", _TEXT]
    before = "" if reasoning is None else _reasoning(reasoning, begun, token, rules)
    if calls is None or not tools:
        body = instead or "TEXT"
    else:
        _call_rules(calls, tools, several, token, rules, as_json=instead is not None)
        body = _body(calls, must, several, instead, token, rules, behind_space=reasoning is not None)
    return "\n".join([*rules, f"start: {before} ({body})", ""])


def _reasoning(form: ReasoningFormat, begun: bool, token: TokenOf, rules: list[str]) -> str:
    rules.append(_up_to("reasoning", form.closing, token))
    rules.append(r"SPACE: /[ \n]{0,8}/")  # without a bound, a small model writes nothing else
    return "reasoning SPACE" if begun else f"({literal(form.opening, token)} reasoning SPACE)?"


def _call_rules(
    form: CallFormat,
    tools: Sequence[Tool],
    several: bool,
    token: TokenOf,
    rules: list[str],
    *,
    as_json: bool,
) -> None:
    opening, between, closing, separator = (literal(part, token, as_json=as_json) for part in form.written)
    for place, tool in enumerate(tools):
        name = json.dumps(json.dumps(tool.name) if form.quoted else tool.name)
        rules.append(f"call_{place}: {opening} {name} {between} arguments_{place} {closing}")
        rules.append(f"arguments_{place}: {tool.arguments}")
    rules.append("call: " + " | ".join(f"call_{place}" for place in range(len(tools))))
    first, last = (literal(part, token) for part in form.around)
    rules.append(f"calls: {first} call {f'({separator} call)*' if several else ''} {last}")


def _body(
    form: CallFormat,
    must: bool,
    several: bool,
    instead: str | None,
    token: TokenOf,
    rules: list[str],
    *,
    behind_space: bool,
) -> str:
    if form.mark is None:
        marks = "".join(f"{literal(mark, token)}? " for mark in form.marks if token(mark) is not None)
        forced = f"{marks}calls"
        if must or instead is not None:
            return forced if must else f"{forced} | {instead}"
        rules.append("other: " + " | ".join(_without_beginning(_CALL, "" if behind_space else r"\s*")))
        return f"{forced} | other"
    if must or instead is not None:
        forced = f"{literal(form.mark, token)} calls"
        return forced if must else f"{forced} | {instead}"
    rules.append(_up_to("head", form.mark, token))
    return "(head calls)* TEXT" if several else "TEXT | head calls"


def _up_to(rule: str, mark: str, token: TokenOf) -> str:
    """A rule: text, up to the first `mark`, which is a part of it."""
    return f"{rule}{'[lazy]' if token(mark) is None else ''}: TEXT {literal(mark, token)}"


def literal(text: str, token: TokenOf, *, as_json: bool = False) -> str:
    """A text in a grammar; names of control tokens in it are those tokens.

    `as_json`: in the lexemes that a JSON schema is made of. The lexer is greedy and does not turn back, so where both a
    call and JSON of a schema may come, a longer lexeme would rule the schema out; where other text may come, a shorter
    one would be ruled out.
    """
    parts = []
    for part in re.split(_JSON_LEXEMES if as_json else _MARKS, text):
        if part:
            known = token(part)
            parts.append(json.dumps(part) if known is None else f"<[{known}]>")
    return " ".join(parts)


def _without_beginning(text: str, space: str) -> list[str]:
    """Expressions that together match whatever does not begin with `text`. `space`: what may come first; the lexer is
    greedy, so where a rule has taken white space already, none may."""
    found = [rf"/{space}([^\s{re.escape(text[0])}](.|\n)*)?/"]
    for place, letter in enumerate(text[1:], 1):
        found.append(rf"/{space}{re.escape(text[:place])}([^{re.escape(letter)}](.|\n)*)?/")
    return found
