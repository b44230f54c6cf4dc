"""uvicorn as we run it: on a socket of ours, with limits on connections, without its own signals. Knows no route."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from octavo.server.connections import Connections
from octavo.server.limits import BoundedProtocol
from octavo.server.listener import BACKLOG
from octavo.server.tls import HANDSHAKE_S, SHUTDOWN_S, Tls

__all__ = ["http_server"]


def http_server(
    app: ASGIApp,
    listener: socket.socket,
    connections: Connections,
    finish: asyncio.Event,
    tls: Tls | None = None,
) -> uvicorn.Server:
    """What serves `app` on `listener` (`serve(sockets=[])`) until `finish` is set. The process keeps its signals."""

    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            """uvicorn would end the process with the signal's code."""
            yield

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            """uvicorn would listen without limits on TLS' own messages."""
            await super().startup(sockets)
            self.servers.append(
                await asyncio.get_running_loop().create_server(
                    lambda: BoundedProtocol(
                        self.config, self.server_state, self.lifespan.state, connections=connections
                    ),
                    sock=listener,
                    backlog=BACKLOG,
                    ssl=None if tls is None else tls.context,
                    ssl_handshake_timeout=None if tls is None else HANDSHAKE_S,
                    ssl_shutdown_timeout=None if tls is None else SHUTDOWN_S,
                )
            )

        async def main_loop(self) -> None:
            """uvicorn wakes ten times a second to see whether to exit; the date header needs one, and so do stalled
            readers."""
            while not (await self.on_tick(0) or finish.is_set()):
                connections.sweep()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(finish.wait(), 1.0)

    return Server(
        uvicorn.Config(
            app,
            http=BoundedProtocol,
            ws="none",
            lifespan="off",
            loop="none",
            log_config=None,
            access_log=False,
            server_header=False,
        )
    )
