"""Turns of tools as a chat template takes them, or as plain turns where it knows of no tools. Renders nothing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["as_plain_turns", "for_template"]

_INSTRUCTION = """\
Besides answering in words you can call functions. These are there, one per line, as JSON:
<tools>
{tools}
</tools>
To call one, write its name and its arguments as JSON between these two tags, once for each call:
<tool_call>
{{"name": <name>, "arguments": <object>}}
</tool_call>
What it gives back comes between <tool_response> and </tool_response>."""
_SHORT_ID = 9


def for_template(turns: Sequence[Mapping[str, Any]], *, short_ids: bool = False) -> list[dict[str, Any]]:
    """For a template that knows tools: arguments are objects. `short_ids`: nine letters and digits, which Mistral's
    templates insist on."""
    return [_prepared(turn, short_ids) for turn in turns]


def as_plain_turns(
    turns: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
) -> list[dict[str, Any]]:
    """For a template that does not: the tools are told in the system's turn, in the Hermes format; calls are part of
    the assistant's text, and what came back is told by the user."""
    plain: list[dict[str, Any]] = []
    for turn in turns:
        if turn["role"] == "tool":
            text = f"<tool_response>\n{turn['content']}\n</tool_response>"
            if plain and plain[-1].get("answers_tools"):
                plain[-1]["content"] += f"\n{text}"
            else:
                plain.append({"role": "user", "content": text, "answers_tools": True})
        elif turn.get("tool_calls"):
            calls = [f"<tool_call>\n{_call(call)}\n</tool_call>" for call in turn["tool_calls"]]
            said = [turn["content"]] if turn["content"] else []
            plain.append({"role": turn["role"], "content": "\n".join([*said, *calls])})
        else:
            plain.append(dict(turn))
    if tools:
        lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
        text = _INSTRUCTION.format(tools=lines)
        if plain and plain[0]["role"] == "system":
            plain[0] = {**plain[0], "content": f"{plain[0]['content']}\n\n{text}"}
        else:
            plain.insert(0, {"role": "system", "content": text})
    for turn in plain:
        turn.pop("answers_tools", None)
    return plain


def _call(call: Mapping[str, Any]) -> str:
    function = call["function"]
    written = {"name": function["name"], "arguments": function["arguments"]}
    return json.dumps(written, ensure_ascii=False)


def _prepared(turn: Mapping[str, Any], short_ids: bool) -> dict[str, Any]:
    turn = dict(turn)
    if short_ids:
        if turn.get("tool_call_id"):
            turn["tool_call_id"] = _short(turn["tool_call_id"])
        if turn.get("tool_calls"):
            turn["tool_calls"] = [{**call, "id": _short(call["id"])} for call in turn["tool_calls"]]
    return turn


def _short(name: str) -> str:
    if len(name) == _SHORT_ID and name.isascii() and name.isalnum():
        return name
    return hashlib.sha256(name.encode()).hexdigest()[:_SHORT_ID]
