"""The disk cache under real engines: warm from disk equals cold bit for bit, whatever the disk does."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from octavo.config import EngineConfig
from octavo.engine.build import build_engine
from octavo.engine.client import EngineClient
from octavo.engine.engine import Engine
from octavo.engine.messages import Add
from octavo.engine.replay import replay
from octavo.errors import SettingsError
from octavo.memory.disk import DiskCache
from octavo.models.store import open_model
from octavo.sampling.params import SamplingParams
from octavo.scheduling.outputs import SequenceOutput
from tests.fakes import request, run

SIZE = 16
LENGTHS = (SIZE - 1, SIZE, SIZE + 1, 2 * SIZE - 1, 2 * SIZE, 2 * SIZE + 1, 100)
Outputs = dict[tuple[str, int], list[SequenceOutput]]


@pytest.fixture(scope="module", params=["native", "reference"])
def config(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    """A pool of 14 blocks: every request of `flood` takes all of it."""
    path = request.getfixturevalue("tiny_model_path")
    native = request.param == "native"
    model = open_model(path, cache=tmp_path_factory.mktemp("store"), packed=native)
    return EngineConfig(
        model_dir=str(model.dir), backend=request.param, num_blocks=14, max_model_len=224, threads=2
    )


def changed(config: EngineConfig, **changes: object) -> EngineConfig:
    return msgspec.structs.replace(config, **changes)


def asks(kind: str = "") -> list[Add]:
    return [
        request(
            f"{kind}{length}",
            [(7 * place + length) % 280 for place in range(length)],
            max_tokens=6, logprobs=3, ignore_eos=True, temperature=temperature, seed=length,
        )
        for length in LENGTHS
        for temperature in (0.0 if length % 2 else 1.0,)
    ]  # fmt: skip


def flood(number: int = 0) -> Add:
    return request("flood", [(place * place + number) % 280 for place in range(208)], max_tokens=1)


def samples(outputs: Outputs) -> dict[tuple[str, int], list[object]]:
    """However they were cut into steps: guesses of earlier answers make several tokens at once."""
    return {key: [one for item in items for one in item.samples] for key, items in outputs.items()}


def cached(outputs: Outputs) -> dict[str, int]:
    return {name: max(item.cached_tokens for item in items) for (name, _), items in outputs.items()}


def cold(config: EngineConfig) -> Outputs:
    engine = build_engine(config)
    try:
        return {key: value for add in asks() for key, value in run(engine, add, flood()).items()}
    finally:
        engine.close()


def written(engine: Engine) -> None:
    """Wait until everything that was given away is a file."""
    carrier = engine._carrier
    assert carrier is not None
    until(lambda: not carrier._disk._stores)


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*.kv"))


def test_warm_from_disk_equals_cold(config: EngineConfig, tmp_path: Path) -> None:
    expected = samples(cold(config))
    log = tmp_path / "steps.jsonl"
    engine = build_engine(changed(config, cache_disk=str(tmp_path / "cache"), step_log=str(log)))
    try:
        outputs: Outputs = {}
        for _ in range(2):
            for add in asks():
                outputs |= run(engine, add)
                outputs |= run(engine, flood())
            assert samples(outputs) == expected
        found = cached(outputs)
        assert {name: found[name] for name in map(str, LENGTHS)} == {
            str(length): (length - 1) // SIZE * SIZE for length in LENGTHS
        }
        assert engine.stats().disk_hit_tokens > 0 and engine.stats().disk_bytes > 0
        together = run(engine, *asks())
        assert samples(together) == {key: value for key, value in expected.items() if key[0] != "flood"}
    finally:
        engine.close()
    [report] = replay(log)
    assert report.difference is None and report.steps > 0


def test_a_new_engine_finds_what_the_last_one_left(config: EngineConfig, tmp_path: Path) -> None:
    expected = cold(config)
    kept = changed(config, cache_disk=str(tmp_path / "cache"), step_log=str(tmp_path / "steps.jsonl"))
    for number in range(3):
        engine = build_engine(kept)
        try:
            outputs = {key: value for add in asks() for key, value in run(engine, add).items()}
        finally:
            engine.close()
        for key, items in samples(outputs).items():
            assert items == samples(expected)[key]
        if number:
            assert all(cached(outputs)[str(n)] == (n - 1) // SIZE * SIZE for n in LENGTHS)
    assert [report.difference for report in replay(tmp_path / "steps.jsonl")] == [None] * 3


def test_damaged_files_change_no_answer(
    config: EngineConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = cold(config)
    kept = changed(config, cache_disk=str(tmp_path))
    engine = build_engine(kept)
    run(engine, *asks())
    engine.close()
    assert len(files(tmp_path)) > 8
    for number, path in enumerate(files(tmp_path)):
        whole = bytearray(path.read_bytes())
        whole[(number * 977) % len(whole)] ^= 64
        path.write_bytes(bytes(whole[: -number or None]) if number % 3 else bytes(whole))
    engine = build_engine(kept)
    try:
        outputs = {key: value for add in asks() for key, value in run(engine, add).items()}
        assert engine.stats().disk_hit_tokens == 0
    finally:
        engine.close()
    assert "is damaged" in caplog.text
    for key, items in samples(outputs).items():
        assert items == samples(expected)[key]


def test_another_kv_type_shares_the_folder_and_no_block(config: EngineConfig, tmp_path: Path) -> None:
    hits = []
    for kv_dtype in ("bf16", "fp32", "bf16"):
        engine = build_engine(changed(config, cache_disk=str(tmp_path), kv_dtype=kv_dtype))
        outputs = run(engine, *asks())
        hits.append(engine.stats().disk_hit_tokens)
        engine.close()
        if kv_dtype == "bf16":
            assert samples(outputs).items() <= samples(cold(config)).items()
    assert hits[:2] == [0, 0] and hits[2] > 0 and len(list(tmp_path.glob("*/"))) == 2


def test_a_full_disk_is_a_warning(
    config: EngineConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    engine = build_engine(changed(config, cache_disk=str(tmp_path)))
    try:
        for _ in range(2):
            outputs = {key: value for add in asks() for key, value in run(engine, add, flood()).items()}
            assert samples(outputs) == samples(cold(config))
        assert engine.stats().disk_bytes == 0
    finally:
        engine.close()
    assert "No space left on device" in caplog.text and not files(tmp_path)


def test_a_folder_that_cannot_be_used_is_a_warning(
    config: EngineConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    engine = build_engine(changed(config, cache_disk=str(tmp_path / "file" / "cache")))
    assert "cannot be used (Not a directory); serving without it" in caplog.text
    assert samples(run(engine, asks()[0])).items() <= samples(cold(config)).items()
    engine.close()
    first = build_engine(changed(config, cache_disk=str(tmp_path / "cache")))
    second = build_engine(changed(config, cache_disk=str(tmp_path / "cache")))
    assert "another engine uses it" in caplog.text and second._carrier is None
    first.close()
    second.close()


def test_settings_that_make_no_sense_are_refused_with_numbers(config: EngineConfig, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="prefix_cache is off"):
        build_engine(changed(config, cache_disk=str(tmp_path), prefix_cache=False))
    with pytest.raises(SettingsError, match="allocator is reserved-max"):
        build_engine(changed(config, cache_disk=str(tmp_path), allocator="reserved-max"))
    with pytest.raises(SettingsError, match=r"cache_disk_size is 100 bytes, and one block takes \d+"):
        build_engine(changed(config, cache_disk=str(tmp_path), cache_disk_size_bytes=100))
    assert not list(tmp_path.iterdir())


def test_the_folder_keeps_its_size(config: EngineConfig, tmp_path: Path) -> None:
    probe = build_engine(config)
    size = 20 * (probe.info.block_bytes * (2 if config.backend == "reference" else 1) + 200)
    probe.close()
    engine = build_engine(changed(config, cache_disk=str(tmp_path), cache_disk_size_bytes=size))
    for number in range(5):
        run(engine, flood(number))
    written(engine)
    engine.close()
    assert size // 2 < sum(path.stat().st_size for path in files(tmp_path)) <= size


async def test_an_engine_process_that_was_killed_finds_its_blocks_on_disk(
    config: EngineConfig, tmp_path: Path
) -> None:
    client = await EngineClient.start(changed(config, cache_disk=str(tmp_path)))

    async def ask(name: str, prompt: list[int]) -> tuple[list[object], int]:
        params = SamplingParams(temperature=0.0, max_tokens=6, logprobs=2, seed=1, ignore_eos=True)
        outputs = [output async for output in client.generate(name, prompt, params)]
        return [sample for output in outputs for sample in output.samples], max(
            output.cached_tokens for output in outputs
        )

    try:
        prompt = [(3 * place) % 280 for place in range(100)]
        first, found = await ask("first", prompt)
        assert found == 0
        await ask("flood", list(flood().prompt))
        async with asyncio.timeout(60):
            while len(files(tmp_path)) < 6:  # noqa: ASYNC110 - it comes from another process
                await asyncio.sleep(0.01)
            os.kill(client.info.pid, signal.SIGKILL)
            while not client.restarts or not client.healthy:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert await ask("again", prompt) == (first, 96)
    finally:
        await client.close()


def test_the_fake_disk_of_the_tests_has_every_method() -> None:
    from tests.fakes import FakeDisk

    public = {name for name in vars(DiskCache) if not name.startswith("_")}
    assert public <= set(dir(FakeDisk))
