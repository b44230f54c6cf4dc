"""An engine process whose tokens are a hash of (prompt, seed, place): what the client is tested against.

Run as `python fake_engine.py --fd N --parent P`. `model_dir` chooses a fault; knows no model.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import socket
import sys
import time
from pathlib import Path

import msgspec

from octavo.backends.base import TokenSample
from octavo.config import EngineConfig
from octavo.engine.heartbeat import Heartbeat
from octavo.engine.messages import Add, EngineInfo, Outputs, Stats
from octavo.engine.process import bind_to_parent, run
from octavo.errors import ModelError
from octavo.scheduling.admission import Capacity
from octavo.scheduling.outputs import FinishReason, SequenceOutput

VOCABULARY = 287
"""As large as the tiny model's (tests/models/tiny.py)."""
CONTEXT = 512
CRASH = 13
"""A prompt that begins with this token makes the step raise."""
ABORT = 17
"""… makes the process end by a signal of its own, after so many tokens of the request as its last token says."""
SUICIDE = 18
"""… the same, by a signal that others send."""
HANG = 19
"""… makes the step sleep without end, while the request has no token yet."""
_SIGNALS = {ABORT: signal.SIGSEGV, SUICIDE: signal.SIGKILL}


def expected_token(prompt: tuple[int, ...], seed: int, place: int) -> int:
    """The token at `place` of the output; never one of the three control tokens."""
    digest = hashlib.sha256(repr((prompt, seed, place)).encode()).digest()
    return 3 + int.from_bytes(digest[:4], "little") % (VOCABULARY - 3)


class _Running:
    def __init__(self, request: Add) -> None:
        self.request = request
        self.outputs = [list(o) for o in request.outputs] or [[] for _ in range(request.params.n)]
        self.open = [c for c in range(request.params.n) if c not in request.finished]

    def step(self) -> list[SequenceOutput]:
        request, outputs = self.request, list[SequenceOutput]()
        for child in list(self.open):
            done = self.outputs[child]
            samples: tuple[TokenSample, ...] = ()
            if request.params.max_tokens != 0:
                token = expected_token(request.prompt, (request.params.seed or 0) + child, len(done))
                done.append(token)
                samples = (TokenSample(token),)
            most = request.params.max_tokens  # None: without end, which the tests of aborts want
            finished = most is not None and len(done) >= min(most, CONTEXT - len(request.prompt))
            if finished:
                self.open.remove(child)
            reason: FinishReason | None = "length" if finished else None
            outputs.append(SequenceOutput(request.request_id, child, samples, finish_reason=reason))
        return outputs


class FakeEngine:
    """Every open request advances by one token a step; a step takes `max_step_tokens` µs."""

    def __init__(self, config: EngineConfig, heartbeat: Heartbeat) -> None:
        self.watched = False
        self.heartbeat = heartbeat
        self.step_s = config.max_step_tokens * 1e-6
        self.running: dict[str, _Running] = {}
        self.changed = False
        self.stats = Stats(0, 0, config.num_blocks or 64, 0, 0, 0.0, 0, 0, 0, 0, 0, 0)
        self.info = EngineInfo(
            model="fake",
            backend="fake",
            invariant=True,
            arithmetic_id="fake",
            capacity=Capacity(VOCABULARY, max_model_len=CONTEXT, max_running=64, kv_tokens=64 * 16),
            num_blocks=64,
            block_size=16,
            block_bytes=1,
            max_step_tokens=config.max_step_tokens,
            kv_dtype="bf16",
            threads=1,
            pid=os.getpid(),
        )

    @property
    def idle(self) -> bool:
        return not self.running and not self.changed

    def add(self, request: Add) -> None:
        self.running[request.request_id] = _Running(request)

    def refuse(self, request_id: str, error: str) -> None:
        raise AssertionError(error)

    def abort(self, request_id: str) -> None:
        self.running.pop(request_id, None)
        self.changed = True

    def step(self) -> Outputs:
        self.heartbeat.begin()
        self.heartbeat.planned(self.running, self.step_s)
        time.sleep(self.step_s)
        self.changed = False
        items: list[SequenceOutput] = []
        for name, running in list(self.running.items()):
            if running.request.prompt[0] == CRASH:
                raise RuntimeError("a crash in a step")
            if (
                len(running.outputs[0]) == running.request.prompt[-1]
                and running.request.prompt[0] in _SIGNALS
            ):
                os.kill(os.getpid(), _SIGNALS[running.request.prompt[0]])
            if running.request.prompt[0] == HANG and not running.request.outputs:
                time.sleep(3600)
            items += running.step()
            if not running.open:
                del self.running[name]
        self.stats = msgspec.structs.replace(
            self.stats,
            running=len(self.running),
            blocks_used=len(self.running),
            steps=self.stats.steps + 1,
            step_tokens=len(items),
        )
        self.heartbeat.done()
        return Outputs(tuple(items), self.stats)

    def close(self) -> None:
        self.running.clear()


def build(config: EngineConfig, heartbeat: Heartbeat) -> FakeEngine:
    match config.model_dir:
        case "/missing":
            raise ModelError("The model /missing cannot be found; check the path.")
        case "/broken":
            raise ZeroDivisionError("broken")
        case "/gone":
            os._exit(3)
    if config.model_dir.startswith("/once"):
        started = Path(config.model_dir.removeprefix("/once"))
        if started.exists():
            os._exit(3)
        started.touch()
    return FakeEngine(config, heartbeat)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int)
    parser.add_argument("--heartbeat", type=int)
    parser.add_argument("--parent", type=int)
    arguments = parser.parse_args()
    bind_to_parent(arguments.parent)
    with socket.socket(fileno=arguments.fd) as parent:
        sys.exit(run(parent, lambda config: build(config, Heartbeat(arguments.heartbeat))))
