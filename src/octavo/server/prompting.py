"""A conversation → what the engine is asked and how its answer is read: prompt, grammar, splitter.

For every route that converses. Knows no API's words: routes bring turns as chat templates take them
(protocol/conversation.py) and `Tools`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from octavo.errors import InvalidParameter
from octavo.protocol.tools import Tools
from octavo.sampling.grammar import Grammar, lark_json
from octavo.sampling.params import SamplingParams
from octavo.server.serving import Serving
from octavo.text.calls import CallFormat, CallSplitter, format_of
from octavo.text.forcing import Tool, answer_grammar
from octavo.text.pieces import PlainText, Splitter
from octavo.text.reasoning import ReasoningFormat, ReasoningSplitter, reasoning_of

__all__ = ["ChatPrompt", "prompt_chat", "read_answer", "reasoning_kwargs"]

_TAIL = 12
"""Tokens at a prompt's end in which a template may open reasoning, or close it."""


class ChatPrompt(NamedTuple):
    """All that `answer_request` needs for a conversation."""

    tokens: list[int]
    params: SamplingParams
    split: Callable[[], Splitter]


async def prompt_chat(
    serving: Serving,
    turns: Sequence[Mapping[str, Any]],
    params: SamplingParams,
    *,
    tools: Tools | None = None,
    constrained_by: str | None = None,
    add_generation_prompt: bool = True,
    continue_final: bool = False,
    template_kwargs: Mapping[str, Any] | None = None,
    add_bos: bool = False,
    most_tokens: int | None = None,
    name: str = "messages",
) -> ChatPrompt:
    """The prompt of a conversation, with what its answer may be. `constrained_by`: the field that `params.grammar` came
    from. `add_bos`: also where the template writes none; it is never doubled. `most_tokens`: keep the last so many.
    `name`: the field that the conversation was made of. Raises InvalidParameter and CapacityError."""
    tokens = await serving.encode_chat(
        turns,
        tools=tools.definitions if tools else None,
        add_generation_prompt=add_generation_prompt,
        continue_final=continue_final,
        template_kwargs=template_kwargs or {},
    )
    bos = serving.tokenizer.bos_id
    if add_bos and bos is not None and tokens[:1] != [bos]:
        tokens = [bos, *tokens]
    tokens = serving.shorten(tokens, most_tokens)
    return await read_answer(serving, tokens, params, tools=tools, constrained_by=constrained_by, name=name)


async def read_answer(
    serving: Serving,
    tokens: list[int],
    params: SamplingParams,
    *,
    tools: Tools | None = None,
    constrained_by: str | None = None,
    name: str = "messages",
) -> ChatPrompt:
    """The same for a prompt that is there as tokens. `name`: the field that it was made of."""
    # What can never be served is refused also when the queue is full.
    serving.client.info.capacity.check(tokens, params, name)
    template = serving.template.source or ""
    reasoning, begun = _reasoning(serving, template, tokens)
    calls = format_of(template) if tools and tools.callable else None
    grammar = params.grammar
    await serving.grammars.check(grammar, constrained_by)
    instead = None
    if grammar is not None and (calls or reasoning):
        instead = _as_part(grammar)
        if instead is None and calls:
            raise InvalidParameter(
                f"{constrained_by} and tools are given; with tools, only a JSON schema can say what another answer is "
                "like.",
                constrained_by,
            )
        if instead is None:
            reasoning = None  # the grammar is of the whole answer
    if calls is not None or instead is not None:
        grammar = await _grammar(serving, tools, calls, reasoning, begun, instead, constrained_by)
    marks = (*(calls.marks if calls else ()), *(reasoning or ()))
    shown = [token for mark in marks if (token := serving.control_ids.get(mark)) is not None]
    try:
        params = msgspec.structs.replace(params, grammar=grammar, shown_token_ids=tuple(sorted(shown)))
    except InvalidParameter as error:
        if calls is None:
            raise
        raise InvalidParameter(f"With tools: {error}", error.param) from None
    must = tools is not None and tools.must
    return ChatPrompt(tokens, params, lambda: _splitter(calls, reasoning, begun, must))


async def _grammar(
    serving: Serving,
    tools: Tools | None,
    calls: CallFormat | None,
    reasoning: ReasoningFormat | None,
    begun: bool,
    instead: str | None,
    constrained_by: str | None,
) -> Grammar:
    """Of the whole answer. Each function's schema is looked at by itself first, so that an error can name it."""
    callable_: list[Tool] = []
    if tools is not None and calls is not None:
        for function in tools.callable:
            schema = _arguments(function.parameters)
            place = tools.functions.index(function)
            await serving.grammars.check(Grammar.json(schema), f"{tools.field}[{place}].function.parameters")
            callable_.append(Tool(function.name, lark_json(schema)))
    grammar = Grammar(
        "lark",
        answer_grammar(
            serving.control_ids.get,
            reasoning=reasoning,
            begun=begun,
            calls=calls,
            tools=callable_,
            must=tools is not None and tools.must,
            several=tools is not None and tools.several,
            instead=instead,
        ),
    )
    await serving.grammars.check(grammar, "tools" if calls else constrained_by)
    return grammar


def reasoning_kwargs(serving: Serving, effort: str | None, field: str) -> dict[str, Any]:
    """The template's variables for an effort: "none" for no reasoning, another word for some. Raises InvalidParameter
    where the model's template leaves no choice."""
    template = serving.template.source or ""
    if effort is None:
        return {}
    if "reasoning_effort" in template:
        return {"reasoning_effort": effort}
    if "enable_thinking" in template:
        return {"enable_thinking": effort != "none"}
    if (effort == "none") != (reasoning_of(template) is None):
        what = (
            "no reasoning, and this model always reasons"
            if effort == "none"
            else "reasoning, and this model does not reason"
        )
        raise InvalidParameter(f"{field} asks for {what}, by its chat template; leave it out.", field)
    return {}


def _arguments(parameters: Mapping[str, Any] | None) -> dict[str, Any]:
    """The schema of a call's arguments: always an object; with no parameters, an empty one."""
    if not parameters:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    return {"type": "object", **parameters}


def _as_part(grammar: Grammar) -> str | None:
    """As a part of a Lark grammar, where that can be."""
    return f"%json {grammar.source}" if grammar.kind == "json_schema" else None


def _reasoning(serving: Serving, template: str, tokens: Sequence[int]) -> tuple[ReasoningFormat | None, bool]:
    """What the model's reasoning looks like, and whether the prompt has begun it; None where it has closed it again."""
    form = reasoning_of(template)
    if form is None:
        return None, False
    tail = serving.vocabulary.join(tokens[-_TAIL:], skip_special=False).decode(errors="replace").rstrip()
    if tail.endswith(form.closing):
        return None, False
    return form, tail.endswith(form.opening)


def _splitter(
    calls: CallFormat | None, reasoning: ReasoningFormat | None, begun: bool, must: bool
) -> Splitter:
    rest: Splitter = PlainText() if calls is None else CallSplitter(calls, must=must)
    return rest if reasoning is None else ReasoningSplitter(reasoning, rest, begun=begun)
