"""OpenAI's Responses: the request. Knows what each field means in terms of a chat, not how it is served.

A field is honoured, or refused by name where it asks for what there is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, ClassVar, TypeVar, get_args

import msgspec
from msgspec import Meta

from octavo.config import ProfileName
from octavo.errors import CapacityError, InvalidParameter
from octavo.protocol.body import Body
from octavo.protocol.bounds import one_of, within
from octavo.protocol.openai import ChatRequest
from octavo.protocol.response_items import unknown_in_items
from octavo.protocol.structured import JsonSchemaFormat, ResponseFormat, StructuredOutputs
from octavo.protocol.tools import Function, ToolChoice, ToolDefinition
from octavo.protocol.unknown import unknown_of
from octavo.protocol.unserved import EMPTY, REFUSED
from octavo.sampling.ranges import Range

__all__ = ["InputTokensRequest", "ResponsesRequest", "in_own_words"]

T = TypeVar("T")

MAX_METADATA = 16
MAX_METADATA_KEY = 64
MAX_METADATA_VALUE = 512
"""Pairs, and characters, as OpenAI has them."""

_METADATA = {
    "maxProperties": MAX_METADATA,
    "propertyNames": {"maxLength": MAX_METADATA_KEY},
    "additionalProperties": {"type": "string", "maxLength": MAX_METADATA_VALUE},
}

LOGPROBS = "message.output_text.logprobs"
_INCLUDABLE = frozenset({
    LOGPROBS, "code_interpreter_call.outputs", "computer_call_output.output.image_url", "file_search_call.results",
    "message.input_image.image_url", "reasoning.encrypted_content", "web_search_call.action.sources",
    "web_search_call.results",
})  # fmt: skip

# What would change the answer if it were served, with the values that ask for nothing.
_REFUSED: dict[str, tuple[Any, ...]] = {
    **REFUSED,
    "access_programs": EMPTY,
    "background_options": EMPTY,
    "context_management": EMPTY,
    "conversation": EMPTY,
    "image": EMPTY,
    "moderation": EMPTY,
    "prompt_cache_options": EMPTY,
    "reasoning_effort": (None,),
    "verbosity": (None,),
}
_INSTEAD = {
    "conversation": "previous_response_id; this server keeps no conversations",
    "logprobs": f"top_logprobs, and include {LOGPROBS}",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "prompt": "input; this server keeps no prompts",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
    "stop_sequences": "stop",
    "suffix": "the completions endpoint",
    "system": "instructions",
    "think": "reasoning.effort",
    "thinking": "reasoning.effort",
    "verbosity": "text.verbosity",
}


_FORMAT_FIELDS = frozenset(JsonSchemaFormat.__struct_encode_fields__) | {"type"}
_CALLS = Range(1, 2**31 - 1, whole=True)
_CHOICE_FIELDS = frozenset({"mode", "name", "tools", "type"})


class ResponseStreamOptions(msgspec.Struct, kw_only=True):
    include_obfuscation: bool | None = None
    """true: each delta is filled up with random letters, so that its size says little about its text."""


class TextOptions(msgspec.Struct, kw_only=True):
    format: dict[str, Any] | None = None
    """`{"type": "text"}`, `{"type": "json_object"}`, or `{"type": "json_schema", "name": …, "schema": {…}}`."""
    verbosity: Annotated[str, one_of("medium")] | None = None
    """Only medium: no model here was trained on others."""


class ReasoningOptions(msgspec.Struct, kw_only=True):
    effort: str | None = None
    summary: Annotated[str, one_of("auto")] | None = None
    """Only auto: reasoning is given whole, and not summarised."""
    generate_summary: Annotated[str, one_of("auto")] | None = None
    """The older name of `summary`."""


class FunctionTool(msgspec.Struct, kw_only=True):
    """A function that the model may call."""

    type: Annotated[str, one_of("function")]
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """A JSON schema of the arguments, which are an object. None: no arguments."""
    strict: bool | None = None
    """The schema is always kept to the letter."""
    defer_loading: bool | None = None


class ResponsesRequest(Body, kw_only=True):
    """POST /v1/responses. null means the default, as if the field were not there."""

    inert: ClassVar[frozenset[str]] = frozenset({"prompt_cache_retention"})
    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = _REFUSED
    instead: ClassVar[Mapping[str, str]] = _INSTEAD

    input: str | list[Any] | None = None
    instructions: str | None = None
    """A system message in front of all; those of earlier responses are not carried over."""
    previous_response_id: str | None = None
    timeout: Annotated[float, within("timeout")] | None = None
    """Seconds from the request's arrival to the end of its answer; then it is given up."""
    store: bool | None = None
    """false: it is not kept, and no later response can go on from it."""
    background: bool | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    include: list[Annotated[str, one_of(*sorted(_INCLUDABLE))]] | None = None
    metadata: Annotated[dict[str, str], Meta(extra_json_schema=_METADATA)] | None = None
    max_output_tokens: Annotated[int, within("max_completion_tokens")] | None = None
    max_tool_calls: Annotated[int, Meta(extra_json_schema=_CALLS.schema())] | None = None
    """Of built-in tools, which are not there."""
    temperature: Annotated[float, within("temperature")] | None = None
    top_p: Annotated[float, within("top_p")] | None = None
    top_logprobs: Annotated[int, within("top_logprobs")] | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    truncation: Annotated[str, one_of("disabled")] | None = None
    service_tier: Annotated[str, one_of("auto", "default")] | None = None
    user: str | None = None
    """Who asks, of those that share an API key: each gets an equal part of the key's share."""
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    top_k: Annotated[int, within("top_k")] | None = None
    min_p: Annotated[float, within("min_p")] | None = None
    repetition_penalty: Annotated[float, within("repetition_penalty")] | None = None
    presence_penalty: Annotated[float, within("presence_penalty")] | None = None
    frequency_penalty: Annotated[float, within("frequency_penalty")] | None = None
    logit_bias: dict[str, float] | None = None
    seed: Annotated[int, within("seed")] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, within("min_tokens")] | None = None
    skip_special_tokens: bool | None = None
    cache_salt: str | None = None
    priority: Annotated[int, within("priority")] | None = None
    profile: Annotated[str, one_of(*get_args(ProfileName))] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    structured_outputs: StructuredOutputs | None = None

    @classmethod
    def check_fields(cls, raw: dict[str, Any]) -> list[str]:
        return [*super().check_fields(raw), *unknown_in_items(raw.get("input")), *_unknown_in_choices(raw)]

    @property
    def logprobs(self) -> bool:
        """Those of the answer's tokens are wanted."""
        return LOGPROBS in (self.include or ()) or bool(self.top_logprobs)

    @property
    def obfuscated(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_obfuscation)

    @property
    def stored(self) -> bool:
        return self.store is not False

    def check(self) -> None:
        """Raise InvalidParameter for the first field that asks for what there is not."""
        if self.input is None and self.previous_response_id is None:
            raise InvalidParameter("input is missing; it is required.", "input")
        if self.input in ("", []) and self.previous_response_id is None:
            raise InvalidParameter("input is empty; send a text or at least one item.", "input")
        for place, name in enumerate(self.include or ()):
            if name not in _INCLUDABLE:
                raise InvalidParameter(
                    f"include[{place}] is {name[:60]!r}; it must be one of {', '.join(sorted(_INCLUDABLE))}.",
                    f"include[{place}]",
                )
        if self.background and not self.stored:
            raise InvalidParameter(
                "background needs store: its answer is fetched later; leave store out.", "background"
            )
        if self.stream_options is not None and not self.stream:
            raise InvalidParameter(
                "stream_options is given, but stream is not true; set it or leave the options out.",
                "stream_options",
            )
        if self.max_tool_calls is not None:
            _CALLS.check("max_tool_calls", self.max_tool_calls)
        text, reasoning = self.text or TextOptions(), self.reasoning or ReasoningOptions()
        asked = (
            ("truncation", self.truncation, ("disabled",), "nothing is left out of a conversation unasked"),
            ("service_tier", self.service_tier, ("auto", "default"), "use priority or profile"),
            ("text.verbosity", text.verbosity, ("medium",), "ask for it in the instructions"),
            ("reasoning.summary", reasoning.summary, ("auto",), "reasoning is given whole"),
            ("reasoning.generate_summary", reasoning.generate_summary, ("auto",), "reasoning is given whole"),
        )
        for name, value, served, why in asked:
            if value is not None and value not in served:
                raise InvalidParameter(
                    f"{name} is {value[:60]!r}; this server takes {' or '.join(served)}: {why}.", name
                )
        self._check_metadata()

    def chat(self) -> ChatRequest:
        """The same request as one of /v1/chat/completions, but for its messages. Raises InvalidParameter."""
        return ChatRequest(
            messages=[],
            max_completion_tokens=self.max_output_tokens,
            logprobs=self.logprobs or None,
            top_logprobs=self.top_logprobs,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=self.logit_bias,
            seed=self.seed,
            stop=self.stop,
            stop_token_ids=self.stop_token_ids,
            include_stop_str_in_output=self.include_stop_str_in_output,
            ignore_eos=self.ignore_eos,
            min_tokens=self.min_tokens,
            skip_special_tokens=self.skip_special_tokens,
            cache_salt=self.cache_salt,
            priority=self.priority,
            user=self.user,
            profile=self.profile,
            chat_template_kwargs=self.chat_template_kwargs,
            tools=None if self.tools is None else [_tool(tool, i) for i, tool in enumerate(self.tools)],
            tool_choice=_tool_choice(self.tool_choice),
            parallel_tool_calls=self.parallel_tool_calls,
            response_format=None if self.text is None else _format(self.text.format),
            structured_outputs=self.structured_outputs,
            reasoning_effort=None if self.reasoning is None else self.reasoning.effort,
        )

    def echo(self) -> dict[str, Any]:
        """What a response says again of its request."""
        text, reasoning = self.text or TextOptions(), self.reasoning or ReasoningOptions()
        return {
            "background": bool(self.background),
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "max_tool_calls": self.max_tool_calls,
            "metadata": self.metadata or {},
            "parallel_tool_calls": self.parallel_tool_calls is not False,
            "previous_response_id": self.previous_response_id,
            "prompt_cache_key": self.prompt_cache_key,
            "reasoning": {
                "effort": reasoning.effort,
                "summary": reasoning.summary or reasoning.generate_summary,
            },
            "safety_identifier": self.safety_identifier,
            "service_tier": "default",
            "store": self.stored,
            "temperature": 1.0 if self.temperature is None else self.temperature,
            "text": {"format": text.format or {"type": "text"}, "verbosity": text.verbosity or "medium"},
            "tool_choice": self.tool_choice or "auto",
            "tools": [
                {
                    "type": "function",
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.parameters,
                    "strict": tool.strict is not False,
                }
                for tool in self.tools or ()
            ],
            "top_logprobs": self.top_logprobs or 0,
            "top_p": 1.0 if self.top_p is None else self.top_p,
            "truncation": "disabled",
            "user": self.user,
        }

    def _check_metadata(self) -> None:
        pairs = self.metadata or {}
        if len(pairs) > MAX_METADATA:
            raise InvalidParameter(
                f"metadata has {len(pairs)} pairs; at most {MAX_METADATA} are allowed.", "metadata"
            )
        for key, value in pairs.items():
            if len(key) > MAX_METADATA_KEY or len(value) > MAX_METADATA_VALUE:
                raise InvalidParameter(
                    f"metadata.{key[:60]} is too long: a key has at most {MAX_METADATA_KEY} characters, a value "
                    f"{MAX_METADATA_VALUE}.",
                    "metadata",
                )


class InputTokensRequest(ResponsesRequest, kw_only=True):
    """POST /v1/responses/input_tokens: how long a request's prompt would be."""


def _tool(tool: FunctionTool, place: int) -> ToolDefinition:
    name = f"tools[{place}]"
    if tool.type != "function":
        return ToolDefinition(type=tool.type)  # refused with the others
    if tool.defer_loading:
        raise InvalidParameter(
            f"{name}.defer_loading: this server has no search for tools; leave it out.", name
        )
    if tool.name is None:
        raise InvalidParameter(f"{name}.name is missing; it is required.", f"{name}.name")
    function = Function(
        name=tool.name, description=tool.description, parameters=tool.parameters, strict=tool.strict
    )
    return ToolDefinition(type="function", function=function)


def _unknown_in_choices(raw: dict[str, Any]) -> Iterator[str]:
    """Of the two fields that are read as objects of a chat."""
    if isinstance(text := raw.get("text"), dict):
        yield from unknown_of(text.get("format"), _FORMAT_FIELDS, "text.format")
    choice = raw.get("tool_choice")
    yield from unknown_of(choice, _CHOICE_FIELDS, "tool_choice")
    if isinstance(choice, dict) and isinstance(tools := choice.get("tools"), list):
        for i, tool in enumerate(tools):
            yield from unknown_of(tool, _CHOICE_FIELDS, f"tool_choice.tools[{i}]")


def _tool_choice(choice: str | dict[str, Any] | None) -> str | ToolChoice | None:
    """Names of functions lie one object deeper in a chat."""
    if not isinstance(choice, dict):
        return choice
    chat: dict[str, Any] = {"type": choice.get("type")}
    if chat["type"] == "function":
        chat["function"] = {"name": choice.get("name")}
    elif chat["type"] == "allowed_tools":
        tools = choice.get("tools")
        chat["allowed_tools"] = {
            "mode": choice.get("mode"),
            "tools": [
                {"type": tool.get("type"), "function": {"name": tool.get("name")}}
                if isinstance(tool, dict)
                else tool
                for tool in (tools if isinstance(tools, list) else [tools])
            ],
        }
    return _read(chat, ToolChoice, "tool_choice")


def _format(form: dict[str, Any] | None) -> ResponseFormat | None:
    """What a chat has in `json_schema` lies beside the type here."""
    if form is None:
        return None
    chat = {"type": form.get("type")}
    if chat["type"] == "json_schema":
        chat["json_schema"] = {name: value for name, value in form.items() if name != "type"}
    return _read(chat, ResponseFormat, "text.format")


def _read(value: Any, kind: type[T], name: str) -> T:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise InvalidParameter(f"{name} cannot be read: {error}.", name) from None


_RENAMED = (
    (".function.", "."),
    (".json_schema.", "."),
    ("max_completion_tokens", "max_output_tokens"),
    ("response_format.json_schema", "text.format"),
    ("response_format", "text.format"),
    ("reasoning_effort", "reasoning.effort"),
    ("tool_choice.allowed_tools.", "tool_choice."),
    ("messages", "input"),
)
"""A chat's fields, by the names that they have here."""


@contextmanager
def in_own_words() -> Iterator[None]:
    """Turn an error about a chat's field into one about the field of this route."""
    try:
        yield
    except (InvalidParameter, CapacityError) as error:
        message, param = str(error), error.param
        for chat, own in _RENAMED:
            message, param = message.replace(chat, own), param and param.replace(chat, own)
        raise type(error)(message, param) from None
