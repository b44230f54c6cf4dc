"""Anthropic's requests: messages, and the count of their tokens. Knows what each field means, not how it is served.

Written down as OpenAI's messages, which is the one form that the text side reads: a block that uses a tool is a call of
the assistant's, a tool's result is a message of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import msgspec

from octavo.errors import InvalidParameter
from octavo.protocol.body import Body, renamed
from octavo.protocol.bounds import within
from octavo.protocol.conversation import CalledFunction, Message, ToolCall
from octavo.protocol.tools import Function, ToolDefinition, Tools, tools_of
from octavo.protocol.tools import ToolChoice as OpenAIChoice
from octavo.protocol.unserved import REFUSED, REFUSED_OF_TOKENS
from octavo.sampling.grammar import Grammar
from octavo.sampling.params import SamplingParams
from octavo.scheduling.inputs import Service

__all__ = ["NAMES", "CountTokensRequest", "MessagesRequest"]

NAMES = {".function.parameters": ".input_schema", ".function.name": ".name", "stop": "stop_sequences"}
"""Fields of OpenAI's, in Anthropic's words."""

MIN_BUDGET_TOKENS = 1024
"""Of thinking, as Anthropic has it."""

# What would change the answer if it were served, with the values that ask for nothing.
_REFUSED: dict[str, tuple[Any, ...]] = {
    **REFUSED,
    "container": (None,),
    "mcp_servers": (None, []),
    "speed": (None, "standard"),
}
_OF_ANSWERS = REFUSED.keys() - REFUSED_OF_TOKENS.keys() - {"instructions", "options", "think"}
"""No count of a prompt's tokens depends on them."""
_INSTEAD = {
    "instructions": "system",
    "max_completion_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "reasoning_effort": "output_config.effort",
    "response_format": "output_config.format",
    "stop": "stop_sequences",
    "think": "thinking",
}
_EFFORTS = ("low", "medium", "high", "xhigh", "max")
_NOT_READ = {
    "container_upload": "files for a sandbox",
    "document": "documents",
    "image": "images",
    "search_result": "search results",
}


T = TypeVar("T")


class Block(msgspec.Struct, kw_only=True):
    """A block of a message, whatever its type. Marks for Anthropic's cache are passed over: here, all is cached."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[Block] | None = None
    is_error: bool | None = None
    cache_control: dict[str, Any] | None = None
    caller: dict[str, Any] | None = None
    citations: Any = None
    data: str | None = None
    """Of thinking that only Anthropic can read."""
    signature: str | None = None
    """Of thinking, as it was given; nothing is signed here."""


class Turn(msgspec.Struct, kw_only=True):
    """One message."""

    role: str
    content: str | list[Block]


class Tool(msgspec.Struct, kw_only=True):
    """A tool that the client runs."""

    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    cache_control: dict[str, Any] | None = None


class ToolChoice(msgspec.Struct, kw_only=True):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct, kw_only=True):
    type: str
    budget_tokens: int | None = None
    """How long it should think, at most. The model is not cut off there."""
    display: Literal["summarized", "omitted"] | None = None


class Metadata(msgspec.Struct, kw_only=True):
    user_id: str | None = None


class OutputFormat(msgspec.Struct, kw_only=True):
    type: str
    schema: dict[str, Any] | None = None


class OutputConfig(msgspec.Struct, kw_only=True):
    effort: str | None = None
    format: OutputFormat | None = None


class ContextManagement(msgspec.Struct, kw_only=True):
    edits: list[dict[str, Any]] | None = None


class CountTokensRequest(Body, kw_only=True):
    """POST /v1/messages/count_tokens."""

    inert = frozenset({"cache_control", "diagnostics", "inference_geo", "user_profile_id"})
    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        name: nothing for name, nothing in _REFUSED.items() if name not in _OF_ANSWERS
    }
    instead: ClassVar[Mapping[str, str]] = _INSTEAD

    messages: list[Turn]
    system: str | list[Block] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    """The older place of `output_config.format`."""
    context_management: ContextManagement | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def conversation(self) -> list[Message]:
        """The system prompt and the messages, those of one role in a row made one. Raises InvalidParameter."""
        self._check_context()
        if not self.messages:
            raise InvalidParameter("messages is an empty list; send at least one message.", "messages")
        system = _text(self.system or "", "system")
        told = [Message(role="system", content=system)] if system else []
        known: set[str] = set()
        for i, turn in enumerate(self.messages):
            for message in _messages(turn, f"messages[{i}]", known):
                if told and (both := _joined(told[-1], message)):
                    told[-1] = both
                else:
                    told.append(message)
        if told[-1].role == "system":
            raise InvalidParameter("messages ends with the system's; send one of the user's.", "messages")
        if told[-1].tool_calls:
            name = f"messages[{len(self.messages) - 1}]"
            raise InvalidParameter(f"{name} uses a tool, and no tool_result follows; send it.", name)
        return told

    @property
    def prefilled(self) -> bool:
        """The last message is the assistant's, and the answer continues it."""
        return self.messages[-1].role == "assistant"

    def called_tools(self) -> Tools | None:
        """None where there are none. Raises InvalidParameter."""
        tools = [_tool(tool, f"tools[{i}]") for i, tool in enumerate(self.tools or [])]
        choice = self.tool_choice
        if choice is None:
            return tools_of(tools, None, None)
        parallel = not choice.disable_parallel_tool_use
        modes = {"auto": "auto", "any": "required", "none": "none"}
        if choice.type in modes:
            return tools_of(tools, modes[choice.type], parallel)
        if choice.type != "tool":
            raise InvalidParameter(
                f"tool_choice.type is {choice.type[:40]!r}; it is one of {', '.join([*modes, 'tool'])}.",
                "tool_choice.type",
            )
        named = {"type": "function", "function": {"name": _required(choice.name, "tool_choice.name")}}
        with renamed(NAMES):
            return tools_of(tools, msgspec.convert(named, OpenAIChoice), parallel)

    @property
    def constrained_by(self) -> str | None:
        """The field that constrains the answer."""
        if self.output_format is not None:
            return "output_format.schema"
        if self.output_config is not None and self.output_config.format is not None:
            return "output_config.format.schema"
        return None

    def constraint(self) -> Grammar | None:
        """What the answer must look like. Raises InvalidParameter."""
        form, newer = self.output_format, self.output_config and self.output_config.format
        if form is not None and newer:
            raise InvalidParameter(
                "output_format is the older name of output_config.format; send one of them.", "output_format"
            )
        form = form or newer or None
        name = self.constrained_by
        if form is None or name is None:
            return None
        if form.type != "json_schema":
            kind = name.replace(".schema", ".type")
            raise InvalidParameter(f"{kind} is {form.type[:40]!r}; it must be 'json_schema'.", kind)
        schema = _required(form.schema, name)
        with renamed({"grammar": name}):
            return Grammar.json(schema)

    def thinks(self) -> bool | None:
        """Whether the model is to think before it answers; None where that is left to it. Raises InvalidParameter."""
        if self.thinking is None:
            return None
        match self.thinking.type:
            case "enabled":
                budget = self.thinking.budget_tokens
                if budget is None or budget < MIN_BUDGET_TOKENS:
                    raise InvalidParameter(
                        f"thinking.budget_tokens is {'missing' if budget is None else budget}; "
                        f"it must be at least {MIN_BUDGET_TOKENS}.",
                        "thinking.budget_tokens",
                    )
                return True
            case "disabled":
                return False
            case "adaptive" | "between_tools":
                return None
        raise InvalidParameter(
            f"thinking.type is {self.thinking.type[:40]!r}; it is one of enabled, disabled, adaptive.",
            "thinking.type",
        )

    def effort(self) -> str | None:
        """How much to think, in a word. Raises InvalidParameter."""
        effort = self.output_config.effort if self.output_config else None
        if effort is not None and effort not in _EFFORTS:
            raise InvalidParameter(
                f"output_config.effort is {effort[:40]!r}; it is one of {', '.join(_EFFORTS)}.",
                "output_config.effort",
            )
        return effort

    def _check_context(self) -> None:
        edits = (self.context_management and self.context_management.edits) or []
        for i, edit in enumerate(edits):
            # What was thought in earlier turns is for the model's template to show or not.
            if not str(edit.get("type")).startswith("clear_thinking_"):
                name = f"context_management.edits[{i}]"
                raise InvalidParameter(f"{name} is not supported by this server; leave it out.", name)


class MessagesRequest(CountTokensRequest, kw_only=True):
    """POST /v1/messages."""

    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = _REFUSED

    max_tokens: int
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    metadata: Metadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    timeout: Annotated[float, within("timeout")] | None = None
    """Seconds from the request's arrival to the end of its answer; then it is given up."""
    cache_salt: str | None = None
    """Requests with different salts share nothing in the prefix cache."""

    def sampling(self) -> SamplingParams:
        """The parameters. Raises InvalidParameter for the first that is out of range."""
        if self.temperature is not None and not 0 <= self.temperature <= 1:
            raise InvalidParameter(f"temperature is {self.temperature}; it must lie in 0 … 1.", "temperature")
        budget = self.thinking and self.thinking.budget_tokens
        if budget and budget >= self.max_tokens:
            raise InvalidParameter(
                f"thinking.budget_tokens is {budget}, and max_tokens {self.max_tokens}; it must be less.",
                "thinking.budget_tokens",
            )
        given: dict[str, Any] = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "repetition_penalty": self.repetition_penalty,
            "seed": self.seed,
            "stop": self.stop_sequences and tuple(self.stop_sequences),
            "grammar": self.constraint(),
        }
        with renamed(NAMES):
            return SamplingParams(
                max_tokens=self.max_tokens,
                **{name: value for name, value in given.items() if value is not None},
            )

    def service(self) -> Service:
        """For which user of the key it is."""
        return Service(user=(self.metadata and self.metadata.user_id) or "")


def _messages(turn: Turn, name: str, known: set[str]) -> Iterator[Message]:
    """`turn` in OpenAI's words, in order. `known`: the ids of the tools' uses so far."""
    if turn.role not in ("user", "assistant", "system"):
        raise InvalidParameter(
            f"{name}.role is {turn.role[:40]!r}; it must be user, assistant or system.", f"{name}.role"
        )
    if isinstance(turn.content, str):
        yield Message(role=turn.role, content=turn.content)
        return
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for i, block in enumerate(turn.content):
        where = f"{name}.content[{i}]"
        match block.type, turn.role:
            case "text", _:
                texts.append(_required(block.text, f"{where}.text"))
            case "thinking", "assistant":
                thoughts.append(_required(block.thinking, f"{where}.thinking"))
            case "redacted_thinking", "assistant":
                pass  # nobody but Anthropic can read it
            case "tool_use", "assistant":
                calls.append(_call(block, where))
                known.add(calls[-1].id)
            case "tool_result", "user":
                if texts:
                    yield Message(role="user", content="\n".join(texts))
                    texts.clear()
                yield _result(block, where, known)
            case _:
                raise _unread(block, where, turn.role)
    if turn.role == "assistant":
        yield _assistant("".join(texts), "".join(thoughts), calls)
    elif texts or not turn.content:
        yield Message(role=turn.role, content="\n".join(texts))


def _assistant(text: str, thought: str, calls: list[ToolCall]) -> Message:
    return Message(
        role="assistant", content=text, tool_calls=calls or None, reasoning_content=thought or None
    )


def _call(block: Block, where: str) -> ToolCall:
    function = CalledFunction(
        name=_required(block.name, f"{where}.name"), arguments=_required(block.input, f"{where}.input")
    )
    return ToolCall(id=_required(block.id, f"{where}.id"), function=function)


def _result(block: Block, where: str, known: set[str]) -> Message:
    use = _required(block.tool_use_id, f"{where}.tool_use_id")
    if use not in known:
        raise InvalidParameter(
            f"{where}.tool_use_id is {use[:80]!r}, and no tool_use before it has this id; send both.",
            f"{where}.tool_use_id",
        )
    text = _text(block.content or "", f"{where}.content")
    return Message(role="tool", tool_call_id=use, content=f"Error: {text}" if block.is_error else text)


def _text(content: str | list[Block], name: str) -> str:
    """Of text blocks only."""
    if isinstance(content, str):
        return content
    parts = []
    for i, block in enumerate(content):
        if block.type != "text":
            raise _unread(block, f"{name}[{i}]", name)
        parts.append(_required(block.text, f"{name}[{i}].text"))
    return "\n".join(parts)


def _unread(block: Block, where: str, place: str) -> InvalidParameter:
    if block.type in _NOT_READ:
        return InvalidParameter(
            f"{where} is of type {block.type!r}; the served model reads text, and no {_NOT_READ[block.type]}.",
            where,
        )
    return InvalidParameter(
        f"{where} is of type {block.type[:40]!r}, which is not read there ({place}).", where
    )


def _joined(one: Message, other: Message) -> Message | None:
    """Both as one, where they are of one role and belong together."""
    if one.role != other.role or one.role == "tool":
        return None
    between = "" if one.role == "assistant" else "\n"
    texts = [text for text in (one.content, other.content) if isinstance(text, str) and text]
    if one.role != "assistant":
        return Message(role=one.role, content=between.join(texts))
    thought = (one.reasoning_content or "") + (other.reasoning_content or "")
    return _assistant(between.join(texts), thought, [*(one.tool_calls or []), *(other.tool_calls or [])])


def _tool(tool: Tool, name: str) -> ToolDefinition:
    if tool.type not in (None, "custom"):
        raise InvalidParameter(
            f"{name} is of type {tool.type[:40]!r}, a tool that Anthropic runs; this server has none, send tools of "
            "your own.",
            f"{name}.type",
        )
    schema = _required(tool.input_schema, f"{name}.input_schema")
    function = Function(name=tool.name, description=tool.description, parameters=schema, strict=tool.strict)
    return ToolDefinition(type="function", function=function)


def _required(value: T | None, name: str) -> T:
    if value is None:
        raise InvalidParameter(f"{name} is missing; it is required.", name)
    return value
