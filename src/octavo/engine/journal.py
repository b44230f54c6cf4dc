"""What must survive the engine process: each open request and the tokens delivered. Knows no transport.

A request's continuation is a function of (prompt, parameters, seed, output so far), so this record is
all that a new engine, or another replica, needs to go on bit-identically.
"""

from __future__ import annotations

import secrets

import msgspec

from octavo.config import Pooling
from octavo.engine.messages import Add
from octavo.engine.wire import WireError
from octavo.sampling.params import SamplingParams
from octavo.scheduling.admission import Capacity
from octavo.scheduling.inputs import ORDINARY, Service
from octavo.scheduling.outputs import SequenceOutput

__all__ = ["Record", "with_seed"]


def with_seed(params: SamplingParams) -> SamplingParams:
    """`params` with a seed: the client's, or a random one of 63 bits, so that a restart can repeat it."""
    return params if params.seed is not None else msgspec.structs.replace(params, seed=secrets.randbits(63))


class Record:
    """One open request. `note` takes in what the engine said; `message` is what a new engine must be told."""

    def __init__(
        self,
        request_id: str,
        prompt: tuple[int, ...],
        params: SamplingParams,
        arrival_s: float,
        cache_salt: str = "",
        service: Service = ORDINARY,
        pooling: Pooling | None = None,
    ) -> None:
        self.request_id = request_id
        self.prompt = prompt
        self.asked = params
        """As the client gave them."""
        self.params = with_seed(params)
        self.arrival_s = arrival_s
        self.cache_salt = cache_salt
        self.service = service
        self.pooling = pooling
        self._outputs: list[list[int]] = [[] for _ in range(params.n)]
        self._finished: set[int] = set()
        self._prompt_scored = False

    @property
    def done(self) -> bool:
        """Every child has finished."""
        return len(self._finished) == self.params.n

    @property
    def delivered(self) -> int:
        """Tokens that its reader was given."""
        return sum(map(len, self._outputs))

    def output(self, child: int) -> tuple[int, ...]:
        """Of these, a child's tokens."""
        return tuple(self._outputs[child])

    @property
    def unfinished(self) -> tuple[int, ...]:
        """The children that still run, ascending."""
        return tuple(child for child in range(self.params.n) if child not in self._finished)

    def check(self, output: SequenceOutput, capacity: Capacity) -> None:
        """Raise WireError for an output that no engine of ours sends: it would come to a reader as an answer."""
        if output.finish_reason == "error":
            return
        child, samples, scored = output.child, output.samples, output.prompt_samples
        if not 0 <= child < self.params.n or child in self._finished:
            raise WireError(f"{self.request_id!r} has no answer {child} that goes on.")
        if len(self.prompt) + len(self._outputs[child]) + len(samples) > capacity.max_model_len:
            raise WireError(f"Answer {child} of {self.request_id!r} is longer than a sequence can be.")
        if min(output.held_bytes, output.cut_bytes, output.cached_tokens) < 0:
            raise WireError(f"An output for {self.request_id!r} has negative counts.")
        if len(scored) not in (0, len(self.prompt)) or None in scored[1:]:
            raise WireError(
                f"{len(scored)} scores came for the {len(self.prompt)} tokens of {self.request_id!r}."
            )
        for sample in (*samples, *scored[1:]):
            assert sample is not None
            named = (sample.token, *(token for token, _ in sample.top)) if sample.top else (sample.token,)
            if min(named) < 0 or max(named) >= capacity.vocab_size:
                raise WireError(f"A token of {self.request_id!r} is outside the vocabulary.")

    @property
    def resume_rank(self) -> tuple[bool, int]:
        """When an engine that knows nothing goes on with it, if the lower one is first: whether it is new, and else how
        many tokens have to be computed again."""
        if not self.delivered:
            return True, 0
        return False, len(self.prompt) + sum(len(self._outputs[child]) for child in self.unfinished)

    def note(self, output: SequenceOutput) -> SequenceOutput:
        """Record `output` and give back what of it is new to the reader."""
        self._outputs[output.child].extend(sample.token for sample in output.samples)
        if output.finish_reason is not None:
            self._finished.add(output.child)
        if output.prompt_samples:
            if self._prompt_scored:  # a restarted engine scores the prompt again
                return msgspec.structs.replace(output, prompt_samples=())
            self._prompt_scored = True
        return output

    def message(self) -> Add:
        """The request as an engine must be given it now: new, or to go on with."""
        started = self._finished or any(self._outputs)
        return Add(
            request_id=self.request_id,
            prompt=self.prompt,
            params=self.params,
            arrival_s=self.arrival_s,
            outputs=tuple(map(tuple, self._outputs)) if started else (),
            finished=tuple(sorted(self._finished)),
            cache_salt=self.cache_salt,
            service=self.service,
            pooling=self.pooling,
        )
