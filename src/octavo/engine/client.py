"""The way to an engine process: starts it, speaks with it, and when it dies goes on where every stream was.

Knows processes and the journal, nothing of HTTP or text. It lives on one event loop, the one of `ready()`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Protocol, cast

import msgspec

from octavo import errors
from octavo.config import EngineConfig, Pooling
from octavo.engine.journal import Record
from octavo.engine.messages import (
    Abort,
    EngineInfo,
    Failed,
    FromEngine,
    Init,
    Outputs,
    Ready,
    Shutdown,
    Stats,
)
from octavo.engine.stream import Stream
from octavo.engine.wire import FrameReader, WireError, frame
from octavo.errors import EngineDied, InvalidParameter
from octavo.memory.accounting import MemoryUse, Report
from octavo.sampling.params import SamplingParams
from octavo.scheduling.inputs import ORDINARY, Service
from octavo.scheduling.outputs import FinishReason, SequenceOutput

__all__ = ["EngineClient", "Observer"]

MAX_DEATHS = 5
"""Deaths in a row without a token between them, after which the client gives up."""
STEADY_S = 30.0
"""A process that served this long did not die of what killed the one before."""
BACKOFF_S = 0.1
MAX_BACKOFF_S = 5.0
EXIT_S = 2.0
"""How long a process that closed its end, or was told to, may take to exit."""

# Pools of other libraries would fight the engine's own threads for its cores.
_ONE_THREAD = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")

_logger = logging.getLogger(__name__)


class Observer(Protocol):
    """Who measures (telemetry/metrics.py). Called on the event loop: it must not block. Times are seconds."""

    def on_step(self, stats: Stats) -> None: ...

    def on_first_tokens(self, prompt_tokens: int, since_arrival_s: float) -> None: ...

    def on_tokens(self, count: int, since_last_s: float | None) -> None:
        """`since_last_s` is None for a sequence's first tokens."""

    def on_finish(self, reason: FinishReason, since_arrival_s: float) -> None:
        """A request ended: the reason of its last sequence, or `abort` when the reader left."""

    def on_restart(self) -> None: ...

    def on_memory(self, use: MemoryUse) -> None:
        """Once a second, and when nothing is left to do."""


class _Child:
    """One engine process and the parent's end of its socket."""

    def __init__(self, config: EngineConfig, command: Sequence[str]) -> None:
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        # A first message, and a fresh socket: it fits the buffer, this cannot block.
        self.socket.sendall(frame(Init(config)))
        with theirs:
            self._process = subprocess.Popen(
                [*command, "--fd", str(theirs.fileno()), "--parent", str(os.getpid())],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env={**os.environ, **dict.fromkeys(_ONE_THREAD, "1")},
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    async def end(self, patience_s: float) -> str:
        """Wait for the exit, kill after `patience_s`; how it ended, in words."""
        self.socket.close()  # harmless where a transport has taken it over and closed it
        deadline = time.monotonic() + patience_s
        while self._process.poll() is None:
            if time.monotonic() > deadline:
                self._process.kill()
            await asyncio.sleep(0.002)
        code = self._process.returncode
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def kill(self) -> None:
        """For a client that never got an event loop."""
        self.socket.close()
        self._process.kill()
        self._process.wait()


class _Connection(asyncio.Protocol):
    """Bytes to messages. `lost` is done when no more will come."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._reader = FrameReader(msgspec.msgpack.Decoder(FromEngine))
        self.transport: asyncio.Transport | None = None
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by class

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._reader.feed(data):
                self._client._receive(message)
        except WireError:
            _logger.exception("the engine sent damaged data and is replaced")
            assert self.transport is not None
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.lost.done():
            self.lost.set_result(None)


class _Open:
    """A request that runs: its record, its reader, and when things last happened (monotonic seconds)."""

    __slots__ = ("arrival", "last", "record", "stream")

    def __init__(self, record: Record, stream: Stream, arrival: float) -> None:
        self.record = record
        self.stream = stream
        self.arrival = arrival
        self.last: list[float | None] = [None] * record.params.n


class EngineClient:
    """One engine process at a time, and the requests that outlive it.

    client = EngineClient.spawn(config)      # the process starts to load; import heavy things meanwhile
    await client.ready()
    async with contextlib.aclosing(client.generate("r1", prompt, params)) as outputs:
        async for output in outputs: ...
    await client.close()
    """

    def __init__(self, config: EngineConfig, command: Sequence[str]) -> None:
        self._config = config
        self._command = command
        self._child = _Child(config, command)
        self._connection: _Connection | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._started: asyncio.Future[None] | None = None
        self._open: dict[str, _Open] = {}
        self._info: EngineInfo | None = None
        self._stats: Stats | None = None
        self._report: Report | None = None
        self._failed: Failed | None = None
        self._serving = False
        self._closing = False
        self._dead: str | None = None
        self._gave_up = asyncio.Event()
        self._deaths = 0
        self._restarts = 0
        self.observer: Observer | None = None

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
            self._supervisor = asyncio.create_task(self._supervise())
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
        """An engine process is loaded and connected. False while one is replaced: requests then wait."""
        return self._serving

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
        Raises InvalidParameter, CapacityError or EngineDied, and then none has started.
        """
        if self._dead is not None or self._closing:
            raise EngineDied(self._dead or "The engine is being closed.")
        for request_id, prompt, params in requests:
            self.info.capacity.check(prompt, params)
            if request_id in self._open:
                raise InvalidParameter(f"request_id {request_id!r} is running; choose another.", "request_id")
        stream = Stream(
            [request_id for request_id, _, _ in requests], sum(p.n for _, _, p in requests), self.abort
        )
        now, tick = time.time(), time.monotonic()
        for request_id, prompt, params in requests:
            record = Record(request_id, tuple(prompt), params, now, cache_salt, service, pooling)
            self._open[request_id] = _Open(record, stream, tick)
            self._send(record.message())
        return stream

    def abort(self, request_id: str) -> None:
        """Forget a request; its blocks are free within a step. An unknown id is ignored."""
        if request_id in self._open:
            self._send(Abort(request_id))
            self._forget(request_id, "abort")

    def finish_all(self, reason: FinishReason, error: str | None = None) -> None:
        """End every open request towards its reader, now, with `reason`."""
        for request_id, opened in list(self._open.items()):
            self._send(Abort(request_id))
            self._forget(request_id, reason)
            for child in opened.record.unfinished:
                opened.stream.put(SequenceOutput(request_id, child, finish_reason=reason, error=error))

    async def close(self) -> None:
        """End open requests with `abort`, then the process. Calling it twice is harmless."""
        if self._closing:
            return
        self._closing = True
        self.finish_all("abort")
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
        if self._connection is not None and self._connection.transport is not None:
            self._connection.transport.abort()
        await self._child.end(0.0)

    def _send(self, message: msgspec.Struct) -> None:
        """To the engine if there is one; if not, the journal tells the next one all it must know."""
        if self._serving:
            assert self._connection is not None
            assert self._connection.transport is not None
            self._connection.transport.write(frame(message))

    def _receive(self, message: FromEngine) -> None:
        match message:
            case Outputs(items, stats, report):
                self._stats = stats
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
        self._deaths = 0
        if output.finish_reason == "error":  # a request fails as a whole
            self._forget(output.request_id, "error")
            for child in opened.record.unfinished:
                opened.stream.put(msgspec.structs.replace(output, child=child))
            return
        output = opened.record.note(output)
        if output.samples and self.observer is not None:
            now, last = time.monotonic(), opened.last[output.child]
            if not any(opened.last):
                self.observer.on_first_tokens(len(opened.record.prompt), now - opened.arrival)
            self.observer.on_tokens(len(output.samples), None if last is None else now - last)
            opened.last[output.child] = now
        if opened.record.done:
            self._forget(output.request_id, output.finish_reason or "stop")
        opened.stream.put(output)

    def _forget(self, request_id: str, reason: FinishReason) -> None:
        opened = self._open.pop(request_id)
        if self.observer is not None:
            self.observer.on_finish(reason, time.monotonic() - opened.arrival)

    def _connected(self, info: EngineInfo) -> None:
        if self._info is not None and self._info.arithmetic_id != info.arithmetic_id:
            _logger.warning("the new engine computes differently: %s, before %s", info, self._info)
        self._info = info
        self._serving = True
        for opened in self._open.values():
            self._send(opened.record.message())
        assert self._started is not None
        if not self._started.done():
            self._started.set_result(None)

    async def _supervise(self) -> None:
        """Connect to the process; each time it is lost, replace it, until closed or hopeless."""
        assert self._started is not None
        while True:
            began = time.monotonic()
            ended = await self._serve_until_lost()
            served_s = time.monotonic() - began
            if self._closing:
                return
            if not self._started.done():
                self._started.set_exception(self._start_error(ended))
                return
            self._deaths = 1 if served_s > STEADY_S else self._deaths + 1
            if self._deaths >= MAX_DEATHS:
                self._give_up(ended)
                return
            _logger.error(
                "the engine process %d ended (%s); restarting it for %d open requests",
                self._child.pid,
                ended,
                len(self._open),
            )
            await asyncio.sleep(min(BACKOFF_S * 2 ** (self._deaths - 1), MAX_BACKOFF_S))
            self._child = _Child(self._config, self._command)
            self._restarts += 1
            if self.observer is not None:
                self.observer.on_restart()

    async def _serve_until_lost(self) -> str:
        """Returns how the process ended."""
        self._failed = None
        _, self._connection = await asyncio.get_running_loop().create_unix_connection(
            lambda: _Connection(self), sock=self._child.socket
        )
        await self._connection.lost
        self._serving = False
        return await self._child.end(EXIT_S)  # a crash closes the socket before its traceback is written

    def _start_error(self, ended: str) -> errors.OctavoError:
        if self._failed is None:
            return EngineDied(f"The engine process ended while loading ({ended}); its own output says why.")
        kind = getattr(errors, self._failed.kind, errors.ServerError)
        error: errors.OctavoError = kind(self._failed.message)
        return error

    def _give_up(self, ended: str) -> None:
        why = self._failed.message if self._failed is not None else ended
        self._dead = f"The engine died {self._deaths} times without progress ({why}); restart the server."
        self._gave_up.set()
        self.finish_all("error", self._dead)
