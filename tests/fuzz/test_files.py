"""Mutated files of others: each is read or refused with one sentence, in memory that is bounded.

OCTAVO_FUZZ_SEED, OCTAVO_FUZZ_COUNT and OCTAVO_FUZZ_CASE as in test_bodies. Model files: tests/models/test_fuzz.
"""

from __future__ import annotations

import shutil
import zlib
from pathlib import Path

import msgspec
import pytest

from octavo.engine import steplog
from octavo.engine.replay import replay
from octavo.engine.steplog import Head
from octavo.errors import ModelError
from octavo.models.store import StoredModel
from tests.engine.test_replay import record
from tests.fuzz.apart import run_apart
from tests.fuzz.files import KINDS
from tests.fuzz.mutator import chosen


@pytest.fixture(scope="module")
def folder(packed_model: StoredModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of each kind, whole."""
    folder = tmp_path_factory.mktemp("files") / "model"
    shutil.copytree(packed_model.dir, folder)
    record(folder / "steps.jsonl", 0)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_file_is_read_or_refused(folder: Path, kind: str) -> None:
    print(kind, run_apart("tests.fuzz.files", [kind, str(folder)], chosen(4000)))


def _with_head(path: Path, target: Path, **changes: object) -> Path:
    first, *others = path.read_bytes().splitlines(keepends=True)
    head = msgspec.json.decode(first, type=Head)
    target.write_bytes(
        msgspec.json.encode(msgspec.structs.replace(head, **changes)) + b"\n" + b"".join(others)
    )
    return target


def test_a_step_log_that_unpacks_to_gigabytes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path / "steps.jsonl", 0)
    monkeypatch.setattr(steplog, "_MAX_PIECES_BYTES", 1 << 20)
    bomb = zlib.compress(bytes(2 << 20))
    assert len(bomb) < 1 << 14
    with pytest.raises(ModelError, match="damaged head"):
        replay(_with_head(tmp_path / "steps.jsonl", tmp_path / "bomb.jsonl", pieces=bomb))


def test_a_step_log_of_a_machine_that_cannot_be_is_refused(tmp_path: Path) -> None:
    record(tmp_path / "steps.jsonl", 0)
    head = msgspec.json.decode((tmp_path / "steps.jsonl").read_bytes().splitlines()[0], type=Head)
    limits = msgspec.structs.replace(head.config.limits, num_blocks=10**11)
    config = msgspec.structs.replace(head.config, limits=limits)
    with pytest.raises(ModelError, match="num_blocks"):
        replay(_with_head(tmp_path / "steps.jsonl", tmp_path / "large.jsonl", config=config))
