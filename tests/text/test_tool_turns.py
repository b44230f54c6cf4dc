"""Turns of tools for templates that know them, and for those that do not."""

from __future__ import annotations

from typing import Any

from octavo.text.chat import ChatTemplate
from octavo.text.tool_turns import as_plain_turns, for_template

TOOL = {"type": "function", "function": {"name": "f", "description": "née"}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": {"x": "é"}}}
TURNS: list[dict[str, Any]] = [
    {"role": "user", "content": "Ask both."},
    {"role": "assistant", "content": "", "tool_calls": [CALL, CALL]},
    {"role": "tool", "content": "1", "tool_call_id": "call_1"},
    {"role": "tool", "content": "2", "tool_call_id": "call_1"},
]


def test_a_template_without_tools_is_told_in_plain_turns() -> None:
    system, user, assistant, answers = as_plain_turns(TURNS, [TOOL])
    assert system["role"] == "system" and '"description": "née"' in system["content"]
    assert user == TURNS[0]
    call = '<tool_call>\n{"name": "f", "arguments": {"x": "é"}}\n</tool_call>'
    assert assistant == {"role": "assistant", "content": f"{call}\n{call}"}
    responses = "<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response>"
    assert answers == {"role": "user", "content": responses}
    assert TURNS[2]["role"] == "tool"  # what came in stays as it is


def test_the_system_turn_that_is_there_comes_first() -> None:
    system, _ = as_plain_turns([{"role": "system", "content": "Be brief."}, TURNS[0]], [TOOL])
    assert system["content"].startswith("Be brief.\n\nBesides")
    assert as_plain_turns(TURNS[:1], None) == TURNS[:1]


def test_short_ids_are_the_same_in_a_call_and_its_answer() -> None:
    _, assistant, first, _ = for_template(TURNS, short_ids=True)
    name = first["tool_call_id"]
    assert len(name) == 9 and name.isalnum()
    assert [call["id"] for call in assistant["tool_calls"]] == [name, name]
    assert for_template(TURNS) == TURNS
    assert (
        for_template([{**TURNS[2], "tool_call_id": "abcdefghi"}], short_ids=True)[0]["tool_call_id"]
        == "abcdefghi"
    )


def test_whether_a_template_knows_tools() -> None:
    assert ChatTemplate("{% if tools %}{{ tools | tojson }}{% endif %}").takes_tools
    assert not ChatTemplate("{{ messages[0].content }} tools").takes_tools
    assert not ChatTemplate(None).takes_tools
