"""Ollama's requests: chat, generate, embed, and those about models. Knows what fields mean, not how they are served."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from octavo.errors import InvalidParameter
from octavo.protocol.body import Body, renamed
from octavo.protocol.bounds import within
from octavo.protocol.conversation import CalledFunction, Message, ToolCall
from octavo.protocol.tools import ToolDefinition, Tools, tools_of
from octavo.protocol.unserved import EMPTY, REFUSED
from octavo.sampling.grammar import Grammar
from octavo.sampling.params import MAX_LOGPROBS, SamplingParams

__all__ = [
    "ChatBody",
    "EmbedBody",
    "EmbeddingsBody",
    "GenerateBody",
    "ModelBody",
    "Options",
]

TEMPERATURE, TOP_K, TOP_P = 0.8, 40, 0.9
"""What Ollama's API documents for a request that says nothing of them."""

_DURATION = re.compile(
    r"-?(\d+(\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)((\d+(\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h))*|-?0"
)
# What would change the answer if it were served, with the values that ask for nothing.
_REFUSED_OPTIONS: dict[str, tuple[Any, ...]] = {
    "mirostat": (None, 0),
    "mirostat_eta": (None, 0.1),
    "mirostat_tau": (None, 5.0),
    "tfs_z": (None, 1, 1.0),
    "typical_p": (None, 1, 1.0),
}


class _Loading(msgspec.Struct, kw_only=True):
    """How a model is loaded, which is settled when the server starts. No answer depends on it."""

    embedding_only: bool | None = None
    f16_kv: bool | None = None
    logits_all: bool | None = None
    low_vram: bool | None = None
    main_gpu: int | None = None
    num_batch: int | None = None
    num_ctx: int | None = None
    num_gpu: int | None = None
    num_keep: int | None = None
    num_thread: int | None = None
    numa: bool | None = None
    use_mlock: bool | None = None
    use_mmap: bool | None = None
    vocab_only: bool | None = None


class Options(_Loading, kw_only=True):
    """`options`: how tokens are chosen. null is the default."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    num_predict: int | None = None
    """Tokens at most; -1, -2: as many as the context holds."""
    stop: str | list[str] | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    """How far back that looks; here it is all (-1) or nothing (0)."""
    penalize_newline: bool | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None


_TOP_LEVEL = frozenset(Options.__struct_encode_fields__) - set(_Loading.__struct_encode_fields__)
_REFUSED = {
    **REFUSED,
    **dict.fromkeys(_TOP_LEVEL, (None,)),
    "context": EMPTY,
    "images": EMPTY,
}
_INSTEAD = {name: f"options.{name}" for name in _TOP_LEVEL} | {
    "instructions": "a system message",
    "max_completion_tokens": "options.num_predict",
    "max_output_tokens": "options.num_predict",
    "max_tokens": "options.num_predict",
    "reasoning_effort": "think",
    "repetition_penalty": "options.repeat_penalty",
    "response_format": "format",
    "stop_sequences": "options.stop",
    "system": "a system message",
    "thinking": "think",
}


class _Asked(Body, kw_only=True):
    """What all have."""

    inert = frozenset({"shift", "truncate"})
    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = _REFUSED
    instead: ClassVar[Mapping[str, str]] = _INSTEAD

    model: str
    timeout: Annotated[float, within("timeout")] | None = None
    """Seconds from the request's arrival to the end of its answer; then it is given up."""
    keep_alive: str | int | float | None = None
    """How long the model stays loaded: here, always."""

    @classmethod
    def check_fields(cls, raw: dict[str, Any]) -> list[str]:
        """Raise InvalidParameter for options that are asked for and not there; the names that nobody knows."""
        unknown = super().check_fields(raw)
        options = raw.get("options")
        if not isinstance(options, dict):
            return unknown
        for name, nothing in _REFUSED_OPTIONS.items():
            if options.get(name) not in nothing:
                field = f"options.{name}"
                raise InvalidParameter(f"{field} is not supported by this server; leave it out.", field)
        known = {*Options.__struct_encode_fields__, *_REFUSED_OPTIONS}
        return unknown + [f"options.{name}" for name in sorted(options.keys() - known)]

    def check_keep_alive(self) -> None:
        """Raise InvalidParameter for what is no duration."""
        given = self.keep_alive
        if isinstance(given, str) and not _DURATION.fullmatch(given.strip()):
            raise InvalidParameter(
                f"keep_alive is {given[:40]!r}; it is a duration such as '5m', or a number of seconds.",
                "keep_alive",
            )

    @property
    def unloads(self) -> bool:
        """It is told to be gone at once."""
        given = self.keep_alive
        return given is not None and not float(re.sub(r"[^\d.]", "", str(given)) or 0)


class _Generating(_Asked, kw_only=True):
    """What chat and generate have."""

    stream: bool | None = None
    """null: true."""
    format: Literal["", "json"] | dict[str, Any] | None = None
    """json, or a JSON schema."""
    options: Options | None = None
    think: bool | str | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None

    @property
    def streams(self) -> bool:
        return self.stream is not False

    def effort(self) -> str | None:
        """How much to think, in a word; "none" for not at all, None where it is left to the model."""
        if isinstance(self.think, str):
            if self.think not in ("low", "medium", "high"):
                raise InvalidParameter(
                    f"think is {self.think[:40]!r}; it is true, false, low, medium or high.", "think"
                )
            return self.think
        return {None: None, True: "medium", False: "none"}[self.think]

    @property
    def constrained_by(self) -> str | None:
        return "format" if self.format else None

    def sampling(self) -> SamplingParams:
        """The parameters. Raises InvalidParameter for the first that is out of range."""
        options = self.options or Options()
        if options.num_predict is not None and options.num_predict < -2:
            raise InvalidParameter(
                f"options.num_predict is {options.num_predict}; it must be at least -2.",
                "options.num_predict",
            )
        if not self.logprobs and self.top_logprobs:
            raise InvalidParameter(
                "top_logprobs is given, but logprobs is not true; set it or leave top_logprobs out.",
                "top_logprobs",
            )
        if not 0 <= (self.top_logprobs or 0) <= MAX_LOGPROBS:
            raise InvalidParameter(
                f"top_logprobs is {self.top_logprobs}; it must lie in 0 … {MAX_LOGPROBS}.", "top_logprobs"
            )
        grammar = None
        if self.format:
            with renamed({"grammar": "format"}):
                grammar = Grammar.json(None if isinstance(self.format, str) else self.format)
        stop = (options.stop,) if isinstance(options.stop, str) else tuple(options.stop or ())
        given: dict[str, Any] = {
            "temperature": TEMPERATURE if options.temperature is None else options.temperature,
            "top_k": TOP_K if options.top_k is None else options.top_k,
            "top_p": TOP_P if options.top_p is None else options.top_p,
            "min_p": options.min_p,
            "seed": options.seed,
            "repetition_penalty": _repeat_penalty(options),
            "presence_penalty": options.presence_penalty,
            "frequency_penalty": options.frequency_penalty,
        }
        given = {name: value for name, value in given.items() if value is not None}
        limit = options.num_predict or -1
        with renamed({name: f"options.{_OWN.get(name, name)}" for name in (*given, "stop", "max_tokens")}):
            return SamplingParams(
                max_tokens=None if limit < 0 else limit,
                stop=stop,
                logprobs=(self.top_logprobs or 0) if self.logprobs else None,
                grammar=grammar,
                **given,
            )


_OWN = {"repetition_penalty": "repeat_penalty", "max_tokens": "num_predict"}


class OllamaFunction(msgspec.Struct, kw_only=True):
    name: str
    arguments: dict[str, Any] | None = None
    index: int | None = None


class OllamaCall(msgspec.Struct, kw_only=True):
    function: OllamaFunction
    id: str | None = None


class OllamaMessage(msgspec.Struct, kw_only=True):
    """One message."""

    role: str
    content: str | None = None
    thinking: str | None = None
    images: list[str] | None = None
    tool_calls: list[OllamaCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class ChatBody(_Generating, kw_only=True):
    """POST /api/chat."""

    messages: list[OllamaMessage] | None = None
    """None at all: the model is to be loaded."""
    tools: list[ToolDefinition] | None = None

    def conversation(self) -> list[Message]:
        """In OpenAI's words. Raises InvalidParameter."""
        told: list[Message] = []
        for i, message in enumerate(self.messages or []):
            name = f"messages[{i}]"
            if message.role not in ("system", "user", "assistant", "tool"):
                raise InvalidParameter(
                    f"{name}.role is {message.role[:40]!r}; it is one of system, user, assistant, tool.",
                    f"{name}.role",
                )
            _no_images(message.images, f"{name}.images")
            calls = [
                ToolCall(
                    id=call.id or f"call_{i}_{place}",
                    function=CalledFunction(name=call.function.name, arguments=call.function.arguments or {}),
                )
                for place, call in enumerate(message.tool_calls or [])
            ]
            told.append(
                Message(
                    role=message.role,
                    content=message.content or "",
                    name=message.tool_name,
                    tool_calls=calls or None,
                    tool_call_id=message.tool_call_id,
                    reasoning_content=message.thinking or None,
                )
            )
        return told

    @property
    def prefilled(self) -> bool:
        """The last message is the assistant's, and the answer continues it."""
        last = (self.messages or [])[-1]
        return last.role == "assistant" and not last.tool_calls

    def called_tools(self) -> Tools | None:
        """None where there are none. Raises InvalidParameter."""
        return tools_of(self.tools, None, None)


class GenerateBody(_Generating, kw_only=True):
    """POST /api/generate."""

    prompt: str | None = None
    """Empty: the model is to be loaded."""
    system: str | None = None
    suffix: str | None = None
    raw: bool | None = None
    """true: the prompt is the model's own, with no template around it."""
    template: str | None = None
    context: list[int] | None = None
    """Of an earlier answer: what was said so far, as token ids."""
    images: list[str] | None = None

    def check(self) -> None:
        """Raise InvalidParameter for what does not go together."""
        _no_images(self.images, "images")
        if self.template:
            raise InvalidParameter(
                "template is not supported: the model's own is used; set raw and write the whole prompt instead.",
                "template",
            )
        for name in ("system", "context"):
            if not getattr(self, name):
                continue
            for other in ("raw", "suffix"):
                if getattr(self, other):
                    raise InvalidParameter(f"{name} and {other} exclude each other; leave one out.", name)
        if self.system and self.context:
            raise InvalidParameter(
                "system and context exclude each other: what was said so far has its system prompt; leave one out.",
                "system",
            )


class EmbedBody(_Asked, kw_only=True):
    """POST /api/embed."""

    input: str | list[str]
    truncate: bool | None = None
    """false: refuse a text that is too long, instead of cutting its end off."""
    dimensions: int | None = None
    options: Options | None = None


class EmbeddingsBody(_Asked, kw_only=True):
    """POST /api/embeddings, the older form."""

    prompt: str
    options: Options | None = None


class ModelBody(Body, kw_only=True):
    """A request about a model."""

    inert = frozenset({"insecure", "stream", "verbose"})
    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {}

    name: str | None = None
    """The older name of `model`."""


def _repeat_penalty(options: Options) -> float | None:
    penalty, last = options.repeat_penalty, options.repeat_last_n
    if penalty is None or penalty == 1 or last == 0:
        return None
    if last is not None and last != -1:
        raise InvalidParameter(
            f"options.repeat_last_n is {last}; here repeat_penalty looks at all of the text (-1) or is off (0).",
            "options.repeat_last_n",
        )
    if options.penalize_newline is False:
        raise InvalidParameter(
            "options.penalize_newline is false, and repeat_penalty spares no token here; leave one out.",
            "options.penalize_newline",
        )
    return penalty


def _no_images(images: list[str] | None, name: str) -> None:
    if images:
        raise InvalidParameter(f"{name} is given; the served model reads text, and no images.", name)
