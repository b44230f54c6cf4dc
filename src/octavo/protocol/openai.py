"""OpenAI's requests (completions, chat) with vLLM's extra fields. Knows what each means, not how it is served.

A field is honoured, or refused by name when it asks for what there is not. Only names that nobody documents are
passed over, and `check_fields` lists those.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, cast, get_args

import msgspec
from msgspec import UNSET, Meta, UnsetType

from octavo.config import ProfileName
from octavo.errors import InvalidParameter
from octavo.protocol.body import whole_numbers
from octavo.protocol.bounds import BOUNDS, TOKEN, TOKEN_IDS, one_of, within
from octavo.protocol.conversation import ContentPart, Message, conversation_of, joined
from octavo.protocol.prompts import PROMPT_SCHEMA, is_several, prompts_of
from octavo.protocol.structured import Constrained
from octavo.protocol.tools import ToolChoice, ToolDefinition, Tools, tools_of
from octavo.protocol.unserved import INERT
from octavo.sampling.params import MAX_STOPS, SamplingParams
from octavo.scheduling.inputs import Service

__all__ = ["MAX_PROMPTS", "ChatRequest", "CompletionRequest", "StreamOptions", "service_of_fields"]

MAX_PROMPTS = 1024
"""Prompts in one request."""


_STOP = Meta(extra_json_schema={"minLength": 1})
_STOPS = Meta(extra_json_schema={"maxItems": MAX_STOPS})
_BIASES = Meta(
    extra_json_schema={
        "propertyNames": {"pattern": "^[0-9]{1,10}$"},
        "additionalProperties": {"type": "number", **BOUNDS["logit_bias"].schema()},
    }
)


class StreamOptions(msgspec.Struct, kw_only=True):
    include_usage: bool | None = None
    """A last chunk with the usage of the whole request and no choices."""
    continuous_usage_stats: bool | None = None
    """vLLM's: each chunk has the usage of its choice so far."""
    include_obfuscation: bool | None = None
    """OpenAI's padding of events against listeners; none is added."""


class _Request(Constrained, kw_only=True):
    """What both requests share. null means the default, as if the field were not there."""

    inert: ClassVar[frozenset[str]] = INERT

    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, within("n")] | None = None
    temperature: Annotated[float, within("temperature")] | None = None
    top_p: Annotated[float, within("top_p")] | None = None
    top_k: Annotated[int, within("top_k")] | None = None
    min_p: Annotated[float, within("min_p")] | None = None
    repetition_penalty: Annotated[float, within("repetition_penalty")] | None = None
    presence_penalty: Annotated[float, within("presence_penalty")] | None = None
    frequency_penalty: Annotated[float, within("frequency_penalty")] | None = None
    logit_bias: Annotated[dict[str, float], _BIASES] | None = None
    seed: Annotated[int, within("seed")] | None = None
    use_beam_search: bool | None = None
    beam_width: Annotated[int, within("beam_width")] | None = None
    """Beams of a beam search; without it, best_of or n of them."""
    length_penalty: Annotated[float, within("length_penalty")] | None = None
    early_stopping: bool | Literal["never"] | None = None
    stop: Annotated[str, _STOP] | Annotated[list[Annotated[str, _STOP]], _STOPS] | None = None
    stop_token_ids: Annotated[list[int], TOKEN_IDS, _STOPS] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, within("min_tokens")] | None = None
    skip_special_tokens: bool | None = None
    prompt_logprobs: Annotated[int, within("prompt_logprobs")] | None = None
    """vLLM's: of each prompt token its log-probability and so many alternatives. Not streamed."""
    return_token_ids: bool | None = None
    """vLLM's: the token ids of prompt and answer; in a stream, those of each event."""
    return_tokens_as_token_ids: bool | None = None
    """vLLM's: log-probabilities name a token `token_id:42`, which tells those with equal texts apart."""
    truncate_prompt_tokens: Annotated[int, within("truncate_prompt_tokens")] | None = None
    """vLLM's: keep the last so many tokens of a prompt, and BOS where the model wants it."""
    add_special_tokens: bool | None = None
    """false: no BOS before a completion's prompt. true: a BOS before a chat's, where its template has none."""
    cache_salt: str | None = None
    """Requests with different salts share nothing in the prefix cache."""
    priority: Annotated[int, within("priority")] | None = None
    """A lower number runs earlier; 0 is usual."""
    user: str | None = None
    """Who asks, of those that share an API key: each gets an equal part of the key's share."""
    profile: Annotated[str, one_of(*get_args(ProfileName))] | None = None
    """The kind of use, which says what is to be fast; the server's own, if it is not given."""
    timeout: Annotated[float, within("timeout")] | None = None
    """Seconds from the request's arrival to the end of its answer; then it is given up."""

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.continuous_usage_stats)

    def _sampling(self, **own: Any) -> SamplingParams:
        if self.stream_options is not None and not self.stream:
            raise InvalidParameter(
                "stream_options is given, but stream is not true; set it or leave the options out.",
                "stream_options",
            )
        for name in (
            "temperature",
            "truncate_prompt_tokens",
        ):  # what is said of the others is theirs
            if (value := getattr(self, name)) is not None:
                BOUNDS[name].check(name, value)
        if self.prompt_logprobs is not None and self.stream:
            raise InvalidParameter(
                "prompt_logprobs is not supported with stream; leave one of them out.", "prompt_logprobs"
            )
        for place, token in enumerate((self.stop_token_ids or ())[:MAX_STOPS]):
            TOKEN.check(f"stop_token_ids[{place}]", token)
        stop = self.stop
        own |= self._beams(own)
        given: dict[str, Any] = {
            "n": self.n,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "repetition_penalty": self.repetition_penalty,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "logit_bias": _logit_bias(self.logit_bias),
            "seed": self.seed,
            "stop": (stop,) if isinstance(stop, str) else stop and tuple(stop),
            "stop_token_ids": self.stop_token_ids and tuple(self.stop_token_ids),
            "include_stop_str_in_output": self.include_stop_str_in_output,
            "ignore_eos": self.ignore_eos,
            "min_tokens": self.min_tokens,
            "skip_special_tokens": self.skip_special_tokens,
            "grammar": self.constraint(),
        }
        params = SamplingParams(
            **{**{name: value for name, value in given.items() if value is not None}, **own}
        )
        if self.stream and (params.beam_width or params.attempts > params.n):
            name = "best_of" if not params.beam_width else "use_beam_search"
            raise InvalidParameter(
                f"{name} with stream: which answer is the best is known when all have ended; leave stream out.",
                "stream",
            )
        return params

    def service(self, prediction: Sequence[int] = ()) -> Service:
        """How soon, and for which user of the key. Raises InvalidParameter."""
        return service_of_fields(self.priority, self.user, self.profile, prediction)

    def _beams(self, own: dict[str, Any]) -> dict[str, Any]:
        """The parameters of a beam search; none where none is asked for."""
        if self.use_beam_search is None and self.beam_width is None:
            wanted = {
                "length_penalty": (self.length_penalty, 1.0),
                "early_stopping": (self.early_stopping, False),
            }
            for name, (value, usual) in wanted.items():
                if value is not None and value != usual:
                    raise InvalidParameter(f"{name} is of beam search; set use_beam_search too.", name)
        if not (self.beam_width or self.use_beam_search):
            return {}
        if self.use_beam_search is False:
            raise InvalidParameter(
                "beam_width is given, and use_beam_search is false; leave one out.", "beam_width"
            )
        given = {
            "beam_width": self.beam_width or own.get("best_of") or self.n or 1,
            "length_penalty": self.length_penalty,
            "early_stopping": self.early_stopping,
            "temperature": self.temperature or 0.0,
        }
        return {name: value for name, value in given.items() if value is not None} | {"best_of": None}


class CompletionRequest(_Request, kw_only=True):
    """POST /v1/completions."""

    prompt: Annotated[str | list[Any], Meta(extra_json_schema=PROMPT_SCHEMA)]
    max_tokens: Annotated[int, within("max_tokens")] | UnsetType | None = UNSET
    """16 when it is not there; null means the rest of the context."""
    logprobs: Annotated[int, within("logprobs")] | None = None
    echo: bool | None = None
    best_of: Annotated[int, within("best_of")] | None = None
    suffix: str | None = None
    """What comes after the text to be made, for models that can fill in; "" is none."""

    def __post_init__(self) -> None:
        if isinstance(self.prompt, list) and any(type(part) in (float, list) for part in self.prompt):
            self.prompt = whole_numbers(self.prompt)

    @property
    def several(self) -> bool:
        """The prompt is a list of prompts, be it of one."""
        return is_several(self.prompt)

    def prompts(self) -> list[str] | list[list[int]]:
        """One or more prompts, all texts or all token ids. Raises InvalidParameter."""
        return prompts_of(self.prompt, "prompt", MAX_PROMPTS, may_be_empty=bool(self.suffix))

    def sampling(self) -> SamplingParams:
        """The parameters. Raises InvalidParameter for the first that is out of range."""
        for name, given in (("echo", self.echo), ("truncate_prompt_tokens", self.truncate_prompt_tokens)):
            if self.suffix and given:
                raise InvalidParameter(
                    f"{name} with suffix is not supported: the prompt is not one text then; leave one out.",
                    name,
                )
        wanted = (self.prompt_logprobs, self.logprobs if self.echo else None)
        return self._sampling(
            best_of=self.best_of,
            max_tokens=16 if self.max_tokens is UNSET else self.max_tokens,
            logprobs=self.logprobs,
            prompt_logprobs=max((k for k in wanted if k is not None), default=None),
        )


class Prediction(msgspec.Struct, kw_only=True):
    """What the answer will most likely be, such as the file that is to be changed: an answer like it comes sooner."""

    type: Annotated[str, one_of("content")]
    content: str | list[ContentPart]


class ChatRequest(_Request, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Meta(extra_json_schema={"minItems": 1})]
    max_tokens: Annotated[int, within("max_tokens")] | None = None
    max_completion_tokens: Annotated[int, within("max_completion_tokens")] | None = None
    """The newer name of `max_tokens`. Neither: the rest of the context."""
    logprobs: bool | None = None
    top_logprobs: Annotated[int, within("top_logprobs")] | None = None
    add_generation_prompt: bool | None = None
    """false: do not open the assistant's turn."""
    continue_final_message: bool | None = None
    """true: the last message, the assistant's, stays open and is continued."""
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[ToolDefinition] | None = None
    tool_choice: str | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    """false: one call at most in an answer."""
    reasoning_effort: str | None = None
    """none, or how much the model should think, where its template asks for it."""
    prediction: Prediction | None = None
    """A text that the answer will mostly repeat. It changes how fast the answer comes, never the answer."""

    def predicted(self) -> str:
        """The text of the prediction; "" where there is none. Raises InvalidParameter."""
        if self.prediction is None:
            return ""
        if self.prediction.type != "content":
            raise InvalidParameter(
                f"prediction.type is {self.prediction.type[:40]!r}; it must be 'content'.", "prediction.type"
            )
        content = self.prediction.content
        return content if isinstance(content, str) else joined(content, "prediction.content", "")

    def called_tools(self) -> Tools | None:
        """Raises InvalidParameter."""
        return tools_of(self.tools, self.tool_choice, self.parallel_tool_calls)

    def conversation(self) -> list[dict[str, Any]]:
        """Messages as chat templates take them: role and content as text. Raises InvalidParameter."""
        return conversation_of(self.messages, self.continue_final_message, self.add_generation_prompt)

    def sampling(self) -> SamplingParams:
        """The parameters. Raises InvalidParameter for the first that is out of range."""
        if self.top_logprobs is not None:
            if not self.logprobs:
                raise InvalidParameter(
                    "top_logprobs is given, but logprobs is not true; set it or leave top_logprobs out.",
                    "top_logprobs",
                )
            BOUNDS["top_logprobs"].check("top_logprobs", self.top_logprobs)
        scores = {
            "logprobs": (self.top_logprobs or 0) if self.logprobs else None,
            "prompt_logprobs": self.prompt_logprobs,
        }
        if len({self.max_tokens, self.max_completion_tokens} - {None}) > 1:
            raise InvalidParameter(
                f"max_tokens is {self.max_tokens}, and max_completion_tokens, its newer name, is "
                f"{self.max_completion_tokens}; leave one out.",
                "max_tokens",
            )
        if self.max_completion_tokens is None:
            return self._sampling(max_tokens=self.max_tokens, **scores)
        try:
            return self._sampling(max_tokens=self.max_completion_tokens, **scores)
        except InvalidParameter as error:  # in the words of the request
            message, param = (
                text and text.replace("max_tokens", "max_completion_tokens")
                for text in (str(error), error.param)
            )
            raise InvalidParameter(message or "", param) from None


def service_of_fields(
    priority: int | None, user: str | None, profile: str | None, prediction: Sequence[int] = ()
) -> Service:
    """How soon, and for which user of the key, from the fields that all requests have. Raises InvalidParameter."""
    if priority is not None:
        BOUNDS["priority"].check("priority", priority)
    if profile is not None and profile not in get_args(ProfileName):
        raise InvalidParameter(
            f"profile is {profile[:40]!r}; it is one of {', '.join(get_args(ProfileName))}.", "profile"
        )
    return Service(
        priority=priority or 0,
        user=user or "",
        profile=cast(ProfileName | None, profile),
        prediction=tuple(prediction),
    )


def _logit_bias(bias: dict[str, float] | None) -> dict[int, float] | None:
    if bias is None:
        return None
    ids: dict[int, float] = {}
    for key, value in bias.items():
        if not (key.isascii() and key.isdigit() and len(key) <= 10):
            raise InvalidParameter(
                f'logit_bias has the key {key[:40]!r}; keys are token ids, such as "42".', "logit_bias"
            )
        ids[int(key)] = value
    return ids
