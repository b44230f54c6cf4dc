"""An engine process that says what a script tells it: the real scheduler, stops and wire, and no model.

    python -m tests.server.scripted_engine --script FILE --fd N --parent P

FILE is a `Script` as JSON, read when a request comes. Its outputs leave in the script's groups, so that a test decides
where a stream is cut. The vocabulary is that of the configured model.
"""

from __future__ import annotations

import argparse
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, cycle
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from octavo.backends.base import ChoiceRule, Handle, Limits, Plan, SampleRow, Samples, TokenSample
from octavo.config import EngineConfig
from octavo.engine.engine import Engine
from octavo.engine.messages import Add, Outputs
from octavo.engine.process import bind_to_parent, run
from octavo.models.spec import ModelSpec
from octavo.models.store import StoredModel
from octavo.scheduling.outputs import SequenceOutput, joined
from octavo.scheduling.scheduler import Scheduler, SchedulerConfig
from octavo.text.vocabulary import Vocabulary
from octavo.timing.clock import WallClock
from tests.fakes import scripted_info

LIMITS = Limits(num_blocks=1024, block_size=16, max_slots=16, max_step_tokens=2048, max_model_len=4096)


class Script(msgspec.Struct):
    """What the sequences of the next requests say."""

    tokens: list[list[int]]
    """Of each child, without the end token that follows."""
    groups: list[list[int]] = msgspec.field(default_factory=lambda: [[1]])
    """Of each child: how many tokens come in one output, again from the front when the list is used up."""
    shortest: bool = False
    """Under a grammar, which may forbid a token and allow its bytes, a sequence says the script's bytes in the longest
    tokens that are allowed, or in the shortest."""
    pause_s: float = 0.0
    """Between two outputs. Without, what the server has not taken yet it takes as one."""

    def write(self, path: Path) -> None:
        """So that no reader meets half of it."""
        path.with_suffix(".new").write_bytes(msgspec.json.encode(self))
        path.with_suffix(".new").rename(path)


class ScriptedBackend:
    """Chooses the script's token for the place of an output; a log-probability is made of place and token."""

    name = "scripted"
    invariant = True
    arithmetic_id = "scripted"

    def __init__(self, spec: ModelSpec, vocabulary: Vocabulary) -> None:
        self.spec, self.limits = spec, LIMITS
        self.scripts: dict[int, tuple[list[int], bool]] = {}
        """By the seed of a sequence: its tokens, and `Script.shortest`."""
        self._vocabulary = vocabulary
        ordinary = (token for token in range(vocabulary.size) if token not in vocabulary.special)
        self._of_bytes = {vocabulary.pieces[token]: token for token in ordinary}
        self._longest = max(map(len, self._of_bytes))
        self._said: dict[int, bytes] = {}
        """By slot: of sequences with a grammar."""
        self._rules: dict[int, ChoiceRule] = {}
        self._samples: Samples = ()

    def launch(self, plan: Plan) -> Handle:
        self._rules.update((opened.slot, opened.rule) for opened in plan.opens)
        return plan

    def sample(self, handle: Handle, masks: Sequence[NDArray[np.int32] | None] | None = None) -> None:
        assert isinstance(handle, Plan)
        marks = masks or (None,) * len(handle.samples)
        self._samples = tuple(map(partial(self._sample, handle), handle.samples, marks))

    def collect(self, handle: Handle) -> Samples:
        return self._samples

    def read_block(self, group: int, block: int) -> bytes:
        return b""

    def write_block(self, group: int, block: int, data: bytes) -> None:
        pass

    def close(self) -> None:
        pass

    def _sample(self, plan: Plan, wanted: SampleRow, mask: NDArray[np.int32] | None) -> TokenSample:
        rule = self._rules[wanted.slot]
        place = plan.rows[wanted.row].start + wanted.offset + 1
        token, top = wanted.target, wanted.top
        if token < 0:
            script, _ = self.scripts[rule.seed]
            output = place - rule.prompt_tokens
            if output == 0:
                self._said[wanted.slot] = b""
            token, top = script[output] if output < len(script) else self.spec.eos_ids[0], rule.logprobs
            if mask is not None:
                token = self._allowed(wanted.slot, mask)
        if top < 0:
            return TokenSample(token)
        others = [(place * 7919 + token * 31 + i * 104729) % self.spec.vocab_size for i in range(top)]
        return TokenSample(token, -place / 64, tuple((other, -i / 8) for i, other in enumerate(others)))

    def _allowed(self, slot: int, mask: NDArray[np.int32]) -> int:
        """The next token under a grammar; −1, which ends the request with an error, where it forbids the script."""
        script, shortest = self.scripts[self._rules[slot].seed]
        rest = self._vocabulary.join(script)[len(self._said[slot]) :]
        lengths = range(1, min(self._longest, len(rest)) + 1)
        pieces = [rest[:length] for length in (lengths if shortest else reversed(lengths))]
        tokens = [self._of_bytes[piece] for piece in pieces if piece in self._of_bytes]
        for token in tokens if rest else self.spec.eos_ids:
            if mask[token // 32] >> (token % 32) & 1:
                self._said[slot] += self._vocabulary.bytes_of(token, skip_special=True)
                return token
        return -1


class ScriptedEngine:
    """`Engine`, whose outputs are gathered until the script lets them go."""

    def __init__(self, config: EngineConfig, script: Path) -> None:
        self.watched = False
        model = StoredModel.load(Path(config.model_dir))
        vocabulary = model.vocabulary()
        self._backend = ScriptedBackend(model.spec, vocabulary)
        scheduler = Scheduler(SchedulerConfig(LIMITS, 1, model.spec.eos_ids, prefix_cache=False), vocabulary)
        self.info = scripted_info(scheduler)
        self._engine = Engine(scheduler, self._backend, self.info, clock=WallClock())
        self._file = script
        self._script = Script([])
        self._held: dict[tuple[str, int], list[SequenceOutput]] = {}
        self._groups: dict[tuple[str, int], Iterator[int]] = {}

    @property
    def idle(self) -> bool:
        return self._engine.idle and not self._held

    def add(self, request: Add) -> None:
        self._script = script = msgspec.json.decode(self._file.read_bytes(), type=Script)
        assert request.params.seed is not None
        for child in range(request.params.n):
            tokens = script.tokens[child % len(script.tokens)]
            self._backend.scripts[(request.params.seed + child) % 2**64] = (tokens, script.shortest)
            groups = script.groups[child % len(script.groups)]
            self._groups[request.request_id, child] = cycle(groups)
        self._engine.add(request)

    def refuse(self, request_id: str, error: str) -> None:
        self._engine.refuse(request_id, error)

    def abort(self, request_id: str) -> None:
        for key in [key for key in self._held if key[0] == request_id]:
            del self._held[key]
        self._engine.abort(request_id)

    def step(self) -> Outputs:
        """Engine steps until something may leave."""
        ready: list[SequenceOutput] = []
        while True:
            outputs = self._engine.step()
            for output in outputs.items:
                ready += self._gather(output)
            if ready or self._engine.idle:
                time.sleep(self._script.pause_s)
                return Outputs(tuple(ready), outputs.stats, outputs.report)

    def close(self) -> None:
        self._engine.close()

    def _gather(self, output: SequenceOutput) -> list[SequenceOutput]:
        key = (output.request_id, output.child)
        held = self._held[key] = joined([*self._held.pop(key, []), output])
        groups = self._groups[key]
        size = next(groups)
        if output.finish_reason is None and len(held[0].samples) < size:
            self._groups[key] = chain([size], groups)
            return []
        return self._held.pop(key)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--script", type=Path, required=True)
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--heartbeat", type=int)  # left still: no step of this one can hang
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    bind_to_parent(arguments.parent)
    with socket.socket(fileno=arguments.fd) as parent:
        return run(parent, lambda config: ScriptedEngine(config, arguments.script))


if __name__ == "__main__":
    sys.exit(main())
