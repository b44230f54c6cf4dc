"""From names and knobs to a scheduler's settings: what fits, and what is refused."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from octavo.errors import CapacityError, InvalidParameter
from octavo.simulation.deployment import Deployment
from octavo.simulation.guessing import Guessing
from octavo.speculation.profile import Acceptance, Profile


def test_memory_that_weights_leave_becomes_blocks() -> None:
    deployment = Deployment(model="llama-3-8b", hardware="l4")
    limits = deployment.settings.limits
    assert limits.num_blocks == int((0.9 * 24e9 - 8_030_261_248 * 2) / (128 * 1024)) // 16
    assert limits.max_model_len == 8192 and limits.max_step_tokens == 2048
    quarter = Deployment(model="llama-3-8b", hardware="l4", weight_bits=4.5, kv_bits=8)
    assert quarter.settings.limits.num_blocks > 5 * limits.num_blocks


def test_a_short_memory_shortens_the_longest_sequence() -> None:
    tight = Deployment(model="llama-3-8b", hardware="l4", memory_utilization=0.69)
    limits = tight.settings.limits
    assert limits.max_model_len == limits.num_blocks * 16 < 8192


def test_a_policy_of_whole_prompts_has_steps_for_the_longest() -> None:
    assert Deployment(
        model="opt-13b", hardware="a100-40", policy="continuous", max_step_tokens=512
    ).settings == (
        Deployment(model="opt-13b", hardware="a100-40", policy="continuous", max_step_tokens=512).settings
    )
    settings = Deployment(
        model="opt-13b", hardware="a100-40", policy="continuous", max_step_tokens=512
    ).settings
    assert (settings.limits.max_step_tokens, settings.step_tokens) == (2048, 512)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(CapacityError, match="take fewer bits, more accelerators or others"):
        _ = Deployment(model="llama-3-70b", hardware="l4").settings
    with pytest.raises(InvalidParameter, match="was trained for 2048 tokens"):
        _ = Deployment(model="opt-13b", hardware="a100-80", max_model_len=4096).settings


def test_the_facts_name_sources_and_regimes() -> None:
    facts = dict(Deployment(model="opt-13b", hardware="a100-40", tensor_parallel=2).facts())
    assert facts["machine"].startswith("2 × NVIDIA A100 SXM 40 GB (")
    assert "800 KiB a token" in facts["K and V"]
    assert "memory binds" in facts["critical batch"]


def test_a_draft_model_takes_of_the_same_memory() -> None:
    alone = Deployment(model="llama-3-8b", hardware="l4")
    both = Deployment(model="llama-3-8b", hardware="l4", speculation="0.7", draft_model="smollm2-135m")
    draft = both.draft_pace_with(both.efficiency)
    assert draft is not None
    left = 0.9 * 24e9 - alone.pace.weight_bytes - draft.weight_bytes
    assert both.kv_tokens == int(left / (alone.pace.kv_bytes_per_token + draft.kv_bytes_per_token))
    assert both.kv_tokens < alone.kv_tokens


def test_a_draft_model_has_one_chance_for_every_place(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    work = Acceptance(
        work="code", streams=1, tokens=9, drafts=2, draft_tokens=4, reached_at=(2, 1), accepted_at=(1, 1),
        times_as_fast=1.0,
    )  # fmt: skip
    Profile(model="m", drafter="auto", temperature=0.0, works=(work,)).write(path)
    deployment = Deployment(model="llama-3-8b", hardware="l4", speculation=str(path))
    assert deployment.guessing == Guessing(chances=(0.5, 1.0, 0.0), drafting=2 / 7)
    both = msgspec.structs.replace(deployment, draft_model="smollm2-135m")
    with pytest.raises(InvalidParameter, match="give a share, such as"):
        _ = both.guessing
