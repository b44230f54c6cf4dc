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
from octavo.engine.guides import Guides
from octavo.engine.heartbeat import Heartbeat
from octavo.engine.messages import EngineInfo
from octavo.engine.steplog import StepLog
from octavo.errors import SettingsError
from octavo.memory.sizing import available_memory_bytes, block_bytes, copies_weights, limits_for
from octavo.models.spec import ModelSpec
from octavo.models.store import StoredModel
from octavo.scheduling.policies import POLICIES
from octavo.scheduling.profiles import PROFILES, Targets
from octavo.scheduling.scheduler import Scheduler, SchedulerConfig
from octavo.speculation.draft_model import ModelDrafter
from octavo.speculation.registry import DRAFTERS, draft_model_of
from octavo.speculation.speculator import MOST_TOKENS, Speculator
from octavo.text.vocabulary import Vocabulary
from octavo.timing.clock import WallClock
from octavo.timing.step_time import TimedLoad

__all__ = ["build_engine"]

_PADDING = 256
"""Tokens by which the vocabularies of a model and its draft model may differ in length: unused ones at the end."""


def build_engine(config: EngineConfig, heartbeat: Heartbeat | None = None) -> Engine:
    """Load the model and make an engine; `heartbeat`: what a parent watches. Raises ModelError or SettingsError, one
    sentence each."""
    heartbeat = heartbeat or Heartbeat()
    model, draft = StoredModel.load(Path(config.model_dir)), _draft_model(config)
    spec = model.spec
    weights_bytes = _weights_bytes(model)
    draft_bytes = _weights_bytes(draft) if draft else 0
    available = available_memory_bytes()  # before the weights: mapped or copied, they take the same
    limits = limits_for(
        spec, config, max(available - weights_bytes - draft_bytes, 0), draft=draft.spec if draft else None
    )
    if config.depth not in (0, 1) or (config.depth and config.backend == "native"):
        raise SettingsError(f"depth is {config.depth}; it is 0 on native, and 0 or 1 on reference.")
    whole_prompts = not POLICIES[config.policy].chunked
    if whole_prompts:
        longest = max(limits.max_step_tokens, limits.max_model_len)
        limits = msgspec.structs.replace(limits, max_step_tokens=longest)
    targets = targets_of(config)
    vocabulary = model.vocabulary()
    if draft:
        _check_draft(spec, vocabulary, draft)
    copied = copies_weights(config, weights_bytes + draft_bytes, available)
    backend = _backend(model, limits, config, copied, heartbeat)
    clock = WallClock()
    drafter = None
    if draft:
        longest = min(limits.max_model_len, draft.spec.context_tokens)
        own = msgspec.structs.replace(limits, max_model_len=longest)
        drafter = ModelDrafter(
            _backend(draft, own, config, copied, heartbeat, beside=backend), vocabulary.size, clock
        )
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
    guides = Guides(vocabulary, spec.eos_ids, threads=info.threads)
    return Engine(
        scheduler,
        backend,
        info,
        clock=clock,
        depth=config.depth,
        log=log,
        carrier=carrier,
        speculator=_speculator(config, scheduler, drafter, guides),
        guides=guides,
        heartbeat=heartbeat,
    )


def _weights_bytes(model: StoredModel) -> int:
    return sum(tensor.nbytes for tensor in model.tensors.values())


def _draft_model(config: EngineConfig) -> StoredModel | None:
    """The model that guesses, where `speculation` names one (by its folder)."""
    name = draft_model_of(config.speculation)
    return None if name is None else StoredModel.load(Path(name))


def _check_draft(spec: ModelSpec, vocabulary: Vocabulary, draft: StoredModel) -> None:
    """Raise SettingsError where the draft model's ids mean something else. Rows of padding may be there or not."""
    own = draft.vocabulary()
    common = min(vocabulary.size, own.size)
    differ = [token for token in range(common) if vocabulary.pieces[token] != own.pieces[token]]
    if differ or abs(vocabulary.size - own.size) > _PADDING:
        what = (
            f"its token {differ[0]} is {own.pieces[differ[0]]!r} instead of {vocabulary.pieces[differ[0]]!r}"
            if differ
            else f"it has {own.size} tokens instead of {vocabulary.size}"
        )
        raise SettingsError(
            f"The draft model '{draft.spec.name}' has another tokenizer than '{spec.name}' ({what}); "
            "take one of the same family."
        )


def _speculator(
    config: EngineConfig, scheduler: Scheduler, model: ModelDrafter | None, guides: Guides
) -> Speculator | None:
    tokens = config.speculation_tokens
    if tokens is not None and not 1 <= tokens <= MOST_TOKENS:
        raise SettingsError(f"speculation_tokens is {tokens}; it must be 1 to {MOST_TOKENS}.")
    if config.speculation == "off":
        return None
    drafter = DRAFTERS["auto" if model is not None else config.speculation]()
    return Speculator(drafter, scheduler, model=model, fixed=tokens, guide_of=guides.of)


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
    return targets.but(config.ttft_target_s, config.tbt_target_s)


def _backend(
    model: StoredModel,
    limits: Limits,
    config: EngineConfig,
    copy_weights: bool,
    heartbeat: Heartbeat,
    *,
    beside: Backend | None = None,
) -> Backend:
    """`beside`: a backend of the same kind, which computes at other times: both use its threads."""
    # Imported here: each brings its own heavy parts.
    if config.backend == "reference":
        from octavo.backends.reference import ReferenceBackend

        return ReferenceBackend(model, limits, kv_dtype=config.kv_dtype, depth=config.depth)
    from octavo.backends.native import NativeBackend

    assert beside is None or isinstance(beside, NativeBackend)
    return NativeBackend(
        model,
        limits,
        kv_dtype=config.kv_dtype,
        threads=config.threads,
        copy_weights=copy_weights,
        beside=beside,
        progress=heartbeat.progress,
    )
