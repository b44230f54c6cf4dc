"""Requests that try more answers than they give: `best_of`, and the beams of a beam search. Knows tokens, no memory.

Nothing is told before all attempts have ended; then the best n are, each at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from octavo.backends.base import TokenSample
from octavo.sampling.beam import BeamSearch, Step
from octavo.scheduling.ends import End, take_prompt_samples
from octavo.scheduling.outputs import SequenceOutput
from octavo.scheduling.sequence import Request, Sequence

__all__ = ["Beams", "Contest"]


class _Attempt(NamedTuple):
    score: float
    samples: tuple[TokenSample, ...]
    end: End


class Contest:
    """The attempts of one request with `best_of`: scored by the mean log-probability of their tokens."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._samples: dict[Sequence, tuple[TokenSample, ...]] = {}
        self._attempts: list[_Attempt] = []
        self._cached_tokens = 0
        self._failed: End | None = None

    def note(self, sequence: Sequence, sample: TokenSample) -> None:
        """A token of one attempt."""
        self._samples[sequence] = (*self._samples.get(sequence, ()), sample)

    def ended(self, sequence: Sequence, end: End) -> None:
        """One attempt has ended. If not by itself, then the whole request has not."""
        if end.reason in ("abort", "error"):
            self._failed = self._failed or end
        samples = self._samples.pop(sequence, ())
        self._cached_tokens = max(self._cached_tokens, sequence.cached_tokens)
        mean = sum(sample.logprob or 0.0 for sample in samples) / max(len(samples), 1)
        self._attempts.append(_Attempt(mean, samples, end))

    def best(self) -> list[SequenceOutput]:
        """What the request is told: the best n, the best first; among equals the earlier. n times the same, if it was
        aborted or failed."""
        if self._failed is not None:
            return [
                SequenceOutput(
                    self._request.id, child, finish_reason=self._failed.reason, error=self._failed.error
                )
                for child in range(self._request.params.n)
            ]
        ranked = sorted(self._attempts, key=lambda attempt: -attempt.score)
        return [
            SequenceOutput(
                self._request.id,
                child,
                tuple(map(self._shown, attempt.samples)),
                finish_reason=attempt.end.reason,
                stop_reason=attempt.end.stop_reason,
                cut_bytes=attempt.end.cut_bytes,
                prompt_samples=take_prompt_samples(self._request),
                cached_tokens=self._cached_tokens,
            )
            for child, attempt in enumerate(ranked[: self._request.params.n])
        ]

    def _shown(self, sample: TokenSample) -> TokenSample:
        """As much of a sample as was asked for: the ranking needed more."""
        wanted = self._request.params.logprobs
        if wanted is None:
            return TokenSample(sample.token)
        return msgspec.structs.replace(sample, top=sample.top[:wanted])


class Beams(Contest):
    """A beam search. Each living beam is a sequence; when all have their candidates, the next generation is chosen."""

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        params = request.params
        self.search: BeamSearch[End] = BeamSearch(
            params.beam_width,
            length_penalty=params.length_penalty,
            early_stopping=params.early_stopping,
            max_tokens=request.max_output,
        )
        self.living: list[Sequence] = []
        """In the order of the search."""
        self._candidates: dict[Sequence, TokenSample] = {}
        self._next: list[tuple[TokenSample, ...]] = [()]
        """Of the generation that `expand` gave."""

    def offer(self, sequence: Sequence, sample: TokenSample) -> bool:
        """The candidates of one beam; True when those of all are there."""
        self._candidates[sequence] = sample
        return len(self._candidates) == len(self.living)

    def withdraw(self, sequence: Sequence) -> None:
        """Its candidates will be computed again."""
        self._candidates.pop(sequence, None)

    def expand(self, ending: Callable[[Sequence, int], End | None]) -> list[tuple[Sequence, Step]]:
        """The next generation, as (parent, step), the best first; none when the search is over. Then what still lived
        has been dropped: nothing of it could win."""
        parents = self.living
        self._cached_tokens = max(self._cached_tokens, *(parent.cached_tokens for parent in parents))
        samples = [self._candidates[parent] for parent in parents]
        self._candidates.clear()
        living, complete = self.search.expand(
            [sample.top for sample in samples], lambda beam, token: ending(parents[beam], token)
        )
        for one in complete:
            told = self._samples.get(parents[one.step.parent], ())
            sample = _chosen(samples[one.step.parent], one.step)
            self._attempts.append(_Attempt(one.score, (*told, sample), one.end))
        before = dict(self._samples)
        self._samples = {}
        self._next = [
            (*before.get(parents[step.parent], ()), _chosen(samples[step.parent], step)) for step in living
        ]
        return [(parents[step.parent], step) for step in living]

    def live(self, sequences: list[Sequence]) -> None:
        """The sequences of the generation that `expand` gave, in its order."""
        self.living = sequences
        self._samples = dict(zip(sequences, self._next, strict=True))


def _chosen(candidates: TokenSample, step: Step) -> TokenSample:
    return TokenSample(step.token, step.logprob, candidates.top)
