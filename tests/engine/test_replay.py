"""A recorded run, replayed, gives identical plans; a changed one is found."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import get_args

import pytest

from octavo.config import AllocatorName, PolicyName
from octavo.engine.replay import replay
from octavo.engine.steplog import StepLog
from octavo.errors import ModelError, SettingsError
from octavo.scheduling.profiles import Targets
from octavo.timing.step_time import StepLoad, TimedLoad
from tests.fakes import FakeDisk, limits, make_engine, request, run


def record(path: Path, depth: int) -> int:
    engine = make_engine(limits(num_blocks=16, max_step_tokens=24), depth=depth, log=str(path))
    adds = [
        request(f"r{i}", f"{i} prompt " * (i + 1), max_tokens=30, n=1 + i % 2, seed=i, stop=("qq",), logprobs=1,
                prompt_logprobs=0 if i % 3 == 0 else None, logit_bias={3: 1.5})
        for i in range(6)
    ]  # fmt: skip
    for add in adds[:3]:
        engine.add(add)
    for _ in range(5):
        engine.step()
    engine.abort("r1")
    run(engine, *adds[3:])
    stats = engine.stats()
    engine.close()
    assert stats.preemptions > 0
    return stats.steps


@pytest.mark.parametrize("depth", [0, 1])
def test_a_replay_gives_the_same_plans(tmp_path: Path, depth: int) -> None:
    path = tmp_path / "steps.jsonl"
    steps = record(path, depth)
    [report] = replay(path)
    assert report.difference is None and report.steps == steps and report.tokens > 0
    assert report.preemptions > 0 and not report.unfinished and not report.cut


@pytest.mark.parametrize("depth", [0, 1])
def test_a_replay_needs_no_disk(tmp_path: Path, depth: int) -> None:
    path = tmp_path / "steps.jsonl"
    disk = FakeDisk(losses=0.1, delay=0.5, most=40)
    for _ in range(2):
        engine = make_engine(limits(num_blocks=16, max_step_tokens=24), depth=depth, log=str(path), disk=disk)
        for number in range(4):
            prompts = [chr(97 + i) * 70 + str(number) * 9 for i in range(3)]
            run(engine, *(request(f"{number}.{i}", p, max_tokens=20) for i, p in enumerate(prompts)))
        assert engine.stats().disk_hit_tokens > 0
        engine.close()
        disk.restart()
    text = path.read_text()
    reports = replay(path)
    assert len(reports) == 2 and all(report.steps > 0 for report in reports)
    assert [report.difference for report in reports] == [None, None]
    events = [json.loads(line) for line in text.splitlines()]
    place, event = next(
        (place, event)
        for place, event in enumerate(events)
        if event["type"] == "schedule" and event["inputs"][3] and event["inputs"][3][1]
    )
    event["inputs"][3][1] = []  # what was fetched had not come
    events[place] = event
    path.write_text("\n".join(map(json.dumps, events)) + "\n")
    assert "plan." in (replay(path)[0].difference or "")


@pytest.mark.parametrize("lost", [2, 40, 100_000])
def test_a_log_cut_off_by_a_crash_still_replays_and_says_so(tmp_path: Path, lost: int) -> None:
    path = tmp_path / "steps.jsonl"
    steps = record(path, 0)
    whole = path.read_bytes()
    path.write_bytes(whole[: max(len(whole) - lost, len(whole) // 2)])
    [report] = replay(path)
    assert report.difference is None and 0 < report.steps <= steps
    assert report.cut


def test_a_step_that_was_launched_and_never_finished_is_told(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    record(path, 0)
    lines = path.read_bytes().splitlines(keepends=True)
    last = max(i for i, line in enumerate(lines) if b'"type":"commit"' in line)
    path.write_bytes(b"".join(lines[:last]))
    [report] = replay(path)
    assert report.unfinished == (json.loads(lines[last])["step"],)
    assert not report.cut


@pytest.mark.parametrize("lost", [0, 40])
def test_a_new_engine_adds_its_run_to_the_dead_one_s(tmp_path: Path, lost: int) -> None:
    path = tmp_path / "steps.jsonl"
    record(path, 0)
    before = path.read_bytes()[: -lost or None]
    path.write_bytes(before)
    steps = record(path, 1)
    assert path.read_bytes().startswith(before)
    first, second = replay(path)
    assert first.difference is second.difference is None
    assert first.cut == bool(lost) and not second.cut
    assert first.steps > 0 and second.steps == steps


def test_a_difference_hides_no_later_run(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    record(path, 0)
    path.write_text(path.read_text().replace('"max_step_tokens":24', '"max_step_tokens":23'))
    steps = record(path, 0)
    first, second = replay(path)
    assert first.difference is not None
    assert second.difference is None and second.steps == steps


@pytest.mark.parametrize("content", ["my prompts\n", "x", '{"type":"commit","step":1,"samples":[]}\n'])
def test_a_file_that_is_no_log_is_not_written_to(tmp_path: Path, content: str) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(content)
    with pytest.raises(SettingsError, match="something else than a step log"):
        make_engine(log=str(path))
    assert path.read_text() == content
    with pytest.raises(SettingsError, match="not a regular file"):
        make_engine(log=os.devnull)


def test_two_engines_do_not_write_one_log(tmp_path: Path) -> None:
    path = str(tmp_path / "steps.jsonl")
    first = make_engine(log=path)
    with pytest.raises(SettingsError, match="written by another engine"):
        make_engine(log=path)
    first.close()
    make_engine(log=path).close()


def test_a_full_disk_ends_the_log_and_not_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "steps.jsonl"
    engine = make_engine(log=str(path))
    log = engine._log
    assert isinstance(log, StepLog) and log._file is not None
    log._file.close()
    log._file = Path("/dev/full").open("wb")  # noqa: SIM115 - the log closes it
    run(engine, request("a", "a prompt", max_tokens=5))
    assert engine.stats().steps > 0
    assert f"{path} ends here: No space left on device" in caplog.text
    assert len(caplog.records) == 1
    engine.close()


def test_a_changed_plan_is_found_and_its_first_field_named(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    record(path, 0)
    lines = path.read_bytes().split(b"\n")
    place = next(i for i, line in enumerate(lines) if i > 8 and b'"type":"schedule"' in line)
    event = json.loads(lines[place])
    step, _, _, rows, *_ = event["plan"]
    rows[0][1] += 7
    lines[place] = json.dumps(event).encode()
    path.write_bytes(b"\n".join(lines))
    [report] = replay(path)
    start = rows[0][1]
    assert report.difference == (
        f"step {step}: plan.rows[0].start is {start} in the log and {start - 7} in the replay"
    )
    rows.pop()
    lines[place] = json.dumps(event).encode()
    path.write_bytes(b"\n".join(lines))
    [report] = replay(path)
    assert report.difference is not None and len(report.difference) < 200


def test_a_replay_in_which_the_scheduler_fails_names_the_step(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    record(path, 0)
    lines = path.read_bytes().split(b"\n")
    place = next(i for i, line in enumerate(lines) if b'"type":"commit"' in line)
    event = json.loads(lines[place])
    event["samples"] = []
    lines[place] = json.dumps(event).encode()
    path.write_bytes(b"\n".join(lines))
    [report] = replay(path)
    assert report.difference is not None and "the scheduler fails in the replay" in report.difference


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"{}\n", b"not a log\n", b'{"type":"commit","step":1,"samples":[]}\n']
)
def test_what_is_no_log_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(ModelError):
        replay(path)
    with pytest.raises(ModelError, match="cannot be read"):
        replay(tmp_path / "absent")


def test_a_flipped_byte_anywhere_is_no_fault_of_ours(tmp_path: Path) -> None:
    """A ModelError with the path, or a run that differs; never another exception."""
    path = tmp_path / "steps.jsonl"
    record(path, 0)
    whole = path.read_bytes()
    head = whole.index(b"\n")
    refusals = []
    for place in [*range(0, head, 97), *range(head, len(whole), 997)]:
        damaged = bytearray(whole)
        damaged[place] = ord("B") if damaged[place] == ord("A") else ord("A")
        path.write_bytes(damaged)
        try:
            replay(path)
        except ModelError as error:
            refusals.append(str(error))
    assert refusals and all(str(path) in refusal for refusal in refusals)


@pytest.mark.parametrize("policy", get_args(PolicyName))
@pytest.mark.parametrize("allocator", ["paged", "reserved-pow2"])
def test_a_replay_knows_policies_allocators_targets_and_searches(
    tmp_path: Path, policy: PolicyName, allocator: AllocatorName
) -> None:
    path = tmp_path / "steps.jsonl"
    engine = make_engine(
        limits(num_blocks=24, max_step_tokens=256),
        log=str(path),
        policy=policy,
        allocator=allocator,
        budget_tokens=40,
        targets=Targets(tbt_s=0.03),
        measured=tuple(TimedLoad(StepLoad(n, 1, 0, n), 0.005 + 0.001 * n) for n in (1, 4, 16, 64)),
        aging_s=0.5,
    )
    adds = [
        request(f"r{i}", f"{i} prompt " * (i + 1), max_tokens=30, n=1 + i % 2, seed=i, priority=i % 3,
                tenant="ab"[i % 2], profile=(None, "chat", "batch")[i % 3], best_of=3 if i == 4 else None)
        for i in range(6)
    ]  # fmt: skip
    if allocator == "paged":
        adds.append(request("beams", "a beam", beam_width=3, temperature=0.0, max_tokens=12))
    for add in adds:
        engine.add(add)
        engine.step()
        engine.clock.advance(0.02)  # type: ignore[attr-defined]
    run(engine)
    steps = engine.stats().steps
    engine.close()
    [report] = replay(path)
    assert report.difference is None and report.steps == steps
