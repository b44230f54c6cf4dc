"""The engine process's loop over a real socket pair, and the processes that the module starts."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import msgspec
import pytest

from octavo.config import EngineConfig
from octavo.engine import process
from octavo.engine.heartbeat import Heartbeat
from octavo.engine.messages import Abort, Add, FromEngine, Init, Outputs, Ready, Shutdown, ToEngine
from octavo.engine.process import Decoder, Link, Refused, run
from octavo.engine.wire import MAX_FRAME_BYTES, FrameReader, WireError, frame
from octavo.sampling.params import SamplingParams
from octavo.telemetry.logs import FORMAT_VARIABLE
from tests.engine.fake_engine import CRASH, FakeEngine


class Parent:
    """The other end: blocking, one message at a time."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        end.settimeout(10)
        self._reader = FrameReader(msgspec.msgpack.Decoder(FromEngine))
        self._messages: list[FromEngine] = []

    def send(self, message: msgspec.Struct) -> None:
        self.socket.sendall(frame(message))

    def receive(self) -> FromEngine:
        while not self._messages:
            data = self.socket.recv(1 << 16)
            if not data:
                raise EOFError
            self._messages += self._reader.feed(data)
        return self._messages.pop(0)


def config(step_us: int = 0) -> EngineConfig:
    return EngineConfig(model_dir="/fake", max_step_tokens=step_us)


def add(name: str, max_tokens: int | None, prompt: tuple[int, ...] = (5,)) -> Add:
    return Add(name, prompt, SamplingParams(seed=1, max_tokens=max_tokens), 0.0)


class Running:
    """`run` in a thread, over a fake engine."""

    def __init__(self, step_us: int = 0) -> None:
        ours, theirs = socket.socketpair()
        self.parent = Parent(ours)
        self.engine: FakeEngine | None = None
        self.code: int | None = None
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(theirs,))
        self._thread.start()
        self.parent.send(Init(config(step_us)))
        assert isinstance(self.parent.receive(), Ready)

    def _run(self, theirs: socket.socket) -> None:
        def build(config: EngineConfig) -> FakeEngine:
            self.engine = FakeEngine(config, Heartbeat())
            return self.engine

        with theirs:
            try:
                self.code = run(theirs, build)
            except Exception as error:  # noqa: BLE001 - the test looks at it
                self.error = error

    def join(self) -> None:
        self._thread.join(10)
        assert not self._thread.is_alive()
        self.parent.socket.close()


@pytest.fixture
def running() -> Iterator[Running]:
    running = Running()
    yield running
    running.parent.socket.close()
    running.join()


def test_outputs_follow_a_request_until_it_ends(running: Running) -> None:
    running.parent.send(add("a", 3))
    outputs = [running.parent.receive() for _ in range(3)]
    assert all(isinstance(o, Outputs) for o in outputs)
    reasons = [o.items[0].finish_reason for o in outputs if isinstance(o, Outputs)]
    assert reasons == [None, None, "length"]


def test_an_abort_is_followed_by_fresh_gauges(running: Running) -> None:
    running.parent.send(add("a", None))
    running.parent.receive()
    running.parent.send(Abort("a"))
    message = running.parent.receive()
    while isinstance(message, Outputs) and message.stats.running:
        message = running.parent.receive()
    assert isinstance(message, Outputs)
    assert message.stats.blocks_used == 0


def test_shutdown_and_the_end_of_the_parent_end_it_with_code_0() -> None:
    for ending in ("shutdown", "close"):
        running = Running()
        running.parent.send(add("a", None))
        running.parent.receive()
        if ending == "shutdown":
            running.parent.send(Shutdown())
        else:
            running.parent.socket.close()
        running.join()
        assert running.code == 0


def test_an_idle_process_sleeps(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bool] = []
    receive = Link.receive

    def counted(link: Link, *, wait: bool) -> list[ToEngine | Refused]:
        calls.append(wait)
        return receive(link, wait=wait)

    monkeypatch.setattr(Link, "receive", counted)
    running.parent.send(add("a", 1))
    running.parent.receive()
    time.sleep(0.2)
    assert len(calls) <= 2  # one per time it was woken, not one per turn of a busy loop
    assert calls[-1:] == [True]


def test_a_crash_in_a_step_is_not_swallowed() -> None:
    running = Running()
    running.parent.send(add("a", None, prompt=(CRASH,)))
    running.join()
    assert isinstance(running.error, RuntimeError)


def test_a_parent_that_stops_reading_pauses_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "MAX_UNSENT_BYTES", 10_000)
    running = Running()
    running.parent.send(add("a", None))
    engine = running.engine
    assert engine is not None
    steps = -1
    while engine.stats.steps != steps:
        steps = engine.stats.steps
        time.sleep(0.2)
    received = 0
    while received <= steps:  # it goes on as soon as we read, and nothing was lost or doubled
        message = running.parent.receive()
        assert isinstance(message, Outputs)
        received += 1
        assert message.stats.steps == received
    running.parent.socket.close()
    running.join()
    assert running.code == 0


def test_a_large_message_is_cut_and_joined() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        big = add("a", 1, prompt=tuple(range(300_000)))
        sender = threading.Thread(target=lambda: ours.sendall(frame(big) + frame(Abort("b"))))
        sender.start()
        link, messages = Link(theirs), list[object]()
        while len(messages) < 2:
            messages += link.receive(wait=True)
        sender.join()
    assert messages == [big, Abort("b")]


@pytest.mark.parametrize(
    "data",
    [(MAX_FRAME_BYTES + 1).to_bytes(4, "little"), b"\x01\x00\x00\x00\xc1", b"\x02\x00\x00\x00\x91\x07"],
)
def test_damaged_frames_are_named(data: bytes) -> None:
    with pytest.raises(WireError, match="A frame"):
        FrameReader(msgspec.msgpack.Decoder(FromEngine)).feed(data)


def test_frames_arrive_whole_however_the_bytes_are_cut() -> None:
    data = frame(add("a", 3)) + frame(Abort("a")) + frame(Shutdown())
    for size in (1, 2, 3, 5, 7, len(data)):
        reader: FrameReader[Add | Abort | Shutdown] = FrameReader(
            msgspec.msgpack.Decoder(Add | Abort | Shutdown)
        )
        messages = [m for at in range(0, len(data), size) for m in reader.feed(data[at : at + size])]
        assert messages == [add("a", 3), Abort("a"), Shutdown()]


def test_the_engine_process_imports_no_web_framework_and_no_tokenizer() -> None:
    code = (
        "import sys, octavo.engine.__main__, octavo.engine.engine, octavo.engine.build\n"
        "heavy = {'fastapi', 'starlette', 'uvicorn', 'pydantic', 'tokenizers', 'prometheus_client'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_signals_of_the_terminal_do_not_end_the_engine_but_its_parent_does() -> None:
    ours, theirs = socket.socketpair()
    with subprocess.Popen(
        [sys.executable, "-m", "octavo.engine", "--fd", str(theirs.fileno())], pass_fds=[theirs.fileno()]
    ) as child:
        theirs.close()
        parent = Parent(ours)
        parent.send(Init(msgspec.structs.replace(config(), model_dir="/nowhere/at/all")))
        message = parent.receive()  # it has set its signals before it reads
        assert type(message).__name__ == "Failed"
        ours.close()
        assert child.wait(10) == 1
    ours, theirs = socket.socketpair()
    with subprocess.Popen(
        [sys.executable, "-c", _IDLE, str(theirs.fileno())], pass_fds=[theirs.fileno()]
    ) as child:
        theirs.close()
        parent = Parent(ours)
        parent.send(Init(config()))
        assert isinstance(parent.receive(), Ready)
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            os.kill(child.pid, number)
        parent.send(add("a", 1))
        assert isinstance(parent.receive(), Outputs)
        ours.close()
        assert child.wait(10) == 0


def test_the_engine_s_last_words_have_the_server_s_form() -> None:
    ours, theirs = socket.socketpair()
    with subprocess.Popen(
        [sys.executable, "-c", _IDLE, str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, FORMAT_VARIABLE: "json"},
    ) as child:
        theirs.close()
        parent = Parent(ours)
        parent.send(Init(config()))
        assert isinstance(parent.receive(), Ready)
        parent.send(add("a", 1, prompt=(CRASH,)))
        _, words = child.communicate(timeout=20)
        ours.close()
    assert child.returncode == 1
    line = json.loads(words)
    assert (line["level"], line["logger"]) == ("critical", "octavo.engine")
    assert line["exception"].endswith("RuntimeError: a crash in a step")


_IDLE = """
import sys
from octavo.engine import __main__ as main
from tests.engine.fake_engine import build
main._build = build
sys.argv[1:] = ["--fd", sys.argv[1]]
sys.exit(main.main())
"""


def test_parameters_out_of_range_are_refused_and_what_is_no_message_is_told_apart() -> None:
    whole = msgspec.to_builtins(add("a", 3))
    whole[3]["temperature"] = -1.0
    told = Decoder().decode(memoryview(msgspec.msgpack.encode(whole)))
    assert isinstance(told, Refused) and told.request_id == "a" and "temperature is -1.0" in told.error
    whole[3]["temperature"] = "hot"
    with pytest.raises(msgspec.DecodeError):
        Decoder().decode(memoryview(msgspec.msgpack.encode(whole)))
