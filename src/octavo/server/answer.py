"""One request's choices: outputs of the engine in, text and log-probabilities out. Knows no HTTP and no API's JSON."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from octavo.backends.base import TokenSample
from octavo.errors import ClientError, EngineDied, OctavoError, Overloaded, ServerError
from octavo.protocol.logprobs import TextOffsets, chat_logprobs, completion_logprobs, prompt_logprobs
from octavo.protocol.reply import Choice, Reply, Usage
from octavo.sampling.params import SamplingParams
from octavo.scheduling.outputs import SequenceOutput
from octavo.server.serving import Serving
from octavo.text.pieces import Piece, PlainText, Splitter
from octavo.text.reasoning import ReasoningSplitter
from octavo.text.stream import TextStream

__all__ = ["Answer", "failure_of"]

_NOTHING = Piece("")


class _Growing:
    """The text of one sequence, and what is not shown of it yet."""

    def __init__(self, answer: Answer, index: int, prompt: Sequence[int], *, echo: bool) -> None:
        serving, params = answer.serving, answer.params
        drop = echo and bool(prompt) and serving.tokenizer.drops_leading_space
        self.begun = False
        self.choice = Choice(index, prompt_tokens=prompt)
        self._answer = answer
        self._echo = prompt if echo else ()
        self._text = TextStream(answer.vocabulary, params.skip_special_tokens, drop_leading_space=drop)
        self._splitter = answer.split()
        self._offsets = TextOffsets(drop_leading_space=drop)
        self._samples: list[TokenSample | None] = []
        self._tokens: list[int] = []
        self._places: list[int] = []

    def push(self, output: SequenceOutput, prompt_samples: Sequence[TokenSample | None]) -> Sequence[Piece]:
        """What `output` lets be shown; before the first, the echoed prompt."""
        text = ""
        if self._echo:
            text = self._text.push(self._echo)
            self._note(self._echo, prompt_samples)
            self._echo = ()
        tokens = [sample.token for sample in output.samples]
        self._note(tokens, output.samples)
        choice = self.choice
        choice.tokens += tokens
        if output.finish_reason is None:
            pieces = self._splitter.push(text + self._text.push(tokens, output.held_bytes))
        else:
            text += self._text.push(tokens, max(output.held_bytes, output.cut_bytes))
            text += self._text.finish(output.cut_bytes)
            pieces = [*self._splitter.push(text), *self._splitter.finish()]
        for piece in pieces:
            choice.add(piece)
        if output.finish_reason is not None:
            if choice.has("reasoning") and isinstance(self._splitter, ReasoningSplitter):
                self._answer.usage.reasoning += self._splitter.tokens_of(
                    choice.tokens, self._answer.vocabulary
                )
            choice.cut_off = self._splitter.cut_off
            choice.finish_reason = _reason(output, choice)
            choice.stop_reason = output.stop_reason
        return pieces

    def take_logprobs(self) -> dict[str, Any] | None:
        """Of the tokens since the last call; None when none are wanted."""
        answer, vocabulary = self._answer, self._answer.serving.vocabulary
        if answer.params.logprobs is None:
            return None
        samples, tokens, places = self._samples, self._tokens, self._places
        self._samples, self._tokens, self._places = [], [], []
        as_ids, most = answer.tokens_as_ids, answer.params.logprobs
        if answer.reply.logprobs == "chat":
            known = [sample for sample in samples if sample is not None]
            return chat_logprobs(known, vocabulary, as_ids=as_ids)
        return completion_logprobs(samples, tokens, places, vocabulary, as_ids=as_ids, most=most)

    @property
    def has_logprobs(self) -> bool:
        """There are tokens whose log-probabilities were not taken."""
        return bool(self._tokens)

    def _note(self, tokens: Sequence[int], samples: Sequence[TokenSample | None]) -> None:
        params, vocabulary = self._answer.params, self._answer.vocabulary
        if params.logprobs is None:
            return
        self._samples += samples
        self._tokens += tokens
        for token in tokens:
            self._places.append(self._offsets.next(vocabulary.bytes_of(token, params.skip_special_tokens)))


class Answer:
    """Prompts × n choices, numbered prompt · n + child, for one request."""

    def __init__(
        self,
        serving: Serving,
        reply: Reply,
        params: SamplingParams,
        prompts: Sequence[Sequence[int]],
        *,
        echo: bool = False,
        split: Callable[[], Splitter] = PlainText,
        tokens_as_ids: bool = False,
        prompt_scores: int | None = None,
        arrived: Callable[[int, int], None] = lambda place, tokens: None,
    ) -> None:
        """`split`: makes what tells the parts of a choice's text. `tokens_as_ids`: log-probabilities name tokens by id.
        `prompt_scores`: choices of a whole answer have those of their prompt, with so many alternatives. `arrived` is
        told of each output: the number of its prompt, and its tokens."""
        self.serving = serving
        self.reply = reply
        self.params = params
        self.split = split
        self.vocabulary = serving.vocabulary.showing(params.shown_token_ids)
        self.tokens_as_ids = tokens_as_ids
        self._prompt_scores = prompt_scores
        self._arrived = arrived
        self.arrived_tokens = 0
        """Of all sequences, told or not: those that are not among the best too."""
        self.usage = Usage(prompt=sum(map(len, prompts)))
        self._prompts = {f"{reply.reply_id}-{i}": i for i in range(len(prompts))}
        self._growing = [
            _Growing(self, i * params.n + child, prompt, echo=echo)
            for i, prompt in enumerate(prompts)
            for child in range(params.n)
        ]
        self._prompt_samples: dict[int, tuple[TokenSample | None, ...]] = {}
        self._cached: dict[int, int] = {}
        self._early: dict[int, list[SequenceOutput]] = {}

    @property
    def request_ids(self) -> list[str]:
        """The engine's request of each prompt, in order."""
        return list(self._prompts)

    @property
    def choices(self) -> list[Choice]:
        """All that has been said, in order."""
        return [growing.choice for growing in self._growing]

    def note_arrival(self, output: SequenceOutput) -> None:
        """It has come, whether it is shown or not."""
        self.arrived_tokens += len(output.samples)
        self._arrived(self._prompts[output.request_id], len(output.samples))
        if not self.usage.first_output_s:
            self.usage.first_output_s = time.monotonic()

    def chunks(self, output: SequenceOutput) -> bytes:
        """`output` as a piece of the stream; b"" while nothing can be shown."""
        parts: list[bytes] = []
        for growing, ready in self._in_order(output):
            pieces = growing.push(ready, self._scores(growing))
            choice, reply = growing.choice, self.reply
            if not growing.begun:
                growing.begun = True
                parts.append(reply.begin(choice, self.usage))
            if not pieces:
                ended = ready.finish_reason is not None
                if growing.has_logprobs if ended else reply.tells_tokens and ready.samples:
                    pieces = (_NOTHING,)
            for place, piece in enumerate(pieces):
                parts.append(reply.delta(choice, piece, None if place else growing.take_logprobs()))
            if ready.finish_reason is not None:
                parts.append(reply.finish(choice))
        return b"".join(parts)

    def closing(self) -> bytes:
        """The end of the stream."""
        return self.reply.closing(self.usage)

    def whole(self, outputs: Sequence[SequenceOutput]) -> bytes:
        """All outputs as one answer."""
        for given in outputs:
            for growing, output in self._in_order(given):
                growing.push(output, self._scores(growing))
        for growing in self._growing:
            choice = growing.choice
            choice.logprobs = growing.take_logprobs()
            if self._prompt_scores is not None:
                scores, vocabulary = self._scores(growing), self.serving.vocabulary
                choice.prompt_logprobs = prompt_logprobs(scores, vocabulary, self._prompt_scores)
        return self.reply.whole(self.choices, self.usage)

    def failure(self, output: SequenceOutput) -> OctavoError | None:
        """The error that `output` stands for."""
        return failure_of(output, self.serving)

    def _scores(self, growing: _Growing) -> Sequence[TokenSample | None]:
        return self._prompt_samples.get(growing.choice.index // self.params.n, ())

    def _in_order(self, output: SequenceOutput) -> Iterator[tuple[_Growing, SequenceOutput]]:
        """Count `output`, and give back what can be shown now: an echoed prompt's scores come with child 0, and
        what other children say before that has to wait for them."""
        place = self._prompts[output.request_id]
        self.usage.completion += len(output.samples)
        self.usage.accepted += output.accepted_tokens
        self.usage.rejected += output.rejected_tokens
        if output.cached_tokens > self._cached.get(place, 0):
            self.usage.cached += output.cached_tokens - self._cached.get(place, 0)
            self._cached[place] = output.cached_tokens
        ready = [output]
        if self.params.prompt_logprobs is not None and place not in self._prompt_samples:
            if not output.prompt_samples:
                self._early.setdefault(place, []).append(output)
                return
            self._prompt_samples[place] = output.prompt_samples
            ready += self._early.pop(place, [])
        for one in ready:
            yield self._growing[place * self.params.n + one.child], one


def _reason(output: SequenceOutput, choice: Choice) -> Literal["stop", "length", "tool_calls"]:
    if output.finish_reason == "length":
        return "length"
    return "tool_calls" if choice.has("call") and not choice.cut_off else "stop"


def failure_of(output: SequenceOutput, serving: Serving) -> OctavoError | None:
    """The error that `output` stands for, the client's or ours: "error", and "abort", which is no finish reason of
    OpenAI's (clients that check would trip over it, the others take the piece for the whole)."""
    if output.finish_reason == "abort":
        return Overloaded(
            "The server is shutting down and could not finish this answer; ask another server.", 5
        )
    if output.finish_reason != "error":
        return None
    message = output.error or "The engine could not finish this request."
    if output.refused:
        return ClientError(message)
    return EngineDied(message) if serving.client.dead else ServerError(message)
