"""What one server serves: a model's text side, the way to its engine, and whether requests are taken. No HTTP."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import time
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from octavo.config import DEFAULT_POOLING, Pooling
from octavo.engine.client import EngineClient
from octavo.errors import CapacityError, EngineDied, InvalidParameter, Overloaded
from octavo.models.spec import ModelSpec
from octavo.protocol.errors import RequestRefused
from octavo.sampling.params import MAX_STOPS, SamplingParams
from octavo.server.admission import Admission
from octavo.server.connections import STREAM_BUFFER_BYTES
from octavo.server.grammars import Grammars
from octavo.text.chat import ChatTemplate
from octavo.text.continuation import Earlier, Prompt, continued_prompt
from octavo.text.conversation import encode_conversation
from octavo.text.infill import Infill
from octavo.text.sandbox import Hurried, hurry
from octavo.text.tool_turns import as_plain_turns, for_template

if TYPE_CHECKING:
    from octavo.telemetry.metrics import Metrics
    from octavo.text.tokenizer import Tokenizer

__all__ = ["ModelFile", "Serving"]

_logger = logging.getLogger(__name__)
_T = TypeVar("_T")

_LONG_TEXT = 16_384
"""Characters from which tokenizing (some milliseconds) would hold up other streams, and gets a thread."""
_HURRY_S = 0.01
"""Seconds that a template may take of the event loop, where streams run; most need a twentieth of it."""
_TAG = ":latest"
_MAX_WARNINGS = 256
"""Unknown fields that are warned of; a client may invent them without end."""

_PLACE = re.compile(r"\[\d+\]")

_TEMPLATE_RESERVED = frozenset({"messages", "tools", "add_generation_prompt", "documents"})


class ModelFile(NamedTuple):
    """What is known of the file that the model came from; 0 for what is not."""

    nbytes: int = 0
    parameters: int = 0
    modified_s: int = 0
    weight_type: str = "unknown"
    """Of most weights, by ggml's name, such as Q4_1."""


class Serving:
    """Shared by all routes. Everything here runs on the event loop."""

    def __init__(
        self,
        client: EngineClient,
        model_name: str,
        spec: ModelSpec,
        tokenizer: Tokenizer,
        metrics: Metrics,
    ) -> None:
        self.client = client
        self.model_name = model_name
        self.tokenizer = tokenizer
        self.vocabulary = tokenizer.vocabulary
        self.grammars = Grammars(tokenizer.vocabulary, spec.eos_ids)
        self.eos_ids = frozenset(spec.eos_ids)
        self.metrics = metrics
        self.started_s = int(time.time())
        self.draining = False
        self.admission = Admission(client, metrics)
        self.stream_buffer_bytes = STREAM_BUFFER_BYTES
        """What may wait for the reader of a stream (see Stream.bound)."""
        self.request_timeout_s: float | None = None
        """How long a request may take from its arrival to the end of its answer; None: any time."""
        self.embedding_width = spec.hidden
        """Numbers in a text's vector."""
        self.pooling: Pooling = DEFAULT_POOLING
        """Of vectors, where a request does not say."""
        self.spec = spec
        self.model_file = ModelFile(modified_s=self.started_s)
        self.aliases: tuple[str, ...] = ()
        """Further names of the one model."""
        self.strict = False
        """Refuse fields that nobody knows."""
        self.control_ids = {
            self.vocabulary.pieces[token].decode(errors="replace"): token for token in self.vocabulary.special
        }
        """By name."""
        self.template = ChatTemplate(
            spec.chat_template, self._name(spec.bos_id), self._name(spec.eos_ids[:1])
        )
        self.infill = Infill.of(tokenizer)
        self._longest_piece = max(map(len, self.vocabulary.pieces), default=1)
        self._warned: set[tuple[str, str]] = set()
        client.observer = metrics

    @property
    def fingerprint(self) -> str:
        """Equal fingerprints promise equal answers: a short hash of the arithmetic id."""
        return "fp_" + hashlib.sha256(self.client.info.arithmetic_id.encode()).hexdigest()[:10]

    @cached_property
    def vocabulary_id(self) -> str:
        """Token ids mean the same under equal ones: a short hash of the vocabulary."""
        pieces = self.vocabulary.pieces
        found = hashlib.sha256(array("Q", map(len, pieces)).tobytes())
        found.update(b"".join(pieces))
        return found.hexdigest()[:16]

    @property
    def ready(self) -> bool:
        """New requests are taken, and an engine is there to serve them."""
        return self.client.healthy and not self.draining

    @property
    def state(self) -> str:
        """One word for health checks: `ready`, `loading`, `restarting`, `stalled`, `draining` or `dead`."""
        if self.client.dead:
            return "dead"
        if self.draining:
            return "draining"
        if not self.client.loaded:
            return "loading"
        if self.client.stalled:
            return "stalled"
        return "ready" if self.client.healthy else "restarting"

    def accept(self, model: str | None = None) -> None:
        """Raise what keeps a new request out: not loaded, shutting down, dead, or another model's name."""
        if self.draining:
            raise Overloaded("The server is shutting down; ask another server.", retry_after_s=5)
        if self.client.dead:
            raise EngineDied("The engine died and could not be brought back; restart the server.")
        if not self.client.loaded:
            raise Overloaded("The model is still being loaded; try again in a moment.")
        if model is not None and not self.serves(model):
            raise self.no_such_model(model)

    @property
    def names(self) -> tuple[str, ...]:
        """What the model is called, its own name first."""
        return self.model_name, *self.aliases

    def serves(self, name: str) -> bool:
        """It is one of the model's names; a tag `:latest` says nothing, as Ollama has it."""
        return name.removesuffix(_TAG) in {one.removesuffix(_TAG) for one in self.names}

    def no_such_model(self, name: str) -> RequestRefused:
        """404, with the name of what there is."""
        message = f"The model {name[:100]!r} is not served here; {_listed(self.names)}."
        return RequestRefused(404, message, "model_not_found", "model")

    def check_unknown(self, names: Iterable[str], path: str) -> None:
        """Log each name once for a route; raise InvalidParameter for the first where the server is strict."""
        for name in names:
            if self.strict:
                raise InvalidParameter(
                    f"{name[:60]} is no field of {path}, and this server is strict; leave it out.", name[:60]
                )
            if len(self._warned) >= _MAX_WARNINGS:
                return
            name = _PLACE.sub("[]", name)
            if (path, name) not in self._warned:
                self._warned.add((path, name))
                _logger.warning("%s: the field %.60r is unknown and has no effect", path, name)

    async def encode(self, text: str, name: str, *, add_bos: bool | None = None) -> list[int]:
        """A completion's prompt; control tokens may be named in it. Raises CapacityError before any work for a
        text that no number of tokens could make short enough; `name` is the field."""
        self._check_length(text, name)
        encode = self.tokenizer.encode
        if len(text) < _LONG_TEXT:
            return encode(text, allow_special=True, add_bos=add_bos)
        return await asyncio.to_thread(encode, text, allow_special=True, add_bos=add_bos)

    async def encode_infill(
        self, before: str | Sequence[int], after: str, name: str, *, add_bos: bool | None = None
    ) -> list[int]:
        """A prompt for what stands between two texts; `name` is the first one's field. Raises InvalidParameter where
        the model was not taught to fill in."""
        if self.infill is None:
            raise InvalidParameter(
                f"suffix is not supported by {self.model_name!r}: its vocabulary has no tokens to fill in the middle; "
                "leave it out or serve a model that has them.",
                "suffix",
            )
        before_length = len(before) if isinstance(before, str) else 0
        if before_length:
            self._check_length(str(before), name)
        self._check_length(after, "suffix")
        infill, tokenizer = self.infill, self.tokenizer
        if before_length + len(after) < _LONG_TEXT:
            return infill.prompt(tokenizer, before, after, add_bos=add_bos)
        return await asyncio.to_thread(infill.prompt, tokenizer, before, after, add_bos=add_bos)

    def with_infill_ends(self, params: SamplingParams) -> SamplingParams:
        """What is filled in ends where the text after it would begin."""
        if self.infill is None or params.ignore_eos:
            return params
        ends = dict.fromkeys((*params.stop_token_ids, *self.infill.ends))
        return msgspec.structs.replace(params, stop_token_ids=tuple(ends)[:MAX_STOPS])

    async def encode_prediction(self, text: str) -> list[int]:
        """What a client expects as the answer; no names of control tokens are read in it. Raises CapacityError for one
        that no answer could be."""
        self._check_length(text, "prediction")
        encode = self.tokenizer.encode
        if len(text) < _LONG_TEXT:
            return encode(text, allow_special=False, add_bos=False)
        return await asyncio.to_thread(encode, text, allow_special=False, add_bos=False)

    async def encode_chat(
        self,
        turns: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final: bool = False,
        template_kwargs: Mapping[str, Any],
    ) -> list[int]:
        """The prompt for a conversation (protocol/conversation.py). What a message says stays text: names of control
        tokens in it are letters, so nobody can open a turn of another role."""
        turns, tools, size = self._for_template(turns, tools, template_kwargs)

        def encode() -> list[int]:
            return encode_conversation(
                self.tokenizer,
                self.template,
                turns,
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                continue_final=continue_final,
                **template_kwargs,
            )

        return await _soon(encode) if size < _LONG_TEXT else await asyncio.to_thread(encode)

    def shorten(self, tokens: list[int], most: int | None) -> list[int]:
        """The last `most` tokens of a prompt; a BOS at its front that the model wants counts among them and stays."""
        if most is None or len(tokens) <= most:
            return tokens
        bos = self.tokenizer.bos_id
        if most > 1 and self.tokenizer.add_bos and tokens[0] == bos:
            return [tokens[0], *tokens[1 - most :]]
        return tokens[-most:]

    async def encode_continued(
        self,
        turns: Sequence[Mapping[str, Any]],
        earlier: Earlier | None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any],
    ) -> Prompt:
        """The same, going on from the ids of an earlier answer where that can be (see text/continuation)."""
        if earlier is not None:  # where there are other turns for the template, its place is another one
            before, _, _ = self._for_template(turns[: earlier.place], tools, template_kwargs)
            earlier = earlier._replace(place=len(before))
        turns, tools, size = self._for_template(turns, tools, template_kwargs)

        def encode() -> Prompt:
            return continued_prompt(
                self.tokenizer, self.template, turns, earlier, tools=tools, **template_kwargs
            )

        return await _soon(encode) if size < _LONG_TEXT else await asyncio.to_thread(encode)

    def _for_template(
        self,
        turns: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        template_kwargs: Mapping[str, Any],
    ) -> tuple[list[dict[str, Any]], Sequence[Mapping[str, Any]] | None, int]:
        """Turns and tools as the template takes them, and how many characters they are about. Raises InvalidParameter
        and CapacityError."""
        limit = self.client.info.capacity.max_model_len
        if len(turns) > limit:
            raise CapacityError(
                f"messages has {len(turns)} messages, each of which is a token at least, and prompt and answer may "
                f"have {limit} tokens together; send fewer.",
                "messages",
            )
        if taken := _TEMPLATE_RESERVED & template_kwargs.keys():
            name = f"chat_template_kwargs.{min(taken)}"
            raise InvalidParameter(f"{name} is set by the server; use the request's own fields.", name)
        if self.template.takes_tools:
            adapted = for_template(turns, short_ids="[TOOL_CALLS]" in (self.template.source or ""))
        else:
            adapted, tools = as_plain_turns(turns, tools), None
        size = sum(len(turn["content"]) for turn in adapted)
        if tools or any("tool_calls" in turn for turn in adapted):
            size += len(repr((tools, adapted)))
        self._check_size(size, "messages")
        return adapted, tools, size

    def _check_length(self, text: str, name: str) -> None:
        self._check_size(len(text), name)

    def _check_size(self, size: int, name: str) -> None:
        limit = self.client.info.capacity.max_model_len
        if size > limit * self._longest_piece:
            raise CapacityError(
                f"{name} has {size} characters, which cannot fit the {limit} tokens that prompt and answer may "
                "have together; shorten it.",
                name.partition("[")[0],
            )

    def _name(self, token: int | Sequence[int] | None) -> str | None:
        """A control token's name; None where the model has none."""
        ids = [token] if isinstance(token, int) else list(token or ())
        return self.vocabulary.pieces[ids[0]].decode(errors="replace") if ids else None


async def _soon(encode: Callable[[], _T]) -> _T:
    """A short conversation's prompt, here and now, unless its template takes its time: then in a thread."""
    try:
        with hurry(_HURRY_S):
            return encode()
    except Hurried:
        return await asyncio.to_thread(encode)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names))
    return f"{shown} is" if len(names) == 1 else f"its names are {shown}"
