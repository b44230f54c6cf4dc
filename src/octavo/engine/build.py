"""From settings to a running engine: the one place that knows which classes there are."""

from __future__ import annotations

import math
import os
from pathlib import Path

import msgspec

from octavo.backends.base import Backend, Limits
from octavo.config import EngineConfig
from octavo.engine.calibration import check_target, measure
from octavo.engine.carrier import open_carrier
from octavo.engine.engine import Engine
from octavo.engine.messages import EngineInfo
from octavo.engine.steplog import StepLog
from octavo.errors import SettingsError
from octavo.memory.sizing import available_memory_bytes, block_bytes, copies_weights, limits_for
from octavo.models.store import StoredModel
from octavo.scheduling.policies import POLICIES
from octavo.scheduling.profiles import PROFILES, Targets
from octavo.scheduling.scheduler import Scheduler, SchedulerConfig
from octavo.speculation.registry import DRAFTERS
from octavo.speculation.speculator import MOST_TOKENS, Speculator
from octavo.text.vocabulary import Vocabulary
from octavo.timing.clock import WallClock
from octavo.timing.step_time import TimedLoad

__all__ = ["build_engine"]


def build_engine(config: EngineConfig) -> Engine:
    """Load the model and make an engine. Raises ModelError or SettingsError, one sentence each."""
    model = StoredModel.load(Path(config.model_dir))
    spec = model.spec
    weights_bytes = sum(tensor.nbytes for tensor in model.tensors.values())
    available = available_memory_bytes()  # before the weights: mapped or copied, they take the same
    limits = limits_for(spec, config, max(available - weights_bytes, 0))
    if config.depth not in (0, 1) or (config.depth and config.backend == "native"):
        raise SettingsError(f"depth is {config.depth}; it is 0 on native, and 0 or 1 on reference.")
    whole_prompts = not POLICIES[config.policy].chunked
    if whole_prompts:
        longest = max(limits.max_step_tokens, limits.max_model_len)
        limits = msgspec.structs.replace(limits, max_step_tokens=longest)
    targets = targets_of(config)
    backend = _backend(model, limits, config, copies_weights(config, weights_bytes, available))
    vocabulary = model.vocabulary()
    clock = WallClock()
    measured: tuple[TimedLoad, ...] = ()
    if targets.between_s(None, in_first_sentence=True) is not None:
        measured = measure(backend, len(spec.kv_groups), clock)
        check_target(config.tbt_target_s, measured)
    carrier = open_carrier(config, backend)
    settings = SchedulerConfig(
        limits,
        len(spec.kv_groups),
        spec.eos_ids,
        prefix_cache=config.prefix_cache,
        policy=config.policy,
        allocator=config.allocator,
        budget_tokens=config.max_step_tokens,
        targets=targets,
        aging_s=config.priority_aging_s,
        measured=measured,
        disk_fetches=carrier.most_fetches if carrier else 0,
    )
    scheduler = Scheduler(settings, vocabulary)
    info = EngineInfo(
        model=spec.name,
        backend=backend.name,
        invariant=backend.invariant,
        arithmetic_id=backend.arithmetic_id,
        capacity=scheduler.capacity,
        num_blocks=limits.num_blocks,
        block_size=limits.block_size,
        block_bytes=block_bytes(spec, limits.block_size, config.kv_dtype),
        max_step_tokens=limits.max_step_tokens,
        kv_dtype=config.kv_dtype,
        threads=getattr(backend, "threads", 1),
        pid=os.getpid(),
    )
    try:
        log = _step_log(config, settings, vocabulary)
    except SettingsError:
        if carrier:
            carrier.close(())
        raise
    return Engine(
        scheduler,
        backend,
        info,
        clock=clock,
        depth=config.depth,
        log=log,
        carrier=carrier,
        speculator=_speculator(config, scheduler),
    )


def _speculator(config: EngineConfig, scheduler: Scheduler) -> Speculator | None:
    tokens = config.speculation_tokens
    if tokens is not None and not 1 <= tokens <= MOST_TOKENS:
        raise SettingsError(f"speculation_tokens is {tokens}; it must be 1 to {MOST_TOKENS}.")
    if config.speculation == "off":
        return None
    return Speculator(DRAFTERS[config.speculation](), scheduler, fixed=tokens)


def _step_log(config: EngineConfig, settings: SchedulerConfig, vocabulary: Vocabulary) -> StepLog | None:
    if config.step_log is None:
        return None
    try:
        return StepLog(config.step_log, settings, vocabulary)
    except OSError as error:
        raise SettingsError(f"step_log {config.step_log} cannot be written: {error.strerror}.") from None


def targets_of(config: EngineConfig) -> Targets:
    """The server's own targets: its profile's, and what was set by itself. Raises SettingsError."""
    for name in ("tbt_target_s", "ttft_target_s", "priority_aging_s"):
        value = getattr(config, name)
        if value is not None and not (0 <= value < math.inf and (value or name == "priority_aging_s")):
            raise SettingsError(f"{name.removesuffix('_s')} is {value:g} s; it must be a time above 0.")
    targets = PROFILES[config.profile] if config.profile else Targets()
    given = {"tbt_s": config.tbt_target_s, "ttft_s": config.ttft_target_s}
    return msgspec.structs.replace(
        targets, **{name: value for name, value in given.items() if value is not None}
    )


def _backend(model: StoredModel, limits: Limits, config: EngineConfig, copy_weights: bool) -> Backend:
    # Imported here: each brings its own heavy parts.
    if config.backend == "reference":
        from octavo.backends.reference import ReferenceBackend

        return ReferenceBackend(model, limits, kv_dtype=config.kv_dtype, depth=config.depth)
    from octavo.backends.native import NativeBackend

    return NativeBackend(
        model, limits, kv_dtype=config.kv_dtype, threads=config.threads, copy_weights=copy_weights
    )
