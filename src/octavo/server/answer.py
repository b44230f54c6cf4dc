"""One request's choices: outputs of the engine in, text and log-probabilities out. Knows no HTTP."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from octavo.backends.base import TokenSample
from octavo.errors import EngineDied, Overloaded, ServerError
from octavo.protocol.logprobs import TextOffsets, chat_logprobs, completion_logprobs
from octavo.protocol.openai_reply import Choice, ReplyHead, Usage
from octavo.sampling.params import SamplingParams
from octavo.scheduling.outputs import SequenceOutput
from octavo.server.serving import Serving
from octavo.text.stream import TextStream

__all__ = ["Answer"]


class _Choice:
    """The text of one sequence, and what is not shown of it yet."""

    def __init__(self, answer: Answer, index: int, echo: Sequence[int]) -> None:
        serving, params = answer.serving, answer.params
        drop = bool(echo) and serving.tokenizer.drops_leading_space
        self.index = index
        self.begun = False
        self._answer = answer
        self._echo = echo
        self._text = TextStream(serving.vocabulary, params.skip_special_tokens, drop_leading_space=drop)
        self._offsets = TextOffsets(drop_leading_space=drop)
        self._samples: list[TokenSample | None] = []
        self._tokens: list[int] = []
        self._places: list[int] = []

    def push(self, output: SequenceOutput, prompt_samples: Sequence[TokenSample | None]) -> str:
        """The text that `output` lets be shown; before the first, the echoed prompt."""
        text = ""
        if self._echo:
            text = self._text.push(self._echo)
            self._note(self._echo, prompt_samples)
            self._echo = ()
        tokens = [sample.token for sample in output.samples]
        self._note(tokens, output.samples)
        if output.finish_reason is None:
            return text + self._text.push(tokens, output.held_bytes)
        return (
            text
            + self._text.push(tokens, max(output.held_bytes, output.cut_bytes))
            + self._text.finish(output.cut_bytes)
        )

    def take_logprobs(self) -> dict[str, Any] | None:
        """Of the tokens since the last call; None when none are wanted."""
        answer, vocabulary = self._answer, self._answer.serving.vocabulary
        if answer.params.logprobs is None:
            return None
        samples, tokens, places = self._samples, self._tokens, self._places
        self._samples, self._tokens, self._places = [], [], []
        if answer.head.chat:
            return chat_logprobs([sample for sample in samples if sample is not None], vocabulary)
        return completion_logprobs(samples, tokens, places, vocabulary)

    @property
    def has_logprobs(self) -> bool:
        """There are tokens whose log-probabilities were not taken."""
        return bool(self._tokens)

    def _note(self, tokens: Sequence[int], samples: Sequence[TokenSample | None]) -> None:
        params, vocabulary = self._answer.params, self._answer.serving.vocabulary
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
        head: ReplyHead,
        params: SamplingParams,
        prompts: Sequence[Sequence[int]],
        *,
        echo: bool = False,
    ) -> None:
        self.serving = serving
        self.head = head
        self.params = params
        self.usage = Usage(prompt=sum(map(len, prompts)))
        self._prompts = {f"{head.reply_id}-{i}": i for i in range(len(prompts))}
        self._choices = [
            _Choice(self, i * params.n + child, prompt if echo else ())
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

    def chunks(self, output: SequenceOutput) -> bytes:
        """`output` as the chunks of a stream; b"" while nothing can be shown."""
        parts: list[bytes] = []
        for choice, ready in self._in_order(output):
            text = choice.push(ready, self._scores(choice))
            if self.head.chat and not choice.begun:
                parts.append(self.head.role(choice.index))
            choice.begun = True
            if text or (ready.finish_reason is not None and choice.has_logprobs):
                parts.append(self.head.delta(choice.index, text, choice.take_logprobs()))
            if ready.finish_reason is not None:
                parts.append(self.head.finish(choice.index, ready.finish_reason, ready.stop_reason))
        return b"".join(parts)

    def closing(self) -> bytes:
        """The usage chunk."""
        return self.head.usage(self.usage)

    def whole(self, outputs: Sequence[SequenceOutput]) -> bytes:
        """All outputs as one answer."""
        texts = [""] * len(self._choices)
        finished: dict[int, Choice] = {}
        for given in outputs:
            for choice, output in self._in_order(given):
                texts[choice.index] += choice.push(output, self._scores(choice))
                if output.finish_reason is not None:
                    finished[choice.index] = Choice(
                        choice.index,
                        texts[choice.index],
                        output.finish_reason,
                        output.stop_reason,
                        choice.take_logprobs(),
                    )
        return self.head.whole([finished[index] for index in sorted(finished)], self.usage)

    def failure(self, output: SequenceOutput) -> ServerError | None:
        """The error that `output` stands for: "error", and "abort", which is no finish reason of OpenAI's (clients
        that check would trip over it, the others take the piece for the whole)."""
        if output.finish_reason == "abort":
            return Overloaded(
                "The server is shutting down and could not finish this answer; ask another one.", 5
            )
        if output.finish_reason != "error":
            return None
        message = output.error or "The engine could not finish this request."
        return EngineDied(message) if self.serving.client.dead else ServerError(message)

    def _scores(self, choice: _Choice) -> Sequence[TokenSample | None]:
        return self._prompt_samples.get(choice.index // self.params.n, ())

    def _in_order(self, output: SequenceOutput) -> Iterator[tuple[_Choice, SequenceOutput]]:
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
            yield self._choices[place * self.params.n + one.child], one
