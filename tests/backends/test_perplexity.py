"""Perplexity on the GPL-3: the accuracy of the default backend as one number."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from benchmarks.perplexity import LIMITS, TEXT, perplexity, score_windows, text_ids
from octavo.config import KvDtype
from octavo.models.store import StoredModel
from tests.backends.conftest import MakeBackend


@pytest.mark.parametrize(
    "kv_dtype",
    ["bf16", *(pytest.param(one, marks=pytest.mark.slow) for one in get_args(KvDtype) if one != "bf16")],
)
def test_native_keeps_the_perplexity(make: MakeBackend, model_dir: Path, kv_dtype: KvDtype) -> None:
    """fp32 arithmetic on the same weights has 18.13."""
    if not TEXT.exists():
        pytest.skip(f"{TEXT} is not there; Debian's base-files has it")
    ids = text_ids(StoredModel.load(model_dir))
    backend = make("native", model_dir, LIMITS, kv_dtype=kv_dtype)
    logprobs = [x for window in score_windows(backend, ids) for x in window]
    assert len(logprobs) == 14 * 256 + 215
    assert 18.0 < perplexity(logprobs) <= 18.26
