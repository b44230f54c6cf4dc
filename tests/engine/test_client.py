"""EngineClient against a fake engine process: streams, aborts, deaths. No model is loaded."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from octavo.config import EngineConfig
from octavo.engine import client as client_module
from octavo.engine.client import EngineClient
from octavo.engine.stream import Stream
from octavo.errors import EngineDied, InvalidParameter, ModelError, ServerError
from octavo.sampling.params import SamplingParams
from tests.engine.fake_engine import CRASH, expected_token

COMMAND = (sys.executable, str(Path(__file__).with_name("fake_engine.py")))


def config(model_dir: str = "/fake", step_us: int = 200) -> EngineConfig:
    return EngineConfig(model_dir=model_dir, max_step_tokens=step_us)


@pytest.fixture
async def client() -> AsyncIterator[EngineClient]:
    client = await EngineClient.start(config(), COMMAND)
    yield client
    await client.close()


async def collect(stream: Stream) -> dict[tuple[str, int], list[int]]:
    """Tokens per sequence; every sequence must finish exactly once, with its last output."""
    tokens: dict[tuple[str, int], list[int]] = {}
    finished: set[tuple[str, int]] = set()
    async for output in stream:
        key = (output.request_id, output.child)
        assert key not in finished
        tokens.setdefault(key, []).extend(sample.token for sample in output.samples)
        if output.finish_reason is not None:
            assert output.error is None
            finished.add(key)
    assert finished == set(tokens)
    return tokens


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what is waited for happens in another process
            await asyncio.sleep(0.005)


def expected(prompt: tuple[int, ...], seed: int, count: int) -> list[int]:
    return [expected_token(prompt, seed, place) for place in range(count)]


async def test_a_request_gives_the_tokens_of_every_child(client: EngineClient) -> None:
    params = SamplingParams(n=3, seed=7, max_tokens=20)
    tokens = await collect(client.generate("a", [5, 6], params))
    assert tokens == {("a", child): expected((5, 6), 7 + child, 20) for child in range(3)}
    assert client.open_requests == 0


async def test_many_requests_share_a_stream(client: EngineClient) -> None:
    requests = [(f"r{i}", [5, i], SamplingParams(seed=i, max_tokens=3 + i)) for i in range(10)]
    tokens = await collect(client.generate_all(requests))
    assert tokens == {(f"r{i}", 0): expected((5, i), i, 3 + i) for i in range(10)}


async def test_an_id_that_runs_is_refused_and_nothing_starts(client: EngineClient) -> None:
    endless = SamplingParams(max_tokens=None)
    async with contextlib.aclosing(client.generate("a", [5], endless)):
        with pytest.raises(InvalidParameter, match="'a' is running"):
            client.generate_all([("b", [5], endless), ("a", [5], endless)])
        assert client.open_requests == 1


async def test_closing_a_stream_aborts_in_the_engine(client: EngineClient) -> None:
    stream = client.generate("a", [5], SamplingParams(max_tokens=None))
    await anext(stream)
    await stream.aclose()
    assert client.open_requests == 0
    await until(lambda: client.stats is not None and client.stats.running == 0)
    assert [output.finish_reason async for output in stream if output.finish_reason] == []


async def test_cancelling_a_waiting_reader_aborts_in_the_engine() -> None:
    client = await EngineClient.start(config(step_us=50_000), COMMAND)
    reader = asyncio.create_task(collect(client.generate("a", [5], SamplingParams(max_tokens=None))))
    await until(lambda: client.stats is not None and client.stats.running == 1)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert client.open_requests == 0
    await until(lambda: client.stats is not None and client.stats.running == 0)
    await client.close()


async def test_a_slow_reader_gets_merged_outputs(client: EngineClient) -> None:
    stream = client.generate("a", [5], SamplingParams(n=2, seed=1, max_tokens=100))
    await until(lambda: client.open_requests == 0)
    outputs = [output async for output in stream]
    assert len(outputs) == 2  # one per sequence, however many steps there were
    for child, output in enumerate(outputs):
        assert [s.token for s in output.samples] == expected((5,), 1 + child, 100)
        assert output.finish_reason == "length"


async def test_a_request_without_a_seed_gets_one_that_the_journal_keeps(client: EngineClient) -> None:
    first = await collect(client.generate("a", [5], SamplingParams(max_tokens=8)))
    second = await collect(client.generate("a", [5], SamplingParams(max_tokens=8)))
    assert first != second


async def test_kill_9_in_the_middle_changes_no_stream(client: EngineClient) -> None:
    params = [SamplingParams(n=2, seed=i, max_tokens=150 + 40 * i) for i in range(4)]
    streams = [client.generate(f"r{i}", [5, i], p) for i, p in enumerate(params)]
    readers = [asyncio.create_task(collect(stream)) for stream in streams]
    for _ in range(3):
        await until(lambda: client.healthy)
        steps = client.stats.steps if client.stats is not None else 0
        await until(lambda steps=steps: client.stats is not None and client.stats.steps not in (0, steps))  # type: ignore[misc]
        os.kill(client.info.pid, signal.SIGKILL)
        await until(lambda: not client.healthy)
    for i, reader in enumerate(readers):
        tokens = await reader
        for child in range(2):
            assert tokens[f"r{i}", child] == expected((5, i), i + child, 150 + 40 * i)
    assert client.restarts == 3


async def test_a_request_that_arrives_during_a_restart_is_served(client: EngineClient) -> None:
    os.kill(client.info.pid, signal.SIGKILL)
    await until(lambda: not client.healthy)
    tokens = await collect(client.generate("a", [5], SamplingParams(seed=3, max_tokens=5)))
    assert tokens == {("a", 0): expected((5,), 3, 5)}


async def test_deaths_without_progress_end_in_an_error_for_every_open_request(
    client: EngineClient, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(client_module, "BACKOFF_S", 0.001)
    stream = client.generate("a", [CRASH], SamplingParams(n=2, max_tokens=5))
    outputs = [output async for output in stream]
    assert [(o.child, o.finish_reason) for o in outputs] == [(0, "error"), (1, "error")]
    assert "died 5 times without progress" in (outputs[0].error or "")
    assert client.dead
    assert not client.healthy
    assert "a crash in a step" in capfd.readouterr().err
    with pytest.raises(EngineDied, match="restart the server"):
        client.generate("b", [5], SamplingParams())


@pytest.mark.parametrize(
    ("model_dir", "error", "message"),
    [
        ("/missing", ModelError, "cannot be found; check the path"),
        ("/broken", ServerError, "could not start: ZeroDivisionError"),
        ("/gone", EngineDied, r"ended while loading \(exit code 3\)"),
    ],
)
async def test_a_failed_start_raises_its_reason(
    model_dir: str, error: type[Exception], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(error, match=message):
        await EngineClient.start(config(model_dir), COMMAND)
    assert ("Traceback" in capfd.readouterr().err) == (model_dir == "/broken")


async def test_close_ends_streams_and_process(client: EngineClient) -> None:
    pid = client.info.pid
    stream = client.generate("a", [5], SamplingParams(max_tokens=None))
    await anext(stream)
    await client.close()
    assert [output.finish_reason async for output in stream] == ["abort"]
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_client_without_an_event_loop_can_be_closed() -> None:
    client = EngineClient.spawn(config(), COMMAND)
    asyncio.run(client.close())
    assert not client.healthy
