"""Tools and the choice among them, as requests have them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from octavo.errors import InvalidParameter
from octavo.protocol.tools import ToolChoice, ToolDefinition, Tools, tools_of

TOOLS = [{"type": "function", "function": {"name": name}} for name in ("f", "g", "h")]


def read(tools: Any = TOOLS, choice: Any = None, parallel: bool | None = None) -> Tools | None:
    return tools_of(
        msgspec.convert(tools, list[ToolDefinition] | None),
        msgspec.convert(choice, str | ToolChoice | None),
        parallel,
    )


def names(tools: Tools | None) -> tuple[list[str], bool, bool]:
    assert tools is not None
    return [function.name for function in tools.callable], tools.must, tools.several


def test_choices() -> None:
    assert names(read()) == (["f", "g", "h"], False, True)
    assert names(read(choice="auto", parallel=False)) == (["f", "g", "h"], False, False)
    assert names(read(choice="none")) == ([], False, True)
    assert names(read(choice="required")) == (["f", "g", "h"], True, True)
    assert names(read(choice={"type": "function", "function": {"name": "g"}})) == (["g"], True, False)
    some = {"mode": "auto", "tools": [TOOLS[2], TOOLS[0]]}
    assert names(read(choice={"type": "allowed_tools", "allowed_tools": some})) == (["h", "f"], False, True)
    assert read(None) is read([]) is read(None, "auto") is None


def test_what_templates_are_given_has_no_more_than_the_client_gave() -> None:
    tools = read([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}])
    assert tools is not None
    assert tools.definitions == [
        {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    ]


@pytest.mark.parametrize(
    ("tools", "choice", "param"),
    [
        (None, "required", "tool_choice"),
        (TOOLS, "sometimes", "tool_choice"),
        (TOOLS, {"type": "function", "function": {"name": "x"}}, "tool_choice.function.name"),
        (TOOLS, {"type": "function"}, "tool_choice.function"),
        (TOOLS, {"type": "custom"}, "tool_choice"),
        (
            TOOLS,
            {"type": "allowed_tools", "allowed_tools": {"mode": "none", "tools": TOOLS}},
            "tool_choice.allowed_tools.mode",
        ),
        (
            TOOLS,
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}},
            "tool_choice.allowed_tools.tools",
        ),
        ([TOOLS[0], TOOLS[0]], None, "tools[1].function.name"),
        ([{"type": "web_search"}], None, "tools[0].type"),
        ([{"type": "function"}], None, "tools[0].function"),
        ([{"type": "function", "function": {"name": "a b"}}], None, "tools[0].function.name"),
        ([{"type": "function", "function": {"name": ""}}], None, "tools[0].function.name"),
        (
            [{"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}],
            None,
            "tools[0].function.parameters",
        ),
        (TOOLS * 43, None, "tools"),
    ],
)
def test_what_cannot_be_is_refused_by_name(tools: Any, choice: Any, param: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        read(tools, choice)
    assert caught.value.param == param
