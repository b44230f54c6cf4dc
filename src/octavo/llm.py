"""The engine inside this process, for scripts: prompts in, answers out. Knows no other process and no HTTP."""

from __future__ import annotations

import signal
import threading
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, cast, get_args

import msgspec

from octavo.backends.base import TokenSample
from octavo.config import DEFAULT_POOLING, EngineConfig, Pooling
from octavo.engine.build import build_engine
from octavo.engine.journal import with_seed
from octavo.engine.messages import Add, EngineInfo
from octavo.errors import InvalidParameter, ServerError, SettingsError
from octavo.models.cache import Progress
from octavo.models.store import open_model
from octavo.sampling.params import EMBEDDING, SamplingParams
from octavo.sampling.vectors import check_dimensions
from octavo.sampling.vectors import finished as vector_of
from octavo.scheduling.outputs import FinishReason, SequenceOutput
from octavo.speculation.registry import with_draft_folder
from octavo.telemetry.progress import RequestProgress
from octavo.text.chat import ChatTemplate
from octavo.text.conversation import encode_conversation
from octavo.text.stream import TextStream
from octavo.text.vocabulary import Vocabulary

__all__ = [
    "LLM",
    "CompletionOutput",
    "EmbeddingOutput",
    "Message",
    "Prompt",
    "Request",
    "RequestOutput",
]

T = TypeVar("T")

Prompt = str | Sequence[int]
"""A text, in which control tokens may be named, or token ids."""
Message = Mapping[str, Any]
"""`{"role": "user", "content": "…"}`."""


@dataclass(frozen=True)
class Request:
    """A request that can run: `LLM.prepare` and `LLM.prepare_chat` make it. Its parameters have a seed."""

    prompt: str | None
    """None for token ids and for chats."""
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    pooling: Pooling | None = None
    """Not None: for the prompt's vector."""


@dataclass(frozen=True)
class CompletionOutput:
    """One of the n answers to a prompt."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    """All that the model chose, an end token too."""
    logprobs: tuple[TokenSample, ...] | None
    """One for each token, where `SamplingParams.logprobs` asks for them."""
    finish_reason: FinishReason
    stop_reason: int | str | None
    """The stop string or stop token id that ended it."""


@dataclass(frozen=True)
class RequestOutput:
    """The answers to one prompt."""

    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
    prompt_logprobs: tuple[TokenSample | None, ...] | None = None
    error: str | None = None
    """Why the engine gave up on it (then a finish reason is "error")."""
    vector: bytes = b""
    """Where the prompt's vector was asked for: float32, little-endian."""

    @property
    def text(self) -> str:
        """The first answer's text."""
        return self.outputs[0].text

    @property
    def new_tokens(self) -> int:
        """Of all answers."""
        return sum(len(one.token_ids) for one in self.outputs)


@dataclass(frozen=True)
class EmbeddingOutput:
    """The vector of one prompt."""

    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    embedding: list[float]
    """Each number is one that float32 holds."""


class LLM:
    """A model, loaded into this process. Use it from one thread; `close` it, or use `with`.

    `model`: `smollm2`, the path of a GGUF file, or `hf:owner/name/file.gguf`. `settings`: EngineConfig's fields.
    `progress`: called with (done bytes, total bytes, what) while the model is fetched and converted.
    Raises ModelError and SettingsError; ServerError where the network fails or the disk is full.

        with LLM("smollm2", max_running=16) as llm:
            [output] = llm.generate("The capital of France is", SamplingParams(temperature=0))
            print(output.text)
    """

    def __init__(
        self, model: str | Path = "smollm2", *, progress: Progress | None = None, **settings: Any
    ) -> None:
        packed = settings.get("backend", "native") == "native"
        _check_settings(settings)
        if "speculation" in settings:
            opened = partial(open_model, progress=progress, packed=packed)
            settings["speculation"], _ = with_draft_folder(settings["speculation"], opened)
        stored = open_model(model, progress=progress, packed=packed)
        config = msgspec.convert({"model_dir": str(stored.dir.absolute()), **settings}, EngineConfig)
        self.tokenizer = stored.tokenizer()
        vocabulary = self.tokenizer.vocabulary
        bos, eos = (
            vocabulary.bytes_of(-1 if token is None else token, skip_special=False).decode(errors="replace")
            for token in (stored.spec.bos_id, next(iter(stored.spec.eos_ids), None))
        )
        self._template = ChatTemplate(stored.spec.chat_template, bos, eos)
        self._width = stored.spec.hidden
        self._engine = build_engine(config)
        self._open: dict[str, _Open] = {}
        self._ids = count()

    @property
    def info(self) -> EngineInfo:
        """Sizes, limits and the arithmetic id."""
        return self._engine.info

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = False,
    ) -> list[RequestOutput]:
        """Continue one or more prompts; the answers come in their order.

        `params`: for all, or one for each. `progress`: a bar on stderr. Raises InvalidParameter or CapacityError
        before anything runs, for the first prompt that can never be served; ServerError where the engine fails.
        """
        many = _many_prompts(prompts)
        return self._answer(
            [self.prepare(prompt, one) for prompt, one in _paired(many, params, SamplingParams())], progress
        )

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = False,
        **template: Any,
    ) -> list[RequestOutput]:
        """Answer one or more conversations; otherwise as `generate`. Without `params`, answers may fill the rest
        of the context. `template`: further arguments of `text.conversation.encode_conversation`."""
        many = _many_conversations(messages)
        pairs = _paired(many, params, SamplingParams(max_tokens=None))
        return self._answer([self.prepare_chat(one, own, **template) for one, own in pairs], progress)

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        pooling: Pooling = DEFAULT_POOLING,
        dimensions: int | None = None,
        normalize: bool = True,
        progress: bool = False,
    ) -> list[EmbeddingOutput]:
        """The vectors of one or more prompts, in their order: hidden states behind the final norm, the last token's or
        the mean of all; the first `dimensions` numbers, then brought to length 1 if `normalize`. Raises as `generate`.
        """
        check_dimensions(dimensions, self._width)
        if pooling not in get_args(Pooling):
            raise InvalidParameter(f"pooling is {pooling!r}; it is last or mean.", "pooling")
        requests = [
            replace(self.prepare(prompt, EMBEDDING), pooling=pooling) for prompt in _many_prompts(prompts)
        ]
        return [
            EmbeddingOutput(
                one.prompt, one.prompt_token_ids, vector_of(one.vector, dimensions, normalize=normalize)
            )
            for one in self._answer(requests, progress)
        ]

    def stream_chat(
        self, messages: Sequence[Message], params: SamplingParams | None = None, **template: Any
    ) -> Generator[str, None, None]:
        """The answer to one conversation, piece by piece; closing the generator ends it. `n` must be 1."""
        params = params or SamplingParams(max_tokens=None)
        if params.n != 1:
            raise InvalidParameter(f"n is {params.n}; only one answer can be streamed, so n must be 1.", "n")
        return self._stream(self.prepare_chat(messages, params, **template))

    def prepare(self, prompt: Prompt, params: SamplingParams) -> Request:
        """A checked request. Raises InvalidParameter or CapacityError."""
        if isinstance(prompt, str):
            return self._checked(prompt, self.tokenizer.encode(prompt, allow_special=True), params)
        for place, token in enumerate(prompt):
            if type(token) is not int:
                raise InvalidParameter(f"prompt[{place}] must be a token id, not {token!r:.80}.", "prompt")
        return self._checked(None, prompt, params)

    def prepare_chat(self, messages: Sequence[Message], params: SamplingParams, **template: Any) -> Request:
        """A checked request. Raises InvalidParameter or CapacityError."""
        return self._checked(
            None, encode_conversation(self.tokenizer, self._template, messages, **template), params
        )

    def run(self, requests: Iterable[Request]) -> Iterator[tuple[Request, RequestOutput]]:
        """Run requests together and give each back with its answers as soon as it has finished.

        `requests` are taken as there is room for them, so they may be many. Closing the iterator aborts what runs.
        """
        waiting = iter(requests)
        finished: deque[_Open] = deque()
        mine: dict[str, _Open] = {}
        room = 2 * self.info.capacity.max_running  # as many again stand ready
        more = True
        try:
            while True:
                while more and sum(opened.request.params.n for opened in mine.values()) < room:
                    request = next(waiting, None)
                    if request is None:
                        more = False
                    else:
                        opened = self._start(request, finished)
                        mine[opened.id] = opened
                if not mine:
                    return
                self._step()
                while finished:
                    opened = finished.popleft()
                    del mine[opened.id]
                    yield opened.request, opened.result()
        finally:
            self._abort(mine)

    def close(self) -> None:
        """Free the engine's memory and threads. Calling it twice is harmless."""
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _checked(self, prompt: str | None, ids: Sequence[int], params: SamplingParams) -> Request:
        params = with_seed(params)
        self.info.capacity.check(ids, params)
        if params.grammar is not None:
            self._engine.guides.check(params.grammar)
        return Request(prompt, tuple(ids), params)

    def _answer(self, requests: Sequence[Request], progress: bool) -> list[RequestOutput]:
        places = {id(request): place for place, request in enumerate(requests)}
        outputs: list[RequestOutput | None] = [None] * len(requests)
        with RequestProgress(len(requests), shown=progress) as bar:
            for request, output in self.run(requests):
                if output.error is not None:
                    raise ServerError(output.error)
                outputs[places[id(request)]] = output
                bar.add(len(output.prompt_token_ids) if request.pooling else output.new_tokens)
        return [output for output in outputs if output is not None]

    def _stream(self, request: Request) -> Generator[str, None, None]:
        finished: deque[_Open] = deque()
        opened = self._start(request, finished)
        try:
            while not finished:
                self._step()
                if text := opened.take_text():
                    yield text
            if error := opened.result().error:
                raise ServerError(error)
        finally:
            self._abort({} if finished else {opened.id: opened})

    def _start(self, request: Request, finished: deque[_Open]) -> _Open:
        opened = _Open(str(next(self._ids)), request, self.tokenizer.vocabulary, finished)
        add = Add(opened.id, request.prompt_token_ids, request.params, time.time(), pooling=request.pooling)
        self._engine.add(add)
        self._open[opened.id] = opened
        return opened

    def _step(self) -> None:
        """One step for everything that runs, whoever waits for it."""
        with _interrupts_wait():
            outputs = self._engine.step()
        for output in outputs.items:
            opened = self._open.get(output.request_id)
            if opened is not None and opened.push(output):
                del self._open[opened.id]

    def _abort(self, requests: Mapping[str, _Open]) -> None:
        """They are gone with the next step, whosever it is."""
        for request_id in requests:
            self._engine.abort(request_id)
            self._open.pop(request_id, None)


class _Choice:
    """One sequence on its way."""

    def __init__(self, vocabulary: Vocabulary, skip_special: bool) -> None:
        self.stream = TextStream(vocabulary, skip_special)
        self.text: list[str] = []
        self.samples: list[TokenSample] = []
        self.last: SequenceOutput | None = None


class _Open:
    """A request that runs, and what has come of it."""

    def __init__(
        self, request_id: str, request: Request, vocabulary: Vocabulary, finished: deque[_Open]
    ) -> None:
        self.id = request_id
        self.request = request
        self._finished = finished
        params = request.params
        self._choices = [_Choice(vocabulary, params.skip_special_tokens) for _ in range(params.n)]
        self._unfinished = params.n
        self._prompt_samples: tuple[TokenSample | None, ...] = ()
        self._taken = 0

    def push(self, output: SequenceOutput) -> bool:
        """Add what came; True when it was the last."""
        choice = self._choices[output.child]
        choice.samples.extend(output.samples)
        self._prompt_samples = output.prompt_samples or self._prompt_samples
        tokens = [sample.token for sample in output.samples]
        choice.text.append(choice.stream.push(tokens, max(output.held_bytes, output.cut_bytes)))
        if output.finish_reason is None:
            return False
        choice.text.append(choice.stream.finish(output.cut_bytes))
        choice.last = output
        self._unfinished -= 1
        if self._unfinished == 0:
            self._finished.append(self)
        return self._unfinished == 0

    def take_text(self) -> str:
        """What the first answer has gained since the last call."""
        text = self._choices[0].text
        new, self._taken = "".join(text[self._taken :]), len(text)
        return new

    def result(self) -> RequestOutput:
        """Everything, when all has finished."""
        lasts = [cast(SequenceOutput, choice.last) for choice in self._choices]
        with_logprobs = self.request.params.logprobs is not None
        outputs = tuple(
            CompletionOutput(
                index,
                "".join(choice.text),
                tuple(sample.token for sample in choice.samples),
                tuple(choice.samples) if with_logprobs else None,
                last.finish_reason or "error",
                last.stop_reason,
            )
            for index, (choice, last) in enumerate(zip(self._choices, lasts, strict=True))
        )
        return RequestOutput(
            self.request.prompt,
            self.request.prompt_token_ids,
            outputs,
            self._prompt_samples if self.request.params.prompt_logprobs is not None else None,
            next(
                (last.error or "The engine failed." for last in lasts if last.finish_reason == "error"), None
            ),
            lasts[0].vector,
        )


@contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Ctrl-C in the middle of a step would leave half a step behind: it is raised at the end of the step."""
    usual = signal.default_int_handler
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not usual
    ):
        yield
        return
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
    if came:
        raise KeyboardInterrupt


def _check_settings(settings: Mapping[str, Any]) -> None:
    """The names and types of EngineConfig's fields."""
    known = set(EngineConfig.__struct_fields__) - {"model_dir"}
    for name in settings:
        if name not in known:
            raise SettingsError(f"{name!r} is no setting; there are {', '.join(sorted(known))}.")
    try:
        msgspec.convert({"model_dir": "", **settings}, EngineConfig)
    except msgspec.ValidationError as error:
        raise SettingsError(f"The settings are wrong: {error}.") from None


def _many_prompts(prompts: Prompt | Sequence[Prompt]) -> Sequence[Prompt]:
    """A text or a list of ids is one prompt."""
    if isinstance(prompts, str):
        return [prompts]
    if not prompts:
        raise InvalidParameter("prompts is empty; give at least one prompt.", "prompts")
    return [cast(Sequence[int], prompts)] if isinstance(prompts[0], int) else cast(Sequence[Prompt], prompts)


def _many_conversations(
    messages: Sequence[Message] | Sequence[Sequence[Message]],
) -> Sequence[Sequence[Message]]:
    """A list of messages is one conversation."""
    if not messages:
        raise InvalidParameter("messages is empty; send at least one message.", "messages")
    if isinstance(messages[0], Mapping):
        return [cast(Sequence[Message], messages)]
    return cast(Sequence[Sequence[Message]], messages)


def _paired(
    items: Sequence[T], params: SamplingParams | Sequence[SamplingParams] | None, default: SamplingParams
) -> list[tuple[T, SamplingParams]]:
    """Each item with its parameters."""
    if params is None or isinstance(params, SamplingParams):
        return [(item, params or default) for item in items]
    if len(params) != len(items):
        raise InvalidParameter(
            f"params has {len(params)} entries for {len(items)} prompts; give one for all, or one for each.",
            "params",
        )
    return list(zip(items, params, strict=True))
