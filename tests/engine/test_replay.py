"""A recorded run, replayed, gives identical plans; a changed one is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.engine.replay import replay
from octavo.errors import ModelError
from tests.fakes import limits, make_engine, request, run


def record(path: Path, depth: int) -> int:
    engine = make_engine(limits(num_blocks=16, max_step_tokens=24), depth=depth, log=str(path))
    adds = [
        request(f"r{i}", "prompt " * (i + 1), max_tokens=30, n=1 + i % 2, seed=i, stop=("qq",), logprobs=1,
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
    report = replay(path)
    assert (
        report.difference is None and report.steps == steps and report.tokens > 0 and report.preemptions > 0
    )


def test_a_log_cut_off_by_a_crash_still_replays(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    steps = record(path, 0)
    path.write_bytes(path.read_bytes()[:-40])
    report = replay(path)
    assert report.difference is None and 0 < report.steps <= steps


def test_a_changed_plan_is_found(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    record(path, 0)
    lines = path.read_bytes().split(b"\n")
    place = next(i for i, line in enumerate(lines) if i > 8 and b'"type":"schedule"' in line)
    lines[place] = lines[place].replace(b'"plan":[', b'"plan":[1', 1)
    path.write_bytes(b"\n".join(lines))
    report = replay(path)
    assert report.difference is not None and report.difference.startswith("step 1")


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
