"""What fits into memory: KV blocks, by a setting or by what is free, and a copy of the weights. Knows no tensors."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from octavo.backends.base import Limits
from octavo.config import EngineConfig, KvDtype
from octavo.errors import SettingsError
from octavo.models.spec import ModelSpec

__all__ = ["available_memory_bytes", "block_bytes", "copies_weights", "limits_for", "workspace_bytes"]

_logger = logging.getLogger(__name__)

_DEFAULT_SHARE = 4
_DEFAULT_MOST_BYTES = 4 << 30
_COPY_SHARE = 4
_PROCESS_BYTES = 64 << 20
_SHORTEST = 2
"""Tokens of the shortest sequence that makes sense: one of a prompt, one of an answer."""
_HEAD_BYTES: dict[KvDtype, Callable[[int], int]] = {
    "bf16": lambda head_dim: 2 * head_dim,
    "fp32": lambda head_dim: 4 * head_dim,
    "int8": lambda head_dim: head_dim + 4,
}
"""Bytes of K, or of V, of one token and head. int8 has a scale in fp32."""


def block_bytes(spec: ModelSpec, block_size: int, kv_dtype: KvDtype) -> int:
    """Bytes of one block: K and V of `block_size` tokens in all layers (of the largest KV group)."""
    return max(
        2 * len(group.layers) * group.kv_heads * block_size * _HEAD_BYTES[kv_dtype](group.head_dim)
        for group in spec.kv_groups
    )


def available_memory_bytes(root: Path = Path("/")) -> int:
    """What this process may still use: the machine's available memory, or less if a cgroup says so. Both count
    files that were read and can be dropped, such as the weights' own, as available."""
    candidates: list[int] = []
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
        candidates.extend(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except OSError:
        candidates.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)
    for group, limit, usage, files in _cgroups(root):
        try:
            most, used = (group / limit).read_text().strip(), int((group / usage).read_text())
        except OSError:
            continue
        if most.isdigit():
            candidates.append(max(int(most) - max(used - _counter(group / "memory.stat", files), 0), 0))
    return min(candidates)


def _cgroups(root: Path) -> Iterator[tuple[Path, str, str, str]]:
    """Every group that can limit this process, and its files: limit, usage, and what in its statistics can be dropped.

    A container sees its own group as the root; a service of systemd sees the whole tree, and is limited by its group
    and by those above it.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = ["0::/", "1:memory:/"]
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            top, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            top = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        own = PurePosixPath(path.lstrip("/"))
        for group in (own, *own.parents):
            yield top / group, *names


def _counter(path: Path, name: str) -> int:
    """A number of a cgroup's statistics; 0 where it has none."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return next((int(value) for key, _, value in (line.partition(" ") for line in lines) if key == name), 0)


def copies_weights(
    config: EngineConfig, weights_bytes: int, available_bytes: int, root: Path = Path("/")
) -> bool:
    """Whether the native backend reads its weights into huge pages, instead of mapping their file.

    A step reads all weights, a third faster from huge pages. But a copy is memory that the system cannot take back,
    and that a second engine with the same model does not share: with `weights` "auto" only where it is a quarter of
    `available_bytes` (without the weights) at most, and where the kernel gives out huge pages at all.
    """
    if config.weights != "auto":
        return config.weights == "copy"
    try:
        modes = (root / "sys/kernel/mm/transparent_hugepage/enabled").read_text()
    except OSError:
        return False
    return "[never]" not in modes and weights_bytes * _COPY_SHARE <= available_bytes


def limits_for(
    spec: ModelSpec,
    config: EngineConfig,
    available_bytes: int | None = None,
    *,
    draft: ModelSpec | None = None,
) -> Limits:
    """Every size a backend allocates for; `available_bytes` is what the weights leave free. `draft`: a model that
    guesses for this one, and keeps as many blocks of its own.

    Raises SettingsError, with the numbers, for what cannot work.
    """
    size = config.block_size
    if size != 16:
        raise SettingsError(
            f"block_size is {size}; the kernels lay out blocks of 16 tokens, so it must be 16."
        )
    for name, value in (("max_running", config.max_running), ("max_step_tokens", config.max_step_tokens)):
        if value < 1:
            raise SettingsError(f"{name} is {value}; it must be at least 1.")
    if config.max_step_tokens < size:
        raise SettingsError(
            f"max_step_tokens is {config.max_step_tokens}, less than one block of {size} tokens; give at least that."
        )
    if config.max_step_tokens < config.max_running:
        raise SettingsError(
            f"max_step_tokens is {config.max_step_tokens}, less than max_running {config.max_running}: a step could "
            "not advance every running sequence by one token; raise the one or lower the other."
        )
    if config.memory_utilization is not None and not 0 < config.memory_utilization <= 1:
        raise SettingsError(
            f"memory_utilization is {config.memory_utilization}; it is a share, above 0 and at most 1."
        )
    asked, blocks = _asked_blocks(spec, config, available_bytes, draft)
    holds = blocks * size
    length = config.max_model_len
    if length is None:
        length = min(spec.context_tokens, holds)
    elif not _SHORTEST <= length <= spec.context_tokens:
        raise SettingsError(
            f"max_model_len is {length}; it must lie in {_SHORTEST} … {spec.context_tokens}: room for a prompt and an "
            "answer, and no more than this model was made for."
        )
    elif length > holds:
        raise SettingsError(
            f"max_model_len is {length}, but the KV memory holds {holds} tokens ({blocks} blocks of {size}): a request "
            "of that length could never finish; lower it or give more kv_memory."
        )
    usable = config.max_running * -(-length // size)
    if asked is not None and blocks > usable:
        _logger.warning(
            "%s, but %d sequences of %d tokens can use no more than %d blocks (%s), so no more are taken",
            asked,
            config.max_running,
            length,
            usable,
            _shown(usable * _all_groups_bytes(spec, config, draft)),
        )
    return Limits(
        num_blocks=min(blocks, usable),
        block_size=size,
        max_slots=config.max_running,
        max_step_tokens=config.max_step_tokens,
        max_model_len=length,
    )


def _asked_blocks(
    spec: ModelSpec, config: EngineConfig, available_bytes: int | None, draft: ModelSpec | None
) -> tuple[str | None, int]:
    """The blocks that the settings ask for, and the words for what asked (None: a default did)."""
    each = _all_groups_bytes(spec, config, draft)
    free = available_memory_bytes() if available_bytes is None else available_bytes
    asked = None
    if config.num_blocks is not None:
        asked, memory = f"num_blocks is {config.num_blocks}", config.num_blocks * each
        if config.num_blocks < 1:
            raise SettingsError(f"{asked}; it must be at least 1.")
    elif config.kv_memory_bytes is not None:
        asked, memory = f"kv_memory is {_shown(config.kv_memory_bytes)}", config.kv_memory_bytes
    elif config.memory_utilization is not None:
        workspace = workspace_bytes(spec, config) + (workspace_bytes(draft, config) if draft else 0)
        beside = free - workspace
        if beside <= 0:
            raise SettingsError(
                f"The engine takes about {workspace} bytes beside the cache, and {free} are free beside the weights: "
                "nothing is left for memory_utilization to share."
            )
        asked, memory = (
            f"memory_utilization is {config.memory_utilization}",
            int(beside * config.memory_utilization),
        )
    else:
        memory = min(free // _DEFAULT_SHARE, _DEFAULT_MOST_BYTES)
    if memory > free:
        takes = "" if config.num_blocks is None else f", which takes {_shown(memory)}"
        raise SettingsError(
            f"{asked}{takes}, but only {_shown(free)} of memory are free beside the weights; ask for less, or for "
            "nothing: the default is a quarter of what is free."
        )
    if memory < each:
        raise SettingsError(
            f"The KV memory of {memory} bytes holds no block: one block of {config.block_size} tokens takes {each} "
            f"bytes; give kv_memory at least that, better for {spec.context_tokens} tokens."
        )
    return asked, memory // each


def workspace_bytes(spec: ModelSpec, config: EngineConfig) -> int:
    """What the engine takes beside weights and KV cache, rather more than less: Python and the libraries, logits of 32
    rows, per thread the vocabulary twice and its panels, activations of a step, and the histories of all slots."""
    threads = config.threads or os.cpu_count() or 1
    widths = spec.hidden * 4 + (spec.heads + 2 * spec.kv_heads) * spec.head_dim * 2
    length = config.max_model_len or spec.context_tokens
    return (
        _PROCESS_BYTES
        + 4 * spec.vocab_size * (32 + 2 * threads)
        + threads * (2 << 20)
        + 5 * widths * config.max_step_tokens
        + 4 * length * config.max_running
    )


def _all_groups_bytes(spec: ModelSpec, config: EngineConfig, draft: ModelSpec | None = None) -> int:
    """Bytes of one block in every KV group, of the draft model too."""
    own = block_bytes(spec, config.block_size, config.kv_dtype) * len(spec.kv_groups)
    return own + (_all_groups_bytes(draft, config) if draft else 0)


def _shown(size_bytes: int) -> str:
    return f"{size_bytes} bytes ({size_bytes / 2**30:.1f} GiB)"
