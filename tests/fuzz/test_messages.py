"""Mutated messages to an engine: what is one is computed or refused, what is none ends its process in an orderly way.

OCTAVO_FUZZ_SEED, OCTAVO_FUZZ_COUNT and OCTAVO_FUZZ_CASE as in test_bodies; a case here stands for a whole run of 200
messages, whose steps lie between them at random.
"""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import psutil
import pytest

from octavo.config import EngineConfig
from octavo.engine.build import build_engine
from octavo.engine.engine import Engine
from octavo.engine.messages import Abort, Add, FromEngine, Init, Outputs, Ready
from octavo.engine.process import Decoder, Refused
from octavo.engine.wire import FrameReader, WireError, frame
from octavo.sampling.params import SamplingParams
from octavo.scheduling.outputs import SequenceOutput
from tests.fuzz import mutator
from tests.fuzz.messages import NAMES, adds, encoded, framed, hostile_add, mutated_message
from tests.fuzz.mutator import chosen, generator

RUN = 200
"""Messages from one time that nothing runs to the next."""
STEPS = 5000
"""In which every run must end."""


@pytest.fixture(scope="module")
def engine(target_engine: dict[str, Any]) -> Iterator[Engine]:
    engine = build_engine(msgspec.convert(target_engine | {"threads": 1}, EngineConfig))
    yield engine
    engine.close()


def sent(random: random.Random) -> bytes:
    """One frame."""
    name = random.choice(NAMES)
    match random.randrange(10):
        case 0 | 1:
            return bytes(frame(Abort(name)))
        case 2:
            return framed(random, encoded(["abort", random.choice(mutator.TEXTS + mutator.NUMBERS)]))
        case 3 | 4 | 5 | 6:
            return framed(random, hostile_add(random, name))
    changes = random.choices((0, 1, 2, 4), (2, 5, 2, 1))[0]
    return framed(random, mutated_message(random, random.choice(adds(name)), changes))


def run_of(engine: Engine, number: int, told: Counter[str]) -> None:
    """One run: then nothing is left of it."""
    random = generator(number, "messages")
    for _ in range(RUN):
        data = sent(random)
        reader = FrameReader(Decoder())
        try:
            messages = reader.feed(data)
        except WireError:
            told["no message"] += 1
            continue
        told["unfinished"] += not messages
        for message in messages:
            match message:
                case Add():
                    told["add"] += 1
                    engine.add(message)
                case Refused(request_id, error):
                    told["refused by its parameters"] += 1
                    engine.refuse(request_id, error)
                case Abort(request_id):
                    told["abort"] += 1
                    engine.abort(request_id)
                case _:
                    told["other"] += 1
        while not engine.idle and random.random() < 0.6:
            count(engine.step().items, told)
            engine.check()
    if random.random() < 0.5:
        for name in NAMES:
            engine.abort(name)
    for _ in range(STEPS):
        if engine.idle:
            break
        count(engine.step().items, told)
    assert engine.idle, "something runs for ever"
    engine.check()
    assert engine.stats().running == engine.stats().waiting == engine.stats().blocks_used == 0
    engine.add(Add("after", (70, 71), SamplingParams(seed=1, max_tokens=2, ignore_eos=True), 0.0))
    outputs = [engine.step() for _ in range(3)]
    assert sum(len(item.samples) for one in outputs for item in one.items) == 2


def count(items: tuple[SequenceOutput, ...], told: Counter[str]) -> None:
    for item in items:
        told["tokens"] += len(item.samples)
        if item.finish_reason == "error":
            told["told error"] += 1
            assert item.error and "\n" not in item.error.strip() and len(item.error) < 4000, item.error
        elif item.finish_reason:
            told["finished"] += 1


def attack(engine: Engine, runs: int) -> None:
    told: Counter[str] = Counter()
    for number in chosen(runs):
        try:
            run_of(engine, number, told)
        except BaseException as error:
            raise AssertionError(
                f"OCTAVO_FUZZ_SEED={mutator.SEED} OCTAVO_FUZZ_CASE={number}: {error!r}"
            ) from error
    print(dict(told))
    assert told["finished"] > runs * 10 and told["told error"] > runs * 10


def test_whatever_comes_nothing_is_left_of_it(engine: Engine) -> None:
    attack(engine, 2)


@pytest.mark.slow
def test_whatever_comes_in_twenty_thousand_messages_nothing_is_left_of_it(engine: Engine) -> None:
    attack(engine, 100)


class Process:
    """A real engine process, and the parent's end of its socket."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(60)
        with theirs:
            command = [sys.executable, "-P", "-m", "octavo.engine", "--fd", str(theirs.fileno())]
            self.process = subprocess.Popen(
                [*command, "--parent", str(os.getpid())],
                pass_fds=(theirs.fileno(),),
                stderr=subprocess.PIPE,
                text=True,
            )
        self._reader = FrameReader(msgspec.msgpack.Decoder(FromEngine))
        self.socket.sendall(frame(Init(msgspec.convert(settings, EngineConfig))))
        assert isinstance(self.receive()[0], Ready)

    def receive(self) -> list[FromEngine]:
        messages: list[FromEngine] = []
        while not messages:
            data = self.socket.recv(1 << 18)
            if not data:
                raise EOFError
            messages = self._reader.feed(data)
        return messages

    def serves(self) -> bool:
        """It answers a request."""
        self.socket.sendall(frame(Add("whole", (70,), SamplingParams(seed=1, max_tokens=1), 0.0)))
        while True:
            for message in self.receive():
                if isinstance(message, Outputs) and any(
                    item.request_id == "whole" and item.finish_reason for item in message.items
                ):
                    return True

    def end(self) -> tuple[int, str]:
        """Its exit code and what it logged."""
        self.socket.close()
        _, log = self.process.communicate(timeout=60)
        return self.process.returncode, log


@pytest.mark.slow
def test_a_process_outlives_every_message_that_is_one(target_engine: dict[str, Any]) -> None:
    process = Process(target_engine)
    decoder = Decoder()
    for number in range(3000):
        random = generator(number, "process")
        name = random.choice(NAMES)
        body = (
            hostile_add(random, name) if number % 2 else mutated_message(random, random.choice(adds(name)), 1)
        )
        try:
            decoder.decode(memoryview(body))
        except msgspec.DecodeError:
            continue
        process.socket.sendall(len(body).to_bytes(4, "little") + body)
        process.socket.sendall(frame(Abort(random.choice(NAMES))))
        if number % 100 == 0:
            assert process.serves()
    assert process.serves()
    code, log = process.end()
    # A grammar may be too much for its limits before its request is cancelled: that is told, and nothing else is.
    assert (code, [line for line in log.splitlines() if " WARNING octavo.engine.guides: " not in line]) == (
        0,
        [],
    )


LIES = {
    "a length of 4 GiB": b"\xff\xff\xff\xff",
    "no msgpack": b"\x01\x00\x00\x00\xc1",
    "an array of 4 billion entries": b"\x05\x00\x00\x00\xdd\xff\xff\xff\xff",
    "depth": (5000).to_bytes(4, "little") + b"\x91" * 5000,
    "Init twice": bytes(frame(Init(EngineConfig(model_dir="/")))),
    "an Add of another shape": b"\x05\x00\x00\x00\x91\xa3add",
}


@pytest.mark.parametrize("lie", ["a length of 4 GiB", pytest.param("all", marks=pytest.mark.slow)])
def test_damage_ends_the_process_with_one_line(target_engine: dict[str, Any], lie: str) -> None:
    for data in [LIES[lie]] if lie in LIES else LIES.values():
        process = Process(target_engine)
        process.socket.sendall(data)
        assert process.process.wait(60) == 2
        code, log = process.end()
        assert code == 2 and log.count("\n") == 1 and "damaged data" in log


@pytest.mark.slow
def test_a_length_that_lies_costs_no_memory(target_engine: dict[str, Any]) -> None:
    process = Process(target_engine)
    assert process.serves()
    before = psutil.Process(process.process.pid).memory_info().rss
    process.socket.sendall((1 << 30).to_bytes(4, "little") + b"x" * 1000)  # a gigabyte is to follow
    process.socket.sendall(b"x" * 100_000)
    assert psutil.Process(process.process.pid).memory_info().rss < before + (32 << 20)
    assert process.end()[0] == 0
