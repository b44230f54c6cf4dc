"""What GET /watch would tell of a server that is simulated, so that what was true of it is known."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.bench.watched import Watched
from octavo.engine.messages import Add
from octavo.planning.setting import Setting
from octavo.protocol.watch import Answered, Asked, Gauges, Server, Worked
from octavo.sampling.params import SamplingParams
from octavo.simulation.pace import LinearPace
from octavo.simulation.prompts import prompt_of
from octavo.simulation.replica import Replica
from octavo.timing.clock import ManualClock
from octavo.workload.request import Request

__all__ = ["PACE", "SETTING", "answer_times", "server", "watched"]

PACE = LinearPace(
    per_step_s=0.01, per_token_s=0.0004, per_sample_s=0.0002, per_kv_token_s=1e-7, per_pair_s=1e-8
)
SETTING = Setting(
    policy="stall-free",
    allocator="paged",
    prefix_cache=True,
    max_running=32,
    max_step_tokens=256,
    max_model_len=1024,
    num_blocks=1024,
    block_size=16,
    tbt_target_s=None,
    ttft_target_s=None,
    profile=None,
    priority_aging_s=60.0,
    speculates=False,
)


def server(setting: Setting, **changed: object) -> Server:
    """The first line of a server that is set like this."""
    own = {name: getattr(setting, name) for name in Server.__struct_fields__ if hasattr(setting, name)}
    rest = {
        "octavo": "0",
        "model": "simulated",
        "backend": "native",
        "threads": 2,
        "block_bytes": 4096,
        "kv_dtype": "bf16",
        "memory_utilization": None,
        "free_memory_bytes": 1 << 30,
        "speculation": "off",
        "speculation_tokens": None,
        "cache_disk": False,
    }
    return Server(**{**own, **rest, **changed})


def watched(
    setting: Setting,
    requests: Sequence[Request],
    *,
    from_s: float = 0.0,
    until_s: float = 1e9,
    clients: int = 0,
) -> Watched:
    """Serve the requests, and tell of what happens between the two times. `clients`: of a closed loop, in which a
    request's own time does not count."""
    clock = ManualClock()
    replica = Replica(setting.config(), PACE, clock, fast=False)
    engine = replica.engine
    engine.watched = True
    found = Watched(url="http://simulated")
    found.server = server(setting)
    times: dict[int, list[tuple[float, int]]] = {}
    cached: dict[int, int] = {}
    coming = list(requests)

    def enter(one: Request, at_s: float) -> None:
        params = SamplingParams(max_tokens=one.output_tokens, temperature=0.0, ignore_eos=True, seed=0)
        engine.add(Add(str(one.index), prompt_of(one), params, at_s))
        times[one.index] = []
        if at_s < until_s:
            found.asked[one.index] = _asked(one, setting, at_s - from_s)

    for _ in range(clients):
        enter(coming.pop(0), 0.0)
    while clock.now_s() < until_s:
        while coming and not clients and coming[0].at_s <= clock.now_s():
            enter(coming[0], coming.pop(0).at_s)
        if engine.idle:
            if not coming:
                break
            clock.advance_to(coming[0].at_s)
            continue
        outputs = engine.step()
        now_s = clock.now_s() - from_s
        if outputs.step is not None and now_s >= 0:
            step = outputs.step
            found.steps.append(Worked(step.began_s - from_s, step.ended_s - from_s, step.idle, *step.load))
            found.gauges.append(Gauges(at_s=now_s, stats=outputs.stats))
        for item in outputs.items:
            number = int(item.request_id)
            cached[number] = max(cached.get(number, 0), item.cached_tokens)
            times[number].append((now_s, len(item.samples)))
            if item.finish_reason is None:
                continue
            if now_s < 0:
                found.asked.pop(number)
            else:
                found.answered[number] = _answered(number, times[number], cached[number])
            if clients and coming:
                enter(coming.pop(0), clock.now_s() + 0.001)
    for number, one in found.asked.items():  # those that had begun
        had = sum(tokens for at_s, tokens in times[number] if at_s < 0)
        if had:
            found.asked[number] = _asked(requests[number], setting, one.at_s, had)
    found.length_s = clock.now_s() - from_s
    return found


def answer_times(found: Watched) -> list[float]:
    """From each request that came to its first token, in order."""
    return [
        found.answered[one.id].chunks[0][0] - one.at_s
        for one in found.asked.values()
        if one.at_s >= 0 and one.id in found.answered
    ]


def _asked(one: Request, setting: Setting, at_s: float, had: int = 0) -> Asked:
    blocks = one.block_hashes(setting.block_size, partial=False)
    return Asked(
        id=one.index,
        at_s=at_s,
        prompt_tokens=one.input_tokens or 0,
        blocks=tuple(int.from_bytes(block[:6], "little") for block in blocks),
        answers=1,
        max_tokens=one.output_tokens,
        had=had,
    )


def _answered(number: int, times: list[tuple[float, int]], cached: int) -> Answered:
    return Answered(
        id=number,
        end_s=times[-1][0],
        reason="length",
        output_tokens=sum(tokens for _, tokens in times),
        cached_tokens=cached,
        chunks=tuple(one for one in times if one[0] >= 0),
        blocks=(),
    )
