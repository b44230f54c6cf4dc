"""A block's bytes, read out and written to another place or backend, answer as if they had been computed there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.backends.base import Backend, ChoiceRule, Limits, Plan, PlanError, PlanRow, SampleRow, SlotOpen
from octavo.backends.native import NativeBackend
from octavo.backends.reference import ReferenceBackend
from octavo.config import KvDtype
from octavo.models.store import open_model

LIMITS = Limits(num_blocks=8, block_size=16, max_slots=2, max_step_tokens=64, max_model_len=64)
PROMPT = tuple(range(30, 70))
RULE = ChoiceRule(prompt_tokens=len(PROMPT), logprobs=5)


@pytest.fixture(params=["native", "reference"])
def make(request: pytest.FixtureRequest, tiny_model_path: Path, tmp_path: Path) -> Any:
    model = open_model(tiny_model_path, cache=tmp_path, packed=request.param == "native")
    if request.param == "native":
        return lambda kv: NativeBackend(model, LIMITS, kv_dtype=kv, threads=2)
    return lambda kv: ReferenceBackend(model, LIMITS, kv_dtype=kv)


def answer(backend: Backend, step: int, blocks: tuple[int, ...], start: int) -> object:
    """Compute the prompt from `start` on in these blocks; the token and its log-probabilities."""
    plan = Plan(
        step,
        opens=(SlotOpen(0, PROMPT, (blocks,), RULE),),
        rows=(PlanRow(0, start, len(PROMPT) - start),),
        samples=(SampleRow(0, len(PROMPT) - start - 1, 0),),
    )
    handle = backend.launch(plan)
    backend.sample(handle)
    return backend.collect(handle)


@pytest.mark.parametrize("kv", ["bf16", "fp32", "int8"])
def test_blocks_move_between_places_and_backends_bit_for_bit(make: Any, kv: KvDtype) -> None:
    first, second = make(kv), make(kv)
    try:
        cold = answer(first, 0, (1, 2, 3), 0)
        data = [first.read_block(0, block) for block in (1, 2)]
        assert len(data[0]) == len(data[1]) > 0 and data[0] != data[1]
        for backend, blocks in ((first, (6, 5)), (second, (0, 7))):
            for block, each in zip(blocks, data, strict=True):
                backend.write_block(0, block, each)
                assert backend.read_block(0, block) == each
            assert answer(backend, 1, (*blocks, 4), 32) == cold
        second.write_block(0, 7, data[0])
        assert answer(second, 2, (0, 7, 4), 32) != cold
    finally:
        first.close()
        second.close()


def test_random_bytes_come_back_as_they_were(make: Any) -> None:
    backend = make("bf16")
    try:
        size = len(backend.read_block(0, 0))
        data = np.random.default_rng(0).integers(0, 256, size, np.uint8).tobytes()
        backend.write_block(0, 3, data)
        assert backend.read_block(0, 3) == data
        assert not any(backend.read_block(0, 2)) and not any(backend.read_block(0, 4))
    finally:
        backend.close()


def test_what_does_not_exist_is_a_plan_error(make: Any) -> None:
    backend = make("bf16")
    data = backend.read_block(0, 0)
    for group, block in ((0, 8), (0, -1), (1, 0), (-1, 0)):
        with pytest.raises(PlanError):
            backend.read_block(group, block)
        with pytest.raises(PlanError):
            backend.write_block(group, block, data)
    for other in (b"", data[:-1], data + b"x"):
        with pytest.raises(PlanError, match="bytes for a block"):
            backend.write_block(0, 0, other)
    backend.close()
    with pytest.raises(PlanError):
        backend.read_block(0, 0)
