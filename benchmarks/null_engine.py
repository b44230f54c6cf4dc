"""An engine process without a model: one token of every open sequence a step, at a set pace.

    python -m benchmarks.null_engine --rate STEPS_PER_S [--prompt-rate TOKENS_PER_S] --cpu NUMBER --fd N --parent P

The tokens are ordinary ones of the served model's vocabulary, in an order that repeats. A prompt takes no time, or what
--prompt-rate says, each for itself. What a server costs over it is the server's own.
"""

from __future__ import annotations

import argparse
import os
import random
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from octavo.backends.base import TokenSample
from octavo.config import EngineConfig
from octavo.engine.messages import Add, EngineInfo, Outputs, Stats
from octavo.engine.process import bind_to_parent, run
from octavo.models.store import StoredModel
from octavo.scheduling.admission import Capacity
from octavo.scheduling.outputs import FinishReason, SequenceOutput

CONTEXT = 8192
DIFFERENT = 4096
"""Tokens before they repeat."""


@dataclass
class _Sequence:
    """One that runs: where among the tokens it began, how many are to come, and of how many it wants probabilities."""

    place: int
    left: int
    logprobs: int | None
    begins_s: float
    """When its prompt is through."""


class NullEngine:
    """Every sequence runs at once. Of the parameters, `n`, `max_tokens` (default 16) and `logprobs` mean something."""

    def __init__(
        self, config: EngineConfig, steps_per_s: float, prompt_tokens_per_s: float | None = None
    ) -> None:
        self.watched = False
        vocabulary = StoredModel.load(Path(config.model_dir)).vocabulary()
        ordinary = [token for token in range(vocabulary.size) if token not in vocabulary.special]
        self._tokens = random.Random(0).choices(ordinary, k=DIFFERENT)
        self._step_s = 1 / steps_per_s
        self._prompt_token_s = 1 / prompt_tokens_per_s if prompt_tokens_per_s else 0.0
        self._due_s = 0.0
        self._steps = self._generated = 0
        self._open: dict[tuple[str, int], _Sequence] = {}
        self.info = EngineInfo(
            model="null",
            backend="null",
            invariant=True,
            arithmetic_id="null",
            capacity=Capacity(vocabulary.size, CONTEXT, max_running=4096, kv_tokens=4096 * CONTEXT),
            num_blocks=1,
            block_size=16,
            block_bytes=0,
            max_step_tokens=4096,
            kv_dtype="bf16",
            threads=1,
            pid=os.getpid(),
        )

    @property
    def idle(self) -> bool:
        return not self._open

    def add(self, request: Add) -> None:
        params = request.params
        for child in range(params.n):
            place = len(self._open) + self._steps
            begins_s = time.monotonic() + self._prompt_token_s * len(request.prompt)
            self._open[request.request_id, child] = _Sequence(
                place, params.max_tokens or 16, params.logprobs, begins_s
            )

    def refuse(self, request_id: str, error: str) -> None:
        raise ValueError(error)

    def abort(self, request_id: str) -> None:
        for key in [key for key in self._open if key[0] == request_id]:
            del self._open[key]

    def step(self) -> Outputs:
        self._wait()
        items = []
        now_s = time.monotonic()
        for (request_id, child), sequence in list(self._open.items()):
            if sequence.begins_s > now_s:
                continue
            sample = self._sample(sequence)
            sequence.left -= 1
            if not sequence.left:
                del self._open[request_id, child]
            reason: FinishReason | None = None if sequence.left else "length"
            items.append(SequenceOutput(request_id, child, (sample,), finish_reason=reason))
        self._steps += 1
        self._generated += len(items)
        running, count, tokens = len(self._open), len(items), self._generated
        stats = Stats(running, 0, 1, 0, self._steps, self._step_s, count, 0, 0, tokens, 0, 0)
        return Outputs(tuple(items), stats)

    def close(self) -> None:
        self._open.clear()

    def _sample(self, sequence: _Sequence) -> TokenSample:
        place = sequence.place + sequence.left
        token = self._tokens[place % DIFFERENT]
        if sequence.logprobs is None:
            return TokenSample(token)
        others = [self._tokens[(place + i) % DIFFERENT] for i in range(sequence.logprobs)]
        return TokenSample(token, -0.5, tuple((other, -0.5 - i) for i, other in enumerate(others)))

    def _wait(self) -> None:
        """Until the step's time; time that was lost is not made up for."""
        now = time.monotonic()
        self._due_s = max(self._due_s + self._step_s, now - self._step_s)
        if self._due_s > now:
            time.sleep(self._due_s - now)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rate", type=float, required=True, help="steps a second")
    parser.add_argument("--prompt-rate", type=float, help="tokens of each prompt a second")
    parser.add_argument("--cpu", type=int, help="the core to run on")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--heartbeat", type=int)  # left still: no step of this one can hang
    arguments = parser.parse_args()
    bind_to_parent(arguments.parent)
    if arguments.cpu is not None:
        os.sched_setaffinity(0, {arguments.cpu})
    with socket.socket(fileno=arguments.fd) as parent:
        return run(parent, lambda config: NullEngine(config, arguments.rate, arguments.prompt_rate))


if __name__ == "__main__":
    sys.exit(main())
