"""The way to an engine process: starts it, speaks with it, and when it dies goes on where every stream was.

Knows processes and the journal, nothing of HTTP or text. It lives on one event loop, the one of `ready()`.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Sequence

import msgspec

from octavo import errors
from octavo.config import EngineConfig, Pooling
from octavo.engine.child import SPARE_S, Children, Death
from octavo.engine.connection import Connection
from octavo.engine.heartbeat import Look
from octavo.engine.journal import Record
from octavo.engine.messages import (
    Abort,
    EngineInfo,
    Failed,
    FromEngine,
    Outputs,
    Ready,
    Shutdown,
    Stats,
    Watch,
)
from octavo.engine.observer import Observer
from octavo.engine.opened import Opened
from octavo.engine.patience import Patience
from octavo.engine.stream import Stream
from octavo.engine.suspicion import NOTHING, Finding, Quarantine, Suspicion
from octavo.engine.watching import Watcher, Watching
from octavo.engine.wire import WireError
from octavo.errors import EngineDied, InvalidParameter
from octavo.memory.accounting import Report
from octavo.sampling.params import SamplingParams
from octavo.scheduling.inputs import ORDINARY, Service
from octavo.scheduling.outputs import FinishReason, SequenceOutput

__all__ = ["EngineClient"]

EXIT_S = 2.0
"""How long a process that closed its end, or was told to, may take to exit."""
LOOK_S = 0.25
"""Between two looks at the heartbeat of an engine that has work."""
STALLED_S = 2.0
"""Without progress, and it is not ready."""
HUNG_S = 30.0
"""Without progress, and it is replaced …"""
HUNG_STEPS = 20
"""… or after so many times what the step should take, if that is longer."""
TRIAL_S = 10.0
"""How long others wait at most while suspects are tried."""

_logger = logging.getLogger(__name__)


class EngineClient:
    """One engine process at a time, and the requests that outlive it.

    client = EngineClient.spawn(config)      # the process starts to load; import heavy things meanwhile
    await client.ready()
    async with contextlib.aclosing(client.generate("r1", prompt, params)) as outputs:
        async for output in outputs: ...
    await client.close()
    """

    def __init__(self, config: EngineConfig, command: Sequence[str]) -> None:
        self._children = Children(config, command)
        self._child = self._children.begin()
        self._connection: Connection | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._started: asyncio.Future[None] | None = None
        self._open: dict[str, Opened] = {}
        self._info: EngineInfo | None = None
        self._stats: Stats | None = None
        self._report: Report | None = None
        self._failed: Failed | None = None
        self._serving = False
        self._closing = False
        self._dead: str | None = None
        self._gave_up = asyncio.Event()
        self._patience = Patience()
        self._restarts = 0
        self._load_s = 0.0
        self._suspicion = Suspicion()
        self._quarantine = Quarantine()
        self._look = Look(LOOK_S)
        self._looking: asyncio.TimerHandle | None = None
        self._on_trial_s = 0.0
        self._sparing: asyncio.TimerHandle | None = None
        self.config = config
        self.observer: Observer | None = None
        self.watching = Watching(lambda on: self._send(Watch(on)))

    @classmethod
    def spawn(cls, config: EngineConfig, command: Sequence[str] | None = None) -> EngineClient:
        """Start the process and return at once. `command` replaces `python -m octavo.engine` (tests)."""
        # -P: a module in the current directory must not shadow one of ours or of Python's.
        return cls(config, command or (sys.executable, "-P", "-m", "octavo.engine"))

    @classmethod
    async def start(cls, config: EngineConfig, command: Sequence[str] | None = None) -> EngineClient:
        """`spawn`, then `ready`."""
        client = cls.spawn(config, command)
        await client.ready()
        return client

    async def ready(self) -> EngineInfo:
        """Wait for the engine to have loaded. Raises what kept it from that, or EngineDied."""
        if self._supervisor is None:
            self._started = asyncio.get_running_loop().create_future()
            self._supervisor = asyncio.create_task(self._supervise_or_give_up())
        assert self._started is not None
        try:
            await asyncio.shield(self._started)
        except asyncio.CancelledError:
            await self.close()
            raise
        return self.info

    @property
    def info(self) -> EngineInfo:
        """What the engine said of itself; only after `ready`."""
        if self._info is None:
            raise EngineDied("The engine is not loaded yet; wait for ready().")
        return self._info

    @property
    def loaded(self) -> bool:
        """An engine has been ready once."""
        return self._info is not None

    @property
    def stats(self) -> Stats | None:
        """The newest counters, or None before the first step."""
        return self._stats

    @property
    def report(self) -> Report | None:
        """What the newest engine process' memory was good for, at most a second old; None before the first step."""
        return self._report

    @property
    def healthy(self) -> bool:
        """An engine process is loaded, connected and gets on. False while one is replaced: requests then wait."""
        return self._serving and not self.stalled

    @property
    def stalled(self) -> bool:
        """The engine process is there, and has made no progress for a while. It may go on, or will be replaced."""
        if not self._serving:
            return False
        return self._look.still_s >= STALLED_S or (self._looking is None and self._child.stopped)

    @property
    def dead(self) -> bool:
        """The client gave up: no request will ever be served."""
        return self._dead is not None

    async def died(self) -> EngineDied:
        """Wait until the client gives up; why it did."""
        await self._gave_up.wait()
        return EngineDied(self._dead)

    @property
    def restarts(self) -> int:
        """Engine processes started after the first."""
        return self._restarts

    @property
    def open_requests(self) -> int:
        """Requests that have not finished."""
        return len(self._open)

    @property
    def open_sequences(self) -> int:
        """Sequences of those, that run or wait."""
        return sum(opened.record.params.attempts for opened in self._open.values())

    @property
    def slack_sequences(self) -> int:
        """Of those, the ones that take only what all others leave."""
        return sum(
            opened.record.params.attempts
            for opened in self._open.values()
            if opened.record.service.profile == "batch"
        )

    def generate(self, request_id: str, prompt: Sequence[int], params: SamplingParams) -> Stream:
        """`generate_all` of one request."""
        return self.generate_all([(request_id, prompt, params)])

    def generate_all(
        self,
        requests: Sequence[tuple[str, Sequence[int], SamplingParams]],
        *,
        cache_salt: str = "",
        service: Service = ORDINARY,
        pooling: Pooling | None = None,
    ) -> Stream:
        """Start every (request id, prompt token ids, parameters); one stream gives the outputs of all.

        Requests with different salts share nothing in the prefix cache; `service`: for whom they are. Ids are new.
        `pooling`: each answer is the prompt's vector, in one output; the parameters are then `EMBEDDING`.
        Raises InvalidParameter, CapacityError, Quarantined or EngineDied, and then none has started.
        """
        if self._dead is not None or self._closing:
            raise EngineDied(self._dead or "The engine is being closed.")
        for request_id, prompt, params in requests:
            self.info.capacity.check(prompt, params)
            if request_id in self._open:
                raise InvalidParameter(f"request_id {request_id!r} is running; choose another.", "request_id")
            self._quarantine.check(prompt, params, pooling)
        stream = Stream(
            [request_id for request_id, _, _ in requests], sum(p.n for _, _, p in requests), self.abort
        )
        now, tick = time.time(), time.monotonic()
        for request_id, prompt, params in requests:
            record = Record(request_id, tuple(prompt), params, now, cache_salt, service, pooling)
            self._open[request_id] = Opened(record, stream, tick)
            self.watching.request(record)
            self._admit(request_id)
        if self._looking is None and self._supervisor is not None:
            self._looking = asyncio.get_running_loop().call_later(LOOK_S, self._watch)
        return stream

    def watch(self, watcher: Watcher) -> None:
        """Tell `watcher` all that happens, the open requests first, until `watching.remove`."""
        self.watching.add(watcher, [opened.record for opened in self._open.values()])

    def abort(self, request_id: str) -> None:
        """Forget a request; its blocks are free within a step. An unknown id is ignored."""
        if request_id in self._open:
            self._withdraw(request_id)
            self._forget(request_id, "abort")

    def finish_all(self, reason: FinishReason, error: str | None = None) -> None:
        """End every open request towards its reader, now, with `reason`."""
        for request_id, opened in list(self._open.items()):
            self._withdraw(request_id)
            self._forget(request_id, reason)
            for child in opened.record.unfinished:
                opened.stream.put(SequenceOutput(request_id, child, finish_reason=reason, error=error))

    async def close(self) -> None:
        """End open requests with `abort`, then the process. Calling it twice is harmless."""
        if self._closing:
            return
        self._closing = True
        self.finish_all("abort")
        for timer in (self._looking, self._sparing):
            if timer is not None:
                timer.cancel()
        self._children.close()
        if self._supervisor is None:
            self._child.kill()
            return
        assert self._started is not None
        if not self._started.done():
            self._started.set_exception(EngineDied("The engine was closed before it had loaded."))
            self._started.exception()  # nobody may be waiting
        if self._serving:
            self._send(Shutdown())
            await asyncio.wait([self._supervisor], timeout=EXIT_S)
        self._supervisor.cancel()
        await asyncio.wait([self._supervisor])
        if self._connection is not None:
            self._connection.abort()
        await self._child.end(0.0)

    def _admit(self, request_id: str) -> None:
        """Give a request to the engine, unless others are tried just now. Where there is no engine, the next one is
        given what the journal knows."""
        opened = self._open[request_id]
        if self._serving and not opened.sent and self._suspicion.allows(request_id):
            opened.sent = True
            self._send(opened.record.message())

    def _admit_all(self) -> None:
        """Those that were being answered first, the shortest of them before all: it goes on soonest, and the sum of all
        pauses is the least. The rest in the order of their arrival."""
        self._on_trial_s = time.monotonic()
        for request_id in sorted(self._open, key=lambda name: self._open[name].record.resume_rank):
            self._admit(request_id)

    def _withdraw(self, request_id: str) -> None:
        if self._open[request_id].sent:
            self._send(Abort(request_id))

    def _send(self, message: msgspec.Struct) -> None:
        """To the engine, if there is one."""
        if self._serving:
            assert self._connection is not None
            self._connection.send(message)

    def _receive(self, message: FromEngine) -> None:
        match message:
            case Outputs(items, stats, report, step):
                self._stats = stats
                self.watching.step(step, stats)
                if report is not None:
                    self._report = report
                    if self.observer is not None:
                        self.observer.on_memory(report.now)
                if self.observer is not None:
                    self.observer.on_step(stats)
                for output in items:
                    self._deliver(output)
            case Ready(info):
                self._connected(info)
            case Failed():
                self._failed = message

    def _deliver(self, output: SequenceOutput) -> None:
        opened = self._open.get(output.request_id)
        if opened is None:  # aborted meanwhile
            return
        opened.record.check(output, self.info.capacity)
        self._patience.progress()
        if (output.samples or output.vector) and self._suspicion.passed(output.request_id):
            self._admit_all()
        if output.finish_reason == "error":  # a request fails as a whole
            self._forget(output.request_id, "error")
            for child in opened.record.unfinished:
                opened.stream.put(msgspec.structs.replace(output, child=child))
            return
        output = opened.record.note(output)
        if output.samples and self.observer is not None:
            opened.tell(output, self.observer)
        self.watching.output(output)
        if opened.record.done:
            self._forget(output.request_id, output.finish_reason or "stop")
        opened.stream.put(output)

    def _forget(self, request_id: str, reason: FinishReason) -> None:
        opened = self._open.pop(request_id)
        self.watching.ended(request_id, reason)
        if self._suspicion.forget(request_id):
            self._admit_all()
        if self.observer is not None:
            self.observer.on_finish(reason, time.monotonic() - opened.arrival)

    def _connected(self, info: EngineInfo) -> None:
        if self._serving:
            raise WireError("Ready came twice.")
        if self._info is not None and self._info.arithmetic_id != info.arithmetic_id:
            _logger.warning("the new engine computes differently: %s, before %s", info, self._info)
        self._info = info
        self._serving = True
        load_s = time.monotonic() - self._child.began_s
        self._load_s = max(self._load_s, load_s)
        if self._restarts:
            _logger.warning(
                "an engine is there again, loaded in %.1f s; %d requests go on", load_s, len(self._open)
            )
        self._look.forget()
        self._sparing = asyncio.get_running_loop().call_later(SPARE_S, self._children.prepare)
        for opened in self._open.values():
            opened.sent = False
        self.watching.engine_began()
        self._admit_all()
        assert self._started is not None
        if not self._started.done():
            self._started.set_result(None)

    async def _supervise_or_give_up(self) -> None:
        try:
            await self._supervise()
        except Exception as error:  # without this nobody would ever be answered
            _logger.exception("the engine is no longer looked after")
            assert self._started is not None
            if self._started.done():
                self._give_up("cannot be started again", repr(error))
            else:
                self._started.set_exception(error)

    async def _supervise(self) -> None:
        """Connect to the process; each time it is lost, replace it, until closed or hopeless."""
        assert self._started is not None
        while True:
            began = time.monotonic()
            loaded = await self._serve_until_lost()
            ended = await self._child.end(EXIT_S)  # a crash closes the socket before its traceback is written
            served_s = time.monotonic() - began
            if self._closing:
                return
            if not self._started.done():
                self._started.set_exception(self._start_error(ended.words))
                return
            _logger.error(
                "the engine process %d ended (%s); restarting it for %d open requests",
                self._child.pid,
                ended.words,
                len(self._open),
            )
            learned, culprit = self._suspect(ended) if loaded else NOTHING
            self._patience.died(served_s, outside=ended.outside, learned=learned, culprit=culprit is not None)
            if self._patience.exhausted:
                self._give_up(self._patience.exhausted, ended.words)
                return
            await asyncio.sleep(self._patience.wait_s)
            self._child = self._children.begin()
            self._restarts += 1
            if self.observer is not None:
                self.observer.on_restart()

    async def _serve_until_lost(self) -> bool:
        """Returns whether the process had loaded."""
        self._failed = None
        _, self._connection = await asyncio.get_running_loop().create_unix_connection(
            lambda: Connection(self._receive), sock=self._child.socket
        )
        await self._connection.lost
        if self._connection.damaged:
            self._child.condemn("it sent damaged data")
        loaded, self._serving = self._serving, False
        return loaded

    def _suspect(self, ended: Death) -> Finding:
        """The engine died: who may have done it?"""
        heartbeat = self._child.heartbeat
        step = [name for name in heartbeat.names or () if name in self._open]
        if not step and (heartbeat.stepping or not ended.outside):
            # It had not decided what to compute, or it died between two steps: of something that it had been sent.
            step = [name for name, opened in self._open.items() if opened.sent]
        tokens = {name: self._open[name].record.delivered for name in step}
        place, _ = heartbeat.counter
        finding = self._suspicion.died(step, tokens, outside=ended.outside, place=place)
        if finding.culprit is not None:
            self._convict(finding.culprit, ended.words)
        elif finding.learned:
            trial = ", ".join(self._suspicion.trial)
            _logger.warning("it was computing %d requests; these alone are tried now: %s", len(step), trial)
        return finding

    def _convict(self, request_id: str, ended: str) -> None:
        """End a request that the engine cannot compute, and remember it."""
        opened = self._open[request_id]
        record = opened.record
        why = self._quarantine.add(record.prompt, record.asked, record.pooling, ended)
        _logger.error(
            "request %s is not tried again: the engine ended twice in it alone (%s)", request_id, ended
        )
        if self.observer is not None:
            self.observer.on_quarantine()
        self._forget(request_id, "error")
        for child in record.unfinished:
            opened.stream.put(SequenceOutput(request_id, child, finish_reason="error", error=why))

    def _watch(self) -> None:
        """Look whether the engine gets on, now and again while there are requests."""
        self._looking = None
        now = time.monotonic()
        if self._serving and self._open:
            heartbeat = self._child.heartbeat
            before_s, still_s = self._look.still_s, self._look.at(heartbeat.counter, now)
            if before_s < STALLED_S <= still_s:
                _logger.warning("the engine has made no progress for %.0f s: not ready", still_s)
            elif still_s < STALLED_S <= before_s:
                _logger.warning("the engine goes on, after %.0f s without progress", before_s)
            if still_s >= max(HUNG_S, HUNG_STEPS * heartbeat.expected_s):
                # A process that is held by a signal is no slower than its holder: no request is to blame.
                self._child.condemn(f"no progress for {still_s:.0f} s", outside=self._child.stopped)
                self._look.forget()
            elif self._suspicion.searching and now - self._on_trial_s > TRIAL_S and self._suspicion.waited():
                self._admit_all()
        else:
            self._look.forget()
            loads_s = now - self._child.began_s
            if not self._serving and self._restarts and loads_s > max(HUNG_S, HUNG_STEPS * self._load_s):
                self._child.condemn("it did not load")
        if self._open and not self._closing and self._dead is None:
            self._looking = asyncio.get_running_loop().call_later(LOOK_S, self._watch)

    def _start_error(self, ended: str) -> errors.OctavoError:
        if self._failed is None:
            return EngineDied(f"The engine process ended while loading ({ended}); its own output says why.")
        kind = getattr(errors, self._failed.kind, errors.ServerError)
        error: errors.OctavoError = kind(self._failed.message)
        return error

    def _give_up(self, what: str, ended: str) -> None:
        why = self._failed.message if self._failed is not None else ended
        self._dead = f"The engine {what} ({why}); restart the server."
        self._gave_up.set()
        self.finish_all("error", self._dead)
