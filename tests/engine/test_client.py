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
from octavo.engine import patience
from octavo.engine.child import Child
from octavo.engine.client import EngineClient
from octavo.engine.stream import Stream
from octavo.errors import EngineDied, InvalidParameter, ModelError, Quarantined, ServerError
from octavo.sampling.params import SamplingParams
from tests.engine.fake_engine import ABORT, CRASH, HANG, SUICIDE, expected_token

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


async def test_a_request_that_ends_the_engine_alone_twice_is_quarantined(
    client: EngineClient, capfd: pytest.CaptureFixture[str]
) -> None:
    outputs = [output async for output in client.generate("a", [CRASH], SamplingParams(n=2, max_tokens=5))]
    assert [(o.child, o.finish_reason) for o in outputs] == [(0, "error"), (1, "error")]
    assert "ended twice while it computed this request alone (the last time: exit code 1)" in (
        outputs[0].error or ""
    )
    await until(lambda: client.restarts == 2)
    assert "a crash in a step" in capfd.readouterr().err
    with pytest.raises(Quarantined, match="not tried again"):
        client.generate("again", [CRASH], SamplingParams(n=2, max_tokens=5))
    tokens = await collect(client.generate("other", [5], SamplingParams(seed=3, max_tokens=5)))
    assert tokens == {("other", 0): expected((5,), 3, 5)}
    assert client.restarts == 2


@pytest.mark.parametrize("culprits", [(0,), (11,), (4, 13)])
async def test_a_culprit_is_found_among_many_and_the_others_lose_nothing(
    client: EngineClient, culprits: tuple[int, ...]
) -> None:
    prompts = [[ABORT if i in culprits else 5, i, 3 + i] for i in range(16)]
    streams = [
        client.generate(f"r{i}", prompt, SamplingParams(seed=i, max_tokens=40 + i))
        for i, prompt in enumerate(prompts)
    ]
    late = asyncio.create_task(_late(client))
    for i, stream in enumerate(streams):
        outputs = [output async for output in stream]
        tokens = [sample.token for output in outputs for sample in output.samples]
        if i in culprits:
            assert outputs[-1].finish_reason == "error"
            assert "signal 11" in (outputs[-1].error or "")
            assert tokens == expected((ABORT, i, 3 + i), i, 3 + i)
        else:
            assert outputs[-1].finish_reason == "length"
            assert tokens == expected((5, i, 3 + i), i, 40 + i)
    assert await late == expected((5,), 3, 5)
    # Five halvings of 16 and a second death alone, for each; a request that comes in the middle may be in one more.
    assert 2 <= client.restarts <= 7 * len(culprits)


async def _late(client: EngineClient) -> list[int]:
    """The tokens of a request that comes while suspects are tried."""
    await until(lambda: client.restarts >= 2)
    return (await collect(client.generate("late", [5], SamplingParams(seed=3, max_tokens=5))))["late", 0]


async def test_a_spare_process_takes_over(client: EngineClient, monkeypatch: pytest.MonkeyPatch) -> None:
    client._children.prepare()
    spare = client._children._spare
    assert spare is not None
    client._children.prepare()
    assert client._children._spare is spare, "one is enough"
    reader = asyncio.create_task(collect(client.generate("a", [5], SamplingParams(seed=1, max_tokens=400))))
    await until(lambda: client.stats is not None)
    os.kill(client.info.pid, signal.SIGKILL)
    await until(lambda: not client.healthy)
    await until(lambda: client.healthy)
    assert client.info.pid == spare.pid
    client._children.prepare()
    dead = client._children._spare
    assert dead is not None
    os.kill(dead.pid, signal.SIGKILL)
    await asyncio.to_thread(os.waitid, os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)
    os.kill(client.info.pid, signal.SIGKILL)
    await until(lambda: not client.healthy)
    await until(lambda: client.healthy)
    assert client.info.pid not in (spare.pid, dead.pid)
    assert (await reader)["a", 0] == expected((5,), 1, 400)


async def test_a_process_that_dies_before_it_is_told_what_to_load_is_replaced(
    client: EngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, killed = Child.begin, list[int]()

    def begin_dead(child: Child, config: EngineConfig) -> bool:
        if len(killed) < 2:
            killed.append(child.pid)
            os.kill(child.pid, signal.SIGKILL)
            child._process.wait()
        return begin(child, config)

    monkeypatch.setattr(Child, "begin", begin_dead)
    os.kill(client.info.pid, signal.SIGKILL)
    tokens = await collect(client.generate("a", [5], SamplingParams(seed=3, max_tokens=5)))
    assert tokens == {("a", 0): expected((5,), 3, 5)}
    assert client.restarts == 3


async def test_signals_from_outside_are_no_strike_unless_the_same_step_dies_again(
    client: EngineClient,
) -> None:
    reader = asyncio.create_task(collect(client.generate("a", [5], SamplingParams(seed=1, max_tokens=400))))
    for _ in range(4):
        await until(lambda: client.healthy)
        steps = client.stats.steps if client.stats is not None else 0
        await until(lambda steps=steps: client.stats is not None and client.stats.steps not in (0, steps))  # type: ignore[misc]
        os.kill(client.info.pid, signal.SIGKILL)
        await until(lambda: not client.healthy)
    assert (await reader)["a", 0] == expected((5,), 1, 400)
    outputs = [o async for o in client.generate("b", [SUICIDE, 4], SamplingParams(max_tokens=9))]
    assert "signal 9" in (outputs[-1].error or "")
    await until(lambda: client.restarts == 4 + 3)


async def test_a_broken_engine_is_no_request_s_fault(client: EngineClient) -> None:
    streams = [client.generate(f"r{i}", [CRASH, i], SamplingParams(max_tokens=5)) for i in range(6)]
    errors = [[output async for output in stream][-1].error or "" for stream in streams]
    assert sum("computed this request alone" in error for error in errors) == 3
    assert sum("ended with 3 requests in a row" in error for error in errors) == 3
    assert client.dead


async def test_deaths_without_progress_end_in_an_error_for_every_open_request(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(patience, "BACKOFF_S", 0.001)
    client = await EngineClient.start(config(f"/once{tmp_path}/started"), COMMAND)
    stream = client.generate("a", [5], SamplingParams(n=2, max_tokens=None))
    await anext(stream)
    os.kill(client.info.pid, signal.SIGKILL)
    outputs = [output async for output in stream]
    assert [(o.child, o.finish_reason) for o in outputs[-2:]] == [(0, "error"), (1, "error")]
    assert "died 6 times without progress (exit code 3)" in (outputs[-1].error or "")
    assert client.dead
    assert not client.healthy
    with pytest.raises(EngineDied, match="restart the server"):
        client.generate("b", [5], SamplingParams())
    await client.close()


async def test_a_stopped_engine_is_not_ready_and_goes_on(
    client: EngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "STALLED_S", 0.3)
    reader = asyncio.create_task(collect(client.generate("a", [5], SamplingParams(seed=1, max_tokens=400))))
    await until(lambda: client.stats is not None)
    pid = client.info.pid
    os.kill(pid, signal.SIGSTOP)
    await until(lambda: client.stalled)
    assert not client.healthy
    os.kill(pid, signal.SIGCONT)
    await until(lambda: client.healthy)
    assert (await reader)["a", 0] == expected((5,), 1, 400)
    os.kill(pid, signal.SIGSTOP)  # with nothing to do
    await until(lambda: client.stalled)
    os.kill(pid, signal.SIGCONT)
    await until(lambda: client.healthy)
    assert client.restarts == 0


async def test_an_engine_that_is_stopped_for_long_is_replaced_and_no_request_blamed(
    client: EngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "HUNG_S", 0.5)
    reader = asyncio.create_task(collect(client.generate("a", [5], SamplingParams(seed=1, max_tokens=400))))
    for restarts in (1, 2, 3):
        steps = client.stats.steps if client.stats is not None else 0
        await until(lambda steps=steps: client.stats is not None and client.stats.steps not in (0, steps))  # type: ignore[misc]
        os.kill(client.info.pid, signal.SIGSTOP)
        await until(lambda restarts=restarts: client.restarts == restarts and client.healthy)  # type: ignore[misc]
    assert (await reader)["a", 0] == expected((5,), 1, 400)


async def test_an_engine_that_replaced_another_and_has_no_work_any_more_stays(
    client: EngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "HUNG_S", 0.3)
    os.kill(client.info.pid, signal.SIGKILL)
    await until(lambda: not client.healthy)
    await until(lambda: client.healthy)
    monkeypatch.setattr(client, "_load_s", 0.0)
    pid = client.info.pid
    await collect(client.generate("a", [5], SamplingParams(seed=1, max_tokens=400)))
    await asyncio.sleep(0.6)  # looks at it once more
    assert client.healthy
    assert (client.info.pid, client.restarts) == (pid, 1)


async def test_a_step_that_hangs_is_ended_and_its_request_found(
    client: EngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "HUNG_S", 0.5)
    streams = [
        client.generate(f"r{i}", [HANG if i == 2 else 5, i], SamplingParams(seed=i, max_tokens=30))
        for i in range(4)
    ]
    answers = [[output async for output in stream] for stream in streams]
    assert "no progress for" in (answers[2][-1].error or "")
    for i in (0, 1, 3):
        tokens = [sample.token for output in answers[i] for sample in output.samples]
        assert tokens == expected((5, i), i, 30)


async def test_requests_that_wait_for_a_trial_can_leave(client: EngineClient) -> None:
    culprit = client.generate("bad", [ABORT, 0], SamplingParams(max_tokens=5))
    others = [client.generate(f"r{i}", [5, i], SamplingParams(max_tokens=None)) for i in range(7)]
    await until(lambda: client.restarts >= 1)
    for stream in others:
        await stream.aclose()
    assert [output async for output in culprit][-1].finish_reason == "error"
    assert client.open_requests == 0
    assert await collect(client.generate("new", [5], SamplingParams(max_tokens=3)))


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


async def test_after_a_death_the_shortest_answers_go_on_first_and_new_requests_last(
    client: EngineClient,
) -> None:
    streams = {
        name: client.generate(name, [5] * prompt, SamplingParams(seed=1, max_tokens=None))
        for name, prompt in (("long", 300), ("short", 9), ("middle", 100))
    }
    for stream in streams.values():
        await anext(stream)
    pid = client.info.pid
    os.kill(pid, signal.SIGKILL)
    await until(lambda: not client.healthy)
    streams["new"] = client.generate("new", [5], SamplingParams(seed=1, max_tokens=None))
    await until(lambda: client.healthy and client.info.pid != pid)
    await until(lambda: client.stats is not None and client.stats.running == 4)
    sent = await _names(client)
    assert sent == ["short", "middle", "long", "new"]
    for stream in streams.values():
        await stream.aclose()


async def _names(client: EngineClient) -> list[str]:
    """Of the step that runs; between two steps there are none."""
    async with asyncio.timeout(10):
        while not (names := client._child.heartbeat.names):  # noqa: ASYNC110 - it is another process
            await asyncio.sleep(0)
    return names
