"""Measures a server from outside: designed probes, and which step did what.

An Octavo server tells that of each step (GET /watch), so it gets a mixed traffic too, as servers have it. Of others the
times of chunks say it, if every stream that decodes gets a chunk from each step, prompts are computed in the order in
which they came, and as much of one in each step as the budget has left. Knows the bench's client and record, no engine.
"""

from __future__ import annotations

import itertools
import secrets
import statistics
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise

import msgspec

import octavo
from octavo.backends.base import Limits
from octavo.bench.client import run
from octavo.bench.record import Chunk, Exchange, Run
from octavo.bench.scrape import Scraper
from octavo.bench.target import Target
from octavo.errors import BenchError
from octavo.simulation.calibrate import Observed, fit
from octavo.simulation.calibrate_engine import AT_ONCE, Probe, ranges, this_machine
from octavo.simulation.calibrate_told import limits_told, listening, run_probe, traffic
from octavo.simulation.calibrated import Calibration
from octavo.simulation.coldness import colds_of
from octavo.simulation.told import groups_of, ranges_of
from octavo.timing.step_time import StepLoad
from octavo.workload.request import Part, Request

__all__ = [
    "Knobs",
    "between_chunks_s",
    "calibrate_server",
    "observed_in",
    "probes",
    "requests_of_probe",
    "steps_of",
]

_PROMPTS = (4, 8, 16, 32, 64, 128, 256, 384, 512, 1024)
_STREAMS = (2, 3, 4, 6, 8, 12, 16, 24, 32)
_CONTEXTS = (16, 256)
_DECODED = 10
_LATE = (64, 512, 1024)
_MOST_CONTEXT = 2048
"""Tokens of all the prompts of a probe."""
_REPEATS = 3
_RUNS = 1 << 30


@dataclass(frozen=True)
class Knobs:
    """What a server does not tell, and its simulation must know."""

    block_size: int = 16
    max_running: int = 64
    max_step_tokens: int = 512
    max_model_len: int = 8192


async def calibrate_server(
    target: Target, knobs: Knobs, *, repeats: int = _REPEATS, told: Callable[[int, int], None] | None = None
) -> Calibration:
    """`told`: called with probes done and probes in all. Raises BenchError where a probe fails, or tells too little."""
    if target.prompts != "ids":
        raise BenchError(
            f"{target.url} takes no prompts as token ids, so how long they are is not known; calibrate another server."
        )
    async with listening(target) as watched:
        if watched is None:
            measured = await _by_chunks(target, knobs, repeats, told)
        else:
            assert watched.server is not None
            measured = await _by_steps(target, limits_told(watched.server), repeats, told)
    if watched is not None:
        assert watched.server is not None
        server = watched.server
        measured = replace(
            measured,
            kinds=[*measured.kinds, *groups_of(watched.steps)],
            seen=ranges_of(watched.steps),
            kv_bytes_per_token=server.block_bytes / server.block_size,
            threads=server.threads,
        )
    pace, host, fitted = fit(measured.kinds)
    return Calibration(
        octavo=octavo.__version__,
        date=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        machine=this_machine(),
        model=target.model,
        source=target.url,
        pace=pace,
        host=msgspec.structs.replace(host, per_chunk_s=measured.per_chunk_s),
        fitted=fitted,
        seen=measured.seen,
        limits=measured.limits,
        kv_bytes_per_token=measured.kv_bytes_per_token,
        threads=measured.threads,
    )


@dataclass(frozen=True)
class _Measured:
    kinds: list[Observed]
    seen: dict[str, tuple[int, int]]
    per_chunk_s: float
    limits: Limits
    kv_bytes_per_token: float | None = None
    threads: int | None = None


async def _by_chunks(
    target: Target, knobs: Knobs, repeats: int, told: Callable[[int, int], None] | None
) -> _Measured:
    """Probes alone, and everything from when their chunks came."""
    seen: dict[tuple[int, int], list[Observed]] = defaultdict(list)
    after_s: list[float] = []
    blocks: list[float] = []
    async for place, probe, done in _rounds(target, list(probes(knobs)), repeats, told):
        for number, one in enumerate(observed_in(done, probe, knobs)):
            seen[place, number].append(one)
        if probe.streams > 1 and not probe.late:
            after_s += between_chunks_s(done)
        blocks += _blocks(done, probe, knobs)
    kinds = [_middle(several) for several in seen.values()]
    enough = knobs.max_running * -(-knobs.max_model_len // knobs.block_size)
    limits = Limits(
        num_blocks=int(min(blocks)) if blocks else enough,
        block_size=knobs.block_size,
        max_slots=knobs.max_running,
        max_step_tokens=knobs.max_step_tokens,
        max_model_len=knobs.max_model_len,
    )
    return _Measured(kinds, ranges(kinds), statistics.median(after_s) if after_s else 0.0, limits)


async def _by_steps(
    target: Target, limits: Limits, repeats: int, told: Callable[[int, int], None] | None
) -> _Measured:
    """Probes without late prompts, and traffic: the kinds are those of a client's way to its engine, since the server
    tells of the steps."""
    knobs = Knobs(limits.block_size, limits.max_slots, limits.max_step_tokens, limits.max_model_len)
    designed = [one for one in probes(knobs) if not one.late]
    at_once = [one for one in AT_ONCE if one <= limits.max_slots]
    total = repeats * (len(designed) + len(at_once))
    ways: dict[int, list[Observed]] = defaultdict(list)
    after_s: list[float] = []
    async for place, probe, done in _rounds(
        target, designed, repeats, None if told is None else lambda at, _: told(at, total)
    ):
        ways[place] += [one for one in observed_in(done, probe, knobs) if one.prompt_tokens is not None]
        if probe.streams > 1:
            after_s += between_chunks_s(done)
    begin = secrets.randbelow(_RUNS)
    turns = itertools.product(range(begin, begin + repeats), at_once)
    for number, (turn, clients) in enumerate(turns):
        if told is not None:
            told(repeats * len(designed) + number, total)
        await run_probe(target, traffic(limits, clients, turn), clients=clients)
    kinds = [_middle(several) for several in ways.values() if several]
    return _Measured(kinds, {}, statistics.median(after_s) if after_s else 0.0, limits)


def probes(knobs: Knobs) -> Iterator[Probe]:
    """One stream with several prompts; equal streams; prompts that come while streams decode."""
    longest = knobs.max_model_len - 4 * _DECODED
    yield from (Probe(1, tokens, _DECODED) for tokens in _PROMPTS if tokens <= longest)
    for context in _CONTEXTS:
        for streams in _STREAMS:
            if (
                streams <= min(knobs.max_running, knobs.max_step_tokens)
                and streams * context <= _MOST_CONTEXT
            ):
                yield Probe(streams, context, _DECODED)
    for streams in (1, 4, 16):
        for late in _LATE:
            if streams < min(knobs.max_running, knobs.max_step_tokens) and late <= longest:
                yield Probe(streams, 16, 2 * _DECODED + 2 * -(-late // knobs.max_step_tokens), late)


async def _rounds(
    target: Target, designed: list[Probe], repeats: int, told: Callable[[int, int], None] | None
) -> AsyncIterator[tuple[int, Probe, Run]]:
    turns = list(enumerate(designed))
    number = itertools.count(secrets.randbelow(_RUNS))  # who is measured again must not know the prompts
    scraper = Scraper.of(target)
    begun_s: dict[int, float] = {}
    try:
        await run(target, requests_of_probe(turns[0][1], next(number), begun_s), timeout_s=300.0)  # warms up
        for turn in range(repeats):
            # In turns from both ends, so that what drifts does so for all alike; at first as they are listed: a late
            # prompt can be sent once it is known when streams like those before it decode.
            for done, (place, probe) in enumerate(turns if turn % 2 == 0 else turns[::-1]):
                if told is not None:
                    told(turn * len(turns) + done, repeats * len(turns))
                asked = requests_of_probe(probe, next(number), begun_s)
                one = await run_probe(target, asked, scrape=scraper)
                if probe.context == _CONTEXTS[0] and not probe.late:
                    begun_s[probe.streams] = max(_tokens(each)[1].at_us for each in one.exchanges) / 1e6
                yield place, probe, one
    finally:
        await scraper.close()


def requests_of_probe(probe: Probe, turn: int, begun_s: dict[int, float]) -> list[Request]:
    """Prompts that nobody has sent before. `begun_s`: when so many streams all decode."""
    outputs = probe.outputs + (probe.streams if probe.streams > 1 else 0)
    asked = [
        Request(
            index=place,
            at_s=0.0,
            session=place,
            parts=(Part(f"calibrate/{turn}/{place}", probe.context),),
            output_tokens=outputs,
            seed=turn,
        )
        for place in range(probe.streams)
    ]
    if probe.late:
        part = Part(f"calibrate/{turn}/late", probe.late)
        place = probe.streams
        asked.append(
            Request(
                index=place,
                at_s=1.2 * begun_s[place],
                session=place,
                parts=(part,),
                output_tokens=2,
                seed=turn,
            )
        )
    return asked


@dataclass
class _Step:
    """Chunks that came together: of each request, how many it had had before."""

    at_us: int
    had: dict[int, int]


def steps_of(done: Run) -> list[_Step]:
    """The steps of a run as its chunks tell: a step ends where one of its streams has its next chunk."""
    events = sorted((chunk.at_us, one.index) for one in done.exchanges for chunk in _tokens(one))
    counts: dict[int, int] = defaultdict(int)
    steps: list[_Step] = []
    for at_us, index in events:
        if not steps or index in steps[-1].had:
            steps.append(_Step(at_us, {}))
        steps[-1].had[index] = counts[index]
        counts[index] += 1
    return steps


def observed_in(done: Run, probe: Probe, knobs: Knobs) -> list[Observed]:
    """What a probe's run says of steps. Nothing where a chunk has several tokens: somebody guessed them."""
    if any(chunk.tokens != 1 for one in done.exchanges for chunk in _tokens(one)):
        return []
    if probe.streams == 1 and not probe.late:
        [only] = done.exchanges
        chunks = _tokens(only)
        if only.sent_us is None or not chunks:
            return []
        way_s = (chunks[0].at_us - only.sent_us) / 1e6
        loads = tuple(_prompt(only.input_tokens or probe.context, knobs, 0))
        cold = tuple(map(sum, zip(*colds_of(loads), strict=True)))
        first = Observed(loads, way_s, probe.context, cold=cold)
        return [first, *_decodes(done, probe)]
    if not probe.late:
        return _decodes(done, probe)
    return _arrival(done, probe, knobs)


def _decodes(done: Run, probe: Probe) -> list[Observed]:
    """Steps in which all decode, and did so in the step before."""
    found = []
    for before, step in pairwise(steps_of(done)):
        if len(before.had) == len(step.had) == probe.streams and all(step.had.values()):
            kv_tokens = sum(probe.context + had for had in step.had.values())
            load = StepLoad(probe.streams, probe.streams, kv_tokens, 0, probe.streams)
            after = [StepLoad().with_chunk(0, probe.context, 1), *[load] * min(step.had.values())]
            seconds = (step.at_us - before.at_us) / 1e6
            found.append(Observed((load,), seconds, cold=colds_of(after)[-1]))
    return found


def _arrival(done: Run, probe: Probe, knobs: Knobs) -> list[Observed]:
    """The steps that computed the late prompt: those up to its first chunk, as many as it needs. The first of them is
    left out where there are several: the prompt may have come within the step before."""
    steps, late = steps_of(done), probe.streams
    place = next((at for at, step in enumerate(steps) if step.had.get(late) == 0), None)
    if place is None:
        return []
    prompts = list(_prompt(probe.late, knobs, probe.streams))
    begin = place - len(prompts) + 1
    if begin < 1:
        return []
    found = []
    for at, prompt in zip(range(begin, place + 1), prompts, strict=True):
        decoding = {index: had for index, had in steps[at].had.items() if index != late}
        if len(decoding) != probe.streams or not all(decoding.values()):
            return []
        kv_tokens = sum(probe.context + had for had in decoding.values())
        load = StepLoad(
            prompt.tokens + probe.streams,
            prompt.samples + probe.streams,
            prompt.kv_tokens + kv_tokens,
            prompt.pairs,
            probe.streams + 1,
        )
        found.append(Observed((load,), (steps[at].at_us - steps[at - 1].at_us) / 1e6))
    return found


def _prompt(tokens: int, knobs: Knobs, decoding: int) -> Iterator[StepLoad]:
    """The steps in which a prompt is computed beside others that decode."""
    room, start = knobs.max_step_tokens - decoding, 0
    while start < tokens:
        count = min(room, tokens - start)
        yield StepLoad().with_chunk(start, count, int(start + count == tokens))
        start += count


def between_chunks_s(done: Run) -> list[float]:
    """Of steps in which all streams had a chunk: from one chunk to the next, in the mean."""
    times: dict[int, list[int]] = {one.index: [c.at_us for c in _tokens(one)] for one in done.exchanges}
    found = []
    for step in steps_of(done):
        if len(step.had) == len(times):
            at = [times[index][had] for index, had in step.had.items()]
            found.append((max(at) - min(at)) / (len(at) - 1) / 1e6)
    return found


def _blocks(done: Run, probe: Probe, knobs: Knobs) -> list[float]:
    """The blocks of the server's memory, by the share of it that it says a stream alone has in use: at least so many,
    and more where the prompt was not whole yet. So the least of these numbers is the nearest."""
    if probe.streams > 1 or probe.late or probe.context < 512:
        return []
    tokens = probe.context + _DECODED / 2
    used = [one.values["kv_use"] for one in done.server if one.values.get("kv_use", 0.0) > 0]
    return [tokens / knobs.block_size / share for share in used]


def _middle(several: list[Observed]) -> Observed:
    ordered = sorted(several, key=lambda one: one.seconds)
    return replace(ordered[len(ordered) // 2], steps=len(several))


def _tokens(one: Exchange) -> list[Chunk]:
    return [chunk for chunk in one.chunks if chunk.tokens]
