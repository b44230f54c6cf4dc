"""Tools as OpenAI's chat has them: functions, and whether one must be called. Knows no model's way to write a call."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from octavo.errors import InvalidParameter
from octavo.protocol.bounds import one_of

__all__ = ["Function", "ToolChoice", "ToolDefinition", "Tools", "tools_of"]

MAX_TOOLS = 128
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)
_MODES = ("none", "auto", "required")


class Function(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What the model may call."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """A JSON schema of the arguments, which are an object. None: no arguments."""
    strict: bool | None = None
    """The schema is always kept to the letter."""


class ToolDefinition(msgspec.Struct, kw_only=True):
    """One of `tools`."""

    type: Annotated[str, one_of("function")]
    function: Function | None = None


class _Named(msgspec.Struct, kw_only=True):
    name: str


class AllowedTools(msgspec.Struct, kw_only=True):
    mode: str
    tools: list[ToolChoice]


class ToolChoice(msgspec.Struct, kw_only=True):
    """`tool_choice` as an object: one function, or some of them."""

    type: Annotated[str, one_of("function", "allowed_tools")]
    function: _Named | None = None
    allowed_tools: AllowedTools | None = None


class Tools(msgspec.Struct, frozen=True):
    """What a request's model knows of, and what it may call."""

    functions: tuple[Function, ...]
    callable: tuple[Function, ...] = ()
    """Those that may be called; () for none."""
    must: bool = False
    """One has to be called."""
    several: bool = True
    """More than one call in an answer."""
    field: str = "tools"
    """Where the request has them."""

    @property
    def definitions(self) -> list[dict[str, Any]]:
        """As chat templates take them."""
        return [
            {"type": "function", "function": msgspec.to_builtins(function)} for function in self.functions
        ]


def tools_of(
    tools: Sequence[ToolDefinition] | None,
    choice: str | ToolChoice | None,
    parallel: bool | None,
) -> Tools | None:
    """None where there are none. Raises InvalidParameter."""
    if not tools:
        if choice is not None and choice not in ("none", "auto"):
            raise InvalidParameter("tool_choice is given, but tools is not; give tools too.", "tool_choice")
        return None
    functions = _functions(tools)
    several = parallel is not False
    match choice:
        case None | "auto":
            return Tools(functions, functions, several=several)
        case "none":
            return Tools(functions)
        case "required":
            return Tools(functions, functions, must=True, several=several)
        case str():
            raise InvalidParameter(
                f"tool_choice is {choice[:40]!r}; it is one of {', '.join(_MODES)}, or names a function.",
                "tool_choice",
            )
    if choice.type == "function":
        named = _named(functions, choice, "tool_choice")
        return Tools(functions, (named,), must=True, several=False)
    allowed = choice.allowed_tools
    if choice.type == "allowed_tools" and allowed is not None and allowed.mode not in _MODES[1:]:
        raise InvalidParameter(
            f"tool_choice.allowed_tools.mode is {allowed.mode[:40]!r}; it is 'auto' or 'required'.",
            "tool_choice.allowed_tools.mode",
        )
    if choice.type != "allowed_tools" or allowed is None:
        raise InvalidParameter(
            f"tool_choice.type is {choice.type[:40]!r}; it is 'function' with function.name, or 'allowed_tools' with "
            "allowed_tools.mode ('auto' or 'required') and allowed_tools.tools.",
            "tool_choice",
        )
    some = tuple(
        _named(functions, one, f"tool_choice.allowed_tools.tools[{i}]") for i, one in enumerate(allowed.tools)
    )
    if not some:
        raise InvalidParameter(
            "tool_choice.allowed_tools.tools is an empty list; name one at least, or say 'none'.",
            "tool_choice.allowed_tools.tools",
        )
    return Tools(functions, some, must=allowed.mode == "required", several=several)


def _functions(tools: Sequence[ToolDefinition]) -> tuple[Function, ...]:
    if len(tools) > MAX_TOOLS:
        raise InvalidParameter(f"tools has {len(tools)} entries; at most {MAX_TOOLS} are allowed.", "tools")
    functions: dict[str, Function] = {}
    for i, tool in enumerate(tools):
        name = f"tools[{i}]"
        if tool.type != "function":
            raise InvalidParameter(
                f"{name}.type is {tool.type[:40]!r}; this server knows tools of type 'function'.",
                f"{name}.type",
            )
        if tool.function is None:
            raise InvalidParameter(f"{name}.function is missing; it is required.", f"{name}.function")
        function = tool.function
        if not _NAME.fullmatch(function.name):
            raise InvalidParameter(
                f"{name}.function.name is {function.name[:80]!r}; it has 1 to 64 letters, digits, dots, dashes and "
                "underscores.",
                f"{name}.function.name",
            )
        if function.name in functions:
            raise InvalidParameter(
                f"{name}.function.name is {function.name!r}, as another one's; names must differ.",
                f"{name}.function.name",
            )
        kind = (function.parameters or {}).get("type", "object")
        if kind != "object":
            raise InvalidParameter(
                f"{name}.function.parameters is a schema of type {str(kind)[:40]!r}; arguments are an object.",
                f"{name}.function.parameters",
            )
        functions[function.name] = function
    return tuple(functions.values())


def _named(functions: Sequence[Function], choice: ToolChoice, field: str) -> Function:
    if choice.function is None:
        raise InvalidParameter(f"{field}.function is missing; it is required.", f"{field}.function")
    for function in functions:
        if function.name == choice.function.name:
            return function
    raise InvalidParameter(
        f"{field}.function.name is {choice.function.name[:64]!r}, which is not in tools.",
        f"{field}.function.name",
    )
