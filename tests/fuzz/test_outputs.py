"""Mutated outputs of an engine to its client: they are an answer, or the engine is replaced; no reader waits for ever.

The client is the real one; its processes are played by this test, so that hundreds of them can be lost in seconds.
OCTAVO_FUZZ_SEED, OCTAVO_FUZZ_COUNT and OCTAVO_FUZZ_CASE as in test_bodies.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from octavo.backends.base import TokenSample
from octavo.config import EngineConfig
from octavo.engine import child as child_module
from octavo.engine import patience
from octavo.engine.child import Children, Death
from octavo.engine.client import EngineClient
from octavo.engine.heartbeat import Heartbeat
from octavo.engine.messages import EngineInfo, Outputs, Ready, Stats
from octavo.engine.stream import Stream
from octavo.engine.wire import frame
from octavo.sampling.params import SamplingParams
from octavo.scheduling.admission import Capacity
from octavo.scheduling.outputs import SequenceOutput
from octavo.telemetry.metrics import Metrics
from tests.fuzz import mutator
from tests.fuzz.messages import framed, mutated_message, outputs_of
from tests.fuzz.mutator import chosen, generator

PROMPT = (70, 71, 72)
CAPACITY = Capacity(287, 512, 16, 8192)
STATS = Stats(1, 0, 64, 3, 5, 0.01, 2, 0, 3, 4, 0, 0)
INFO = EngineInfo("m", "fake", True, "fake", CAPACITY, 64, 16, 1, 512, "bf16", 1, 1)


class PlayedChild:
    """Stands for engine.child.Child: no process, and the test has the other end of the socket."""

    born: list[PlayedChild] = []  # noqa: RUF012 - of one test

    def __init__(self, command: object) -> None:
        self.began_s = time.monotonic()
        self.heartbeat = Heartbeat()
        self.socket, self.theirs = socket.socketpair()
        self.theirs.setblocking(False)
        self.stopped = False
        self.pid = 1
        self.verdict = Death("exit code 1", False)
        PlayedChild.born.append(self)

    def begin(self, config: EngineConfig) -> None:
        """It needs none."""

    def condemn(self, why: str, *, outside: bool = False) -> None:
        self.verdict = Death(why, outside)
        self.theirs.close()

    async def end(self, patience_s: float) -> Death:
        self.socket.close()
        self.theirs.close()
        return self.verdict

    def kill(self) -> None:
        self.theirs.close()

    async def say(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.theirs, data)


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    PlayedChild.born.clear()
    monkeypatch.setattr(child_module, "Child", PlayedChild)
    monkeypatch.setattr(Children, "prepare", lambda _: None)
    monkeypatch.setattr(patience, "BACKOFF_S", 0.0)
    yield
    for child in PlayedChild.born:
        child.socket.close()
        child.theirs.close()


class Played:
    """A client and whatever process it has just now."""

    def __init__(self, told: Counter[str]) -> None:
        self.client = EngineClient(EngineConfig(model_dir="/"), ())
        self.client.observer = Metrics("m")
        self._told = told
        self._loaded: PlayedChild | None = None

    async def load(self) -> PlayedChild:
        """The newest process, loaded."""
        child = PlayedChild.born[-1]
        if child is not self._loaded:
            self._told["processes"] += 1
            self._loaded = child
            await child.say(bytes(frame(Ready(INFO))))
        return child

    async def ask(self, name: str, prompt: tuple[int, ...] = PROMPT) -> asyncio.Task[list[SequenceOutput]]:
        params = SamplingParams(seed=1, n=2, max_tokens=8, prompt_logprobs=1)
        return asyncio.create_task(read(self.client.generate(name, prompt, params)))

    async def finish(self, name: str, reading: asyncio.Task[list[SequenceOutput]]) -> None:
        """Say what is right until the reader has all: a process that is not understood any more dies."""
        async with asyncio.timeout(60):
            while not reading.done():
                child = await self.load()
                opened = self.client._open.get(name)
                with contextlib.suppress(OSError):
                    for one in opened.record.unfinished if opened else ():
                        item = SequenceOutput(name, one, (TokenSample(70),), finish_reason="stop")
                        await child.say(bytes(frame(Outputs((item,), STATS))))
                await asyncio.wait([reading], timeout=0.01)
                if not reading.done() and child is PlayedChild.born[-1]:
                    child.theirs.close()  # it had begun a frame that never ends
                    await asyncio.sleep(0.001)


async def read(stream: Stream) -> list[SequenceOutput]:
    """All that a reader is given; it must be fit for one."""
    outputs = []
    async for output in stream:
        outputs.append(output)
        for sample in output.samples if output.finish_reason != "error" else ():
            assert 0 <= sample.token < CAPACITY.vocab_size
    return outputs


async def case(number: int, told: Counter[str]) -> None:
    random = generator(number, "outputs")
    played = Played(told)
    loading = asyncio.create_task(played.client.ready())
    await asyncio.sleep(0)
    await played.load()
    await loading
    reading = await played.ask("r1")
    for _ in range(random.randint(1, 4)):
        message = random.choice(outputs_of("r1", len(PROMPT), STATS))
        data = framed(random, mutated_message(random, message, random.choice((0, 1, 1, 2))))
        with contextlib.suppress(OSError):  # it was replaced meanwhile
            await (await played.load()).say(data)
        told["messages"] += 1
        await asyncio.sleep(0.001)
    await played.finish("r1", reading)
    told["outputs"] += len(reading.result())
    after = await played.ask("after", (80, 81))  # the first may be in quarantine: two engines ended in it
    await played.finish("after", after)
    assert not played.client.dead and played.client.open_requests == 0
    closing = asyncio.create_task(played.client.close())
    await asyncio.sleep(0)
    PlayedChild.born[-1].theirs.close()  # as a process ends that is told to
    await closing


def attack(cases: int) -> None:
    told: Counter[str] = Counter()
    for number in chosen(cases):
        PlayedChild.born.clear()
        try:
            asyncio.run(case(number, told))
        except BaseException as error:
            raise AssertionError(
                f"OCTAVO_FUZZ_SEED={mutator.SEED} OCTAVO_FUZZ_CASE={number}: {error!r}"
            ) from error
        finally:
            for child in PlayedChild.born:
                child.socket.close()
                child.theirs.close()
    print(dict(told))
    assert told["processes"] > cases * 5 // 4


def test_readers_come_to_an_end_whatever_an_engine_says(
    played: None, caplog: pytest.LogCaptureFixture
) -> None:
    attack(40)
    traces = [record for record in caplog.records if record.exc_info]
    assert not [record for record in traces if record.name == "asyncio"], traces


@pytest.mark.slow
def test_readers_come_to_an_end_whatever_engines_say_in_thousands(played: None) -> None:
    attack(2500)
