"""A minute of everything at once (`make soak`: ten)."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.faults.soak import faults_of, served, soak


@pytest.mark.slow
def test_nothing_grows_and_no_answer_changes(model_dir: Path, tmp_path: Path) -> None:
    """64 clients of every API; a fifth of them leaves, some read slowly, some ask what must be refused."""
    log = tmp_path / "log"
    with served(log) as (port, pid):
        report = asyncio.run(soak(port, pid, float(os.environ.get("SECONDS", "60"))))
    assert not faults_of(report, log)
    assert {"left", "slow", "refused", "chat", "embeddings", "schema"} <= report.done.keys()
