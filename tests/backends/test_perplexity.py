"""Perplexity on the GPL-3: the accuracy of the default backend as one number."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.perplexity import LIMITS, TEXT, perplexity, score_windows, text_ids
from octavo.models.store import StoredModel
from tests.backends.conftest import MakeBackend


def test_native_keeps_the_perplexity(make: MakeBackend, model_dir: Path) -> None:
    """fp32 arithmetic on the same weights has 18.13."""
    if not TEXT.exists():
        pytest.skip(f"{TEXT} is not there; Debian's base-files has it")
    ids = text_ids(StoredModel.load(model_dir))
    logprobs = [x for window in score_windows(make("native", model_dir, LIMITS), ids) for x in window]
    assert len(logprobs) == 14 * 256 + 215
    assert 18.0 < perplexity(logprobs) <= 18.26
