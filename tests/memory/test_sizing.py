"""Sizes from settings: what fits, and what is refused with the numbers."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from octavo.config import EngineConfig
from octavo.errors import SettingsError
from octavo.memory.sizing import (
    available_memory_bytes,
    block_bytes,
    copies_weights,
    limits_for,
    workspace_bytes,
)
from octavo.models.program import Program
from octavo.models.spec import KVGroup, ModelSpec, Rope

SPEC = ModelSpec(
    name="m", architecture="llama", vocab_size=300, hidden=64, layers=2, heads=2, kv_heads=1, head_dim=32, ffn=64,
    context_tokens=1000, bos_id=None, eos_ids=(2,), add_bos=False, chat_template=None,
    rope=Rope(10000.0, 32, True), kv_groups=(KVGroup((0, 1), 1, 32),), program=Program((), (), ()), weights_hash="0",
)  # fmt: skip
PER_BLOCK = 2 * 2 * 32 * 16 * 2


def config(**changes: object) -> EngineConfig:
    return EngineConfig(model_dir="/m", **changes)  # type: ignore[arg-type]


def test_block_bytes() -> None:
    assert block_bytes(SPEC, 16, "bf16") == PER_BLOCK
    assert block_bytes(SPEC, 16, "fp32") == 2 * PER_BLOCK


def test_a_quarter_of_what_is_free_but_no_more_than_could_be_used() -> None:
    assert limits_for(SPEC, config(), available_bytes=400 * PER_BLOCK).num_blocks == 100
    assert limits_for(SPEC, config(max_running=2), available_bytes=1 << 40).num_blocks == 2 * 63


def test_a_share_of_what_is_free_when_asked_for_and_a_size_wins() -> None:
    asked = config(memory_utilization=0.5, threads=1)
    beside = workspace_bytes(SPEC, asked)
    assert limits_for(SPEC, asked, available_bytes=beside + 400 * PER_BLOCK).num_blocks == 200
    with pytest.raises(SettingsError, match=f"{beside} bytes beside the cache"):
        limits_for(SPEC, asked, available_bytes=beside)
    both = config(memory_utilization=0.5, kv_memory_bytes=10 * PER_BLOCK)
    assert limits_for(SPEC, both, available_bytes=400 * PER_BLOCK).num_blocks == 10


def test_a_draft_model_has_as_many_blocks_of_its_own() -> None:
    draft = msgspec.structs.replace(SPEC, kv_groups=(KVGroup((0,), 1, 32),))
    assert limits_for(SPEC, config(), available_bytes=600 * PER_BLOCK, draft=draft).num_blocks == 100
    asked = config(kv_memory_bytes=30 * PER_BLOCK)
    assert limits_for(SPEC, asked, available_bytes=400 * PER_BLOCK, draft=draft).num_blocks == 20
    with pytest.raises(SettingsError, match=f"takes {30 * PER_BLOCK * 3 // 2} bytes"):
        limits_for(SPEC, config(num_blocks=30), available_bytes=30 * PER_BLOCK, draft=draft)


def test_the_longest_sequence_is_what_the_memory_holds() -> None:
    assert limits_for(SPEC, config(kv_memory_bytes=10 * PER_BLOCK)).max_model_len == 160
    assert limits_for(SPEC, config(kv_memory_bytes=1000 * PER_BLOCK)).max_model_len == 1000


@pytest.mark.parametrize(
    ("changes", "numbers"),
    [
        ({"kv_memory_bytes": PER_BLOCK - 1}, (PER_BLOCK - 1, PER_BLOCK)),
        ({"num_blocks": 0}, ("num_blocks is 0",)),
        ({"num_blocks": -1}, ("num_blocks is -1",)),
        ({"num_blocks": 99_999_999_999}, ("num_blocks is 99999999999", 99_999_999_999 * PER_BLOCK, 1 << 30)),
        ({"kv_memory_bytes": 1 << 40}, ("kv_memory is 1099511627776", 1 << 30)),
        ({"num_blocks": 4, "max_model_len": 65}, (65, 64)),
        ({"max_model_len": 1001}, (1001, 1000)),
        ({"max_model_len": 0}, ("max_model_len is 0", "2 … 1000")),
        ({"max_model_len": 1}, ("max_model_len is 1", "2 … 1000")),
        ({"max_running": 0}, (0,)),
        ({"max_step_tokens": 20, "max_running": 21}, (20, 21)),
        ({"max_step_tokens": 15, "max_running": 1}, (15, 16)),
        ({"block_size": 8}, (8, 16)),
        ({"memory_utilization": 1.5}, (1.5,)),
        ({"memory_utilization": 0.0}, (0.0,)),
    ],
)
def test_settings_that_cannot_work_are_refused_with_numbers(
    changes: dict[str, object], numbers: tuple[float | str, ...]
) -> None:
    with pytest.raises(SettingsError) as caught:
        limits_for(SPEC, config(**changes), available_bytes=1 << 30)
    assert all(str(number) in str(caught.value) for number in numbers)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_blocks": 1000}, "num_blocks is 1000"),
        ({"kv_memory_bytes": 1000 * PER_BLOCK}, f"kv_memory is {1000 * PER_BLOCK} bytes"),
        ({"memory_utilization": 0.5}, "memory_utilization is 0.5"),
        ({"num_blocks": 126}, None),
        ({}, None),
    ],
)
def test_what_is_cut_to_what_can_be_used_is_said(
    changes: dict[str, object], said: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    assert limits_for(SPEC, config(max_running=2, **changes), available_bytes=1 << 30).num_blocks == 2 * 63
    assert len(caplog.messages) == (said is not None)
    if said is not None:
        [message] = caplog.messages
        assert message.startswith(said)
        assert f"126 blocks ({126 * PER_BLOCK} bytes" in message


def test_available_memory_is_the_smaller_of_machine_and_cgroup(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:    8000 kB\n")
    assert available_memory_bytes(tmp_path) == 8000 * 1024
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text("1000\n")
    assert available_memory_bytes(tmp_path) == 8000 * 1024
    (group / "memory.max").write_text("500000\n")
    assert available_memory_bytes(tmp_path) == 499000
    (group / "memory.stat").write_text("anon 100\ninactive_file 600\n")  # files that can be dropped
    assert available_memory_bytes(tmp_path) == 499600
    (group / "memory.stat").write_text("inactive_file 5000\n")  # read a moment later than the usage
    assert available_memory_bytes(tmp_path) == 500000


@pytest.mark.parametrize(
    ("listed", "top", "limit", "usage"),
    [
        ("0::/system.slice/octavo.service", "sys/fs/cgroup", "memory.max", "memory.current"),
        (
            "2:cpu,cpuacct:/a\n3:memory:/system.slice/octavo.service\n0::/",
            "sys/fs/cgroup/memory",
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
        ),
    ],
)
def test_every_group_around_the_process_limits_it(
    tmp_path: Path, listed: str, top: str, limit: str, usage: str
) -> None:
    """A service of systemd, which sees the whole tree."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemAvailable:    8000 kB\n")
    (tmp_path / "proc/self/cgroup").write_text(f"{listed}\n")
    own = tmp_path / top / "system.slice/octavo.service"
    own.mkdir(parents=True)
    (own / limit).write_text("600000\n")
    (own / usage).write_text("1000\n")
    assert available_memory_bytes(tmp_path) == 599000
    (own.parent / limit).write_text("500000\n")
    (own.parent / usage).write_text("200000\n")
    assert available_memory_bytes(tmp_path) == 300000
    other = own.parent / "other.service"
    other.mkdir()
    (other / limit).write_text("5\n")
    (other / usage).write_text("0\n")
    assert available_memory_bytes(tmp_path) == 300000


@pytest.mark.parametrize(
    ("modes", "available", "copied"),
    [
        ("always [madvise] never", 400, True),
        ("[always] madvise never", 400, True),
        ("always madvise [never]", 400, False),
        ("always [madvise] never", 399, False),
        (None, 400, False),
    ],
)
def test_weights_are_copied_where_huge_pages_are_and_memory_is_plenty(
    tmp_path: Path, modes: str | None, available: int, copied: bool
) -> None:
    folder = tmp_path / "sys/kernel/mm/transparent_hugepage"
    folder.mkdir(parents=True)
    if modes is not None:
        (folder / "enabled").write_text(f"{modes}\n")
    assert copies_weights(config(), 100, available, tmp_path) is copied
    assert copies_weights(config(weights="copy"), 100, available, tmp_path)
    assert not copies_weights(config(weights="map"), 100, available, tmp_path)
