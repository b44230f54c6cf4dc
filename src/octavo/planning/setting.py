"""How a running server is set, and what differs from that by one option. Knows options, no load."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from octavo.backends.base import Limits
from octavo.config import AllocatorName, EngineConfig, PolicyName, ProfileName
from octavo.engine.build import targets_of
from octavo.protocol.watch import Server
from octavo.scheduling.policies import POLICIES
from octavo.scheduling.settings import SchedulerConfig

__all__ = ["Knob", "Setting", "knobs", "setting_of"]

_MOST_SHARE = 0.95
"""Of the memory that is left: more leaves a machine nothing."""
_SPARE = 0.8
"""Of the free memory: what may be given to K and V on top."""
_TBT_FACTORS = (1.5, 3.0)
"""Times a step that only decodes: targets that are tried."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One server's, or several equal ones'. Names are those of `octavo serve`."""

    policy: PolicyName
    allocator: AllocatorName
    prefix_cache: bool
    max_running: int
    max_step_tokens: int
    max_model_len: int
    num_blocks: int
    block_size: int
    tbt_target_s: float | None
    ttft_target_s: float | None
    profile: ProfileName | None
    priority_aging_s: float
    speculates: bool
    replicas: int = 1

    def config(self) -> SchedulerConfig:
        """As `octavo serve` makes it."""
        longest = min(self.max_model_len, self.num_blocks * self.block_size)
        budget = self.max_step_tokens
        targets = targets_of(
            EngineConfig(
                model_dir="",
                tbt_target_s=self.tbt_target_s,
                ttft_target_s=self.ttft_target_s,
                profile=self.profile,
            )
        )
        return SchedulerConfig(
            Limits(
                num_blocks=self.num_blocks,
                block_size=self.block_size,
                max_slots=self.max_running,
                max_step_tokens=budget if POLICIES[self.policy].chunked else max(budget, longest),
                max_model_len=longest,
            ),
            1,
            (),
            prefix_cache=self.prefix_cache,
            policy=self.policy,
            allocator=self.allocator,
            budget_tokens=budget,
            targets=targets,
            aging_s=self.priority_aging_s,
        )


class Knob(NamedTuple):
    """A change by one option."""

    name: str
    value: str
    """In words."""
    option: str
    """Of `octavo serve`."""
    setting: Setting


def setting_of(server: Server) -> Setting:
    """As it is."""
    return Setting(
        policy=server.policy,
        allocator=server.allocator,
        prefix_cache=server.prefix_cache,
        max_running=server.max_running,
        max_step_tokens=server.max_step_tokens,
        max_model_len=server.max_model_len,
        num_blocks=server.num_blocks,
        block_size=server.block_size,
        tbt_target_s=server.tbt_target_s,
        ttft_target_s=server.ttft_target_s,
        profile=server.profile,
        priority_aging_s=server.priority_aging_s,
        speculates=server.speculation != "off",
    )


def knobs(server: Server, decode_s: float, *, guessed: bool) -> Iterator[Knob]:
    """Everything that is tried. `decode_s`: a step in which only decodes are computed. `guessed`: how often guesses are
    right is known, so that it can be told what it is like without."""
    here = setting_of(server)

    def changed(name: str, value: str, option: str, **fields: object) -> Knob:
        return Knob(name, value, option, msgspec.structs.replace(here, **fields))

    for policy in ("stall-free", "prefill-first", "continuous"):
        if policy != here.policy:
            yield changed("policy", policy, f"--policy {policy}", policy=policy)
    for factor in (0.25, 0.5, 2, 4):
        budget = int(here.max_step_tokens * factor)
        if budget >= max(here.block_size, here.max_running):
            yield changed(
                "tokens a step", f"{budget:,}", f"--max-step-tokens {budget}", max_step_tokens=budget
            )
    for factor in (0.25, 0.5, 2, 4):
        most = int(here.max_running * factor)
        if 1 <= most <= here.max_step_tokens:
            yield changed("sequences at once", f"{most:,}", f"--max-running {most}", max_running=most)
    yield from _memory(server, here)
    word = "off" if here.prefix_cache else "on"
    if not (here.prefix_cache and server.cache_disk):
        option = "--no-prefix-cache" if here.prefix_cache else "--prefix-cache"
        yield changed("prefix cache", word, option, prefix_cache=not here.prefix_cache)
    if POLICIES[here.policy].chunked:
        if here.tbt_target_s is not None:
            yield changed("TBT target", "none", "without --tbt-target", tbt_target_s=None)
        for factor in _TBT_FACTORS:
            target_ms = max(round(1e3 * decode_s * factor), 1)
            option = f"--tbt-target {target_ms}ms"
            yield changed("TBT target", f"{target_ms} ms", option, tbt_target_s=target_ms / 1e3)
    if here.allocator != "paged":
        yield changed("allocator", "paged", "--allocator paged", allocator="paged")
    if here.speculates and guessed:
        yield changed("speculation", "off", "--speculation off", speculates=False)
    yield changed("servers", "2", "a second server like this one, and half of the requests there", replicas=2)


def _memory(server: Server, here: Setting) -> Iterator[Knob]:
    """More of it for K and V, as far as there is more."""
    now_bytes = server.num_blocks * server.block_bytes
    most_bytes = now_bytes + int(_SPARE * server.free_memory_bytes)
    for factor in (2, 4, 8):
        blocks = server.num_blocks * factor
        nbytes = blocks * server.block_bytes
        if nbytes > most_bytes or here.num_blocks * here.block_size >= here.max_running * here.max_model_len:
            return
        share = None if server.memory_utilization is None else server.memory_utilization * factor
        if share is not None and share > _MOST_SHARE:
            return
        option = f"--kv-memory {_size(nbytes)}" if share is None else f"--memory-utilization {share:g}"
        setting = msgspec.structs.replace(here, num_blocks=blocks)
        yield Knob("K and V", _size(nbytes), option, setting)


def _size(nbytes: int) -> str:
    mebi = nbytes / (1 << 20)
    return f"{mebi / 1024:.3g}GiB" if mebi >= 1024 and mebi % 1024 == 0 else f"{mebi:.0f}MiB"
