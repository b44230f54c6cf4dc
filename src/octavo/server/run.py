"""From settings to a running server and its exit: port, engine, signals, drain. Knows no route.

The order is for a quick start: the port is taken first (a taken one costs nothing then), the engine process loads
while this one imports the web parts, and the address answers 503 until the engine is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ipaddress
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.config import DEFAULT_POOLING, EngineConfig, Pooling
from octavo.engine.client import EngineClient
from octavo.server.access import Access, keys_of
from octavo.server.connections import (
    SEND_TIMEOUT_S,
    STREAM_BUFFER_BYTES,
    Connections,
    connections_allowed,
)
from octavo.server.edge import Edge
from octavo.server.listener import address_of, bind
from octavo.telemetry.logs import PRIVATE

if TYPE_CHECKING:
    import uvicorn
    from starlette.applications import Starlette

    from octavo.engine.messages import EngineInfo
    from octavo.memory.accounting import Report
    from octavo.server.reload import Reload
    from octavo.server.serving import Serving
    from octavo.server.tls import Tls

__all__ = ["run"]

_logger = logging.getLogger(__name__)

CLOSE_S = 1.0
"""How long connections may take to send the last that they have, where the drain timeout leaves less."""


def run(
    config: EngineConfig,
    *,
    model_name: str,
    aliases: Sequence[str] = (),
    host: str = "127.0.0.1",
    port: int = 8000,
    access: Access | None = None,
    reread: Callable[[], Access] | None = None,
    max_connections: int | None = None,
    stream_buffer_bytes: int = STREAM_BUFFER_BYTES,
    send_timeout_s: float = SEND_TIMEOUT_S,
    strict: bool = False,
    pooling: Pooling = DEFAULT_POOLING,
    drain_timeout_s: float = 30.0,
    data_dir: str | None = None,
    edge: Edge | None = None,
    on_ready: Callable[[str, EngineInfo], None] | None = None,
    on_end: Callable[[Report | None], None] | None = None,
    engine_command: Sequence[str] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, then let running requests finish and their readers read, at most
    `drain_timeout_s`; a second signal ends at once. `access`: who may ask, and how much; `reread` says what has become
    of it when SIGHUP asks (None: only its key file is read again). `aliases`: further names of the model.
    `max_connections`: None is as many as usual, where the process may open so many files. `stream_buffer_bytes`: of
    tokens that may wait for the reader of a stream. `send_timeout_s`: how long a reader may take nothing; 0 for ever.
    `strict`: requests with fields that nobody knows are refused. `pooling`: of vectors whose request does not say.
    `data_dir`: where stored things are; None is the user's data folder. `edge`: origins, TLS, times, logs. `on_ready`
    is told once: the address, and what the engine can do; `on_end`, what its memory was good for. `engine_command`
    starts another engine than ours (tests, benchmarks).

    Raises SettingsError (a key, the port, a certificate), OSError (the key file), what kept the engine from starting,
    and EngineDied when it could not be brought back: whoever watches this process can then start it again.
    """
    access = access or Access()
    keys = keys_of(access)
    edge = edge or Edge()
    tls = None
    if edge.tls is not None:
        from octavo.server.tls import Tls

        tls = Tls(edge.tls)
    most = connections_allowed(max_connections)
    listener = bind(host, port)
    gc.disable()  # start-up makes objects that stay; looking for garbage among them costs a twentieth of it
    try:
        with listener:
            client = EngineClient.spawn(config, engine_command)
            try:
                serving = _serving(config, client, model_name)
                serving.stream_buffer_bytes = stream_buffer_bytes
                serving.strict = strict
                serving.request_timeout_s = edge.request_timeout_s
                serving.pooling = pooling
                serving.aliases = tuple(aliases)
            except BaseException:
                asyncio.run(client.close())
                raise

            import uvloop

            from octavo.server.app import create_app
            from octavo.server.keys import Keys
            from octavo.server.reload import Reload

            known = Keys()
            app = create_app(
                serving,
                keys=known,
                data_dir=None if data_dir is None else Path(data_dir),
                edge=edge,
                local=ipaddress.ip_address(listener.getsockname()[0]).is_loopback,
            )
            connections = Connections(serving.metrics, most=most, send_timeout_s=send_timeout_s)
            connections.prepare(listener)
            reload = Reload(known, serving.admission, access, keys, reread)
            uvloop.run(
                _Host(serving, listener, app, tls, connections, drain_timeout_s, on_ready, reload).serve()
            )
            if on_end is not None:
                on_end(client.report)
    finally:
        gc.enable()


def _serving(config: EngineConfig, client: EngineClient, model_name: str) -> Serving:
    """The model's text side, loaded while the engine loads the rest."""
    from octavo.models.store import StoredModel
    from octavo.server.serving import ModelFile, Serving
    from octavo.telemetry.metrics import Metrics

    model = StoredModel.load(config.model_dir)
    serving = Serving(client, model_name, model.spec, model.tokenizer(), Metrics(model_name))
    with contextlib.suppress(OSError):  # nothing needs the source
        file = model.source.stat()
        parameters = sum(tensor.rows * tensor.cols for tensor in model.tensors.values())
        serving.model_file = ModelFile(
            file.st_size, parameters, int(file.st_mtime), model.weight_type or "unknown"
        )
    return serving


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _forgotten(_: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
    """Log what nobody waits for; asyncio's own words would quote arguments and messages."""
    error = context.get("exception")
    _logger.error("something failed that nobody waits for", exc_info=error, extra=PRIVATE)


class _Host:
    """One run of the server on its event loop."""

    def __init__(
        self,
        serving: Serving,
        listener: socket.socket,
        app: Starlette,
        tls: Tls | None,
        connections: Connections,
        drain_timeout_s: float,
        on_ready: Callable[[str, EngineInfo], None] | None,
        reload: Reload,
    ) -> None:
        self._reload = reload
        self._serving = serving
        self._listener = listener
        self._app = app
        self._tls = tls
        self._connections = connections
        self._drain_timeout_s = drain_timeout_s
        self._on_ready = on_ready
        self._on_terminal = _has_terminal()
        self._stop = asyncio.Event()
        self._finish = asyncio.Event()
        self._signals = 0
        self._deadline_s = 0.0
        self._unfinished = 0

    async def serve(self) -> None:
        from octavo.server.http import http_server

        client = self._serving.client
        server = http_server(self._app, self._listener, self._connections, self._finish, self._tls)
        asyncio.get_running_loop().set_exception_handler(_forgotten)
        with self._handled_signals():
            http = asyncio.create_task(server.serve(sockets=[]))
            loading = asyncio.create_task(client.ready())
            stopping = asyncio.create_task(self._stop.wait())
            dying = asyncio.create_task(client.died())
            try:
                await asyncio.wait([http, loading, stopping], return_when=asyncio.FIRST_COMPLETED)
                if loading.done():
                    info = loading.result()
                    gc.freeze()  # and a full collection would stop every stream for the time of a step
                    gc.enable()
                    self._app.state.batches.start()
                    if self._on_ready is not None:
                        self._on_ready(address_of(self._listener, tls=self._tls is not None), info)
                    await asyncio.wait([http, stopping, dying], return_when=asyncio.FIRST_COMPLETED)
                await self._drain()
            finally:
                stopping.cancel()
                self._serving.grammars.close()
                loading.cancel()
                await asyncio.wait([loading])  # cancelled while it loads, it ends the process
                await self._hang_up(http, server)
                await client.close()
                await self._app.state.response_runs.settle()
                await self._app.state.responses.settle()
                await asyncio.to_thread(self._app.state.database.close)
                dying.cancel()
        if client.dead:
            raise await client.died()

    async def _drain(self) -> None:
        """Refuse new requests and wait for the running ones; at the deadline they end unfinished."""
        client = self._serving.client
        self._serving.draining = True
        await self._app.state.batches.stop()  # nobody waits for these: they go on after the next start
        if client.open_requests:
            _logger.warning(
                "running requests: %d; waiting up to %g s for them, a second Ctrl-C or SIGTERM ends at once",
                client.open_requests,
                self._drain_timeout_s,
            )
        self._deadline_s = time.monotonic() + self._drain_timeout_s
        await self._until(lambda: not client.open_requests, self._deadline_s, 0.0)
        self._unfinished = client.open_requests
        client.finish_all("abort")

    async def _hang_up(self, http: asyncio.Task[None], server: uvicorn.Server) -> None:
        """End `server`, task `http`: connections may send what they have until the deadline, then they are cut.

        uvicorn would cancel what is late, and log a traceback for each.
        """
        soon_s = time.monotonic() + CLOSE_S
        self._finish.set()
        await self._until(http.done, max(soon_s, self._deadline_s), soon_s)
        late = list(server.server_state.connections)
        for connection in late:
            connection.transport.abort()
        if self._unfinished or late:
            _logger.warning(
                "%s: %d requests are ended unfinished, %d connections are cut off",
                "a second signal came" if self._signals > 1 else "the time to drain is over",
                self._unfinished,
                len(late),
            )
        await http

    async def _until(self, done: Callable[[], bool], deadline_s: float, hurried_s: float) -> None:
        """Wait for `done`, at most until `deadline_s`; after a second signal, until `hurried_s` (monotonic)."""
        while not done() and time.monotonic() < (hurried_s if self._signals > 1 else deadline_s):  # noqa: ASYNC110
            await asyncio.sleep(0.02)  # at the end of the server, once

    @contextlib.contextmanager
    def _handled_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        handled = {
            signal.SIGINT: self._on_signal,
            signal.SIGTERM: self._on_signal,
            signal.SIGHUP: self._on_hangup,
        }
        for number, act in handled.items():
            loop.add_signal_handler(number, act)
        try:
            yield
        finally:
            for number in handled:
                loop.remove_signal_handler(number)

    def _on_signal(self) -> None:
        self._signals += 1
        self._stop.set()

    def _on_hangup(self) -> None:
        """Somebody has changed settings, or the terminal is gone and the server goes too."""
        if self._on_terminal and not _has_terminal():
            self._on_signal()
        else:
            self._reload.begin()
            if self._tls is not None:
                self._tls.renew()
