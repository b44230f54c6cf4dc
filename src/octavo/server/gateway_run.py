"""From tiers to a running gateway and its exit: port, tiers' health, signals, drain. Knows no route and no engine."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from octavo.errors import SettingsError
from octavo.routing.decider import Decider
from octavo.routing.feedback import FeedbackRun
from octavo.routing.feedback_metrics import FeedbackMetrics
from octavo.routing.gateway import Gateway
from octavo.routing.metrics import GatewayMetrics
from octavo.routing.outcomes import read_outcomes
from octavo.routing.policy_decider import PolicyDecider
from octavo.routing.recalibration import recalibrate
from octavo.routing.tiers import Tiers
from octavo.routing.versioned_decider import VersionedDecider
from octavo.server.access import Access, Limits, keys_of
from octavo.server.connections import Connections, connections_allowed
from octavo.server.edge import Edge
from octavo.server.listener import address_of, bind

__all__ = ["gateway_keys", "run_gateway"]

_logger = logging.getLogger(__name__)

CLOSE_S = 1.0
"""How long connections may take to send the last that they have, where the time to drain leaves less."""


def gateway_keys(access: Access) -> tuple[str, ...]:
    """The names of the keys that clients have. Raises SettingsError, also for what only an engine's server keeps:
    a limit that is not kept is worse than none."""
    keys = keys_of(access)
    for key in keys:
        if key.limits != Limits() or key.profile is not None:
            raise SettingsError(
                f"The key of {key.name} has limits or a profile, which the gateway does not keep; make it without, or "
                "set them at the tiers."
            )
    return tuple(key.name for key in keys)


def run_gateway(
    tiers: Tiers,
    *,
    decider: Decider | None = None,
    folder: Path = Path(),
    host: str = "127.0.0.1",
    port: int = 8080,
    access: Access | None = None,
    edge: Edge | None = None,
    max_connections: int | None = None,
    drain_timeout_s: float = 30.0,
    on_ready: Callable[[str, Mapping[str, str | None]], None] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, then let running requests finish, at most `drain_timeout_s`; a second signal ends
    at once. `folder`: where files begin that the tiers' file names. `on_ready` is told once: the address, and of each
    tier what is wrong with it, or None.

    Raises SettingsError (a key, the port) and RoutingError (a judge that is no better than chance).
    """
    import uvloop

    from octavo.server.gateway import create_gateway_app
    from octavo.server.keys import Keys

    access, edge = access or Access(), edge or Edge()
    gateway_keys(access)
    metrics = GatewayMetrics(tiers)
    gateway = Gateway(tiers, decider, observers=(metrics,))
    feedback = None
    if tiers.feedback is not None:
        learnt = decider if isinstance(decider, PolicyDecider | VersionedDecider) else None
        feedback = FeedbackRun(
            gateway,
            tiers.feedback,
            FeedbackMetrics(metrics.registry),
            folder,
            among=() if learnt is None else learnt.names(),
            reference=tuple if learnt is None else learnt.scores,
            recalibrate=_recalibrating(tiers, decider, folder),
        )
        gateway.feedback = feedback
    most = connections_allowed(max_connections)
    with bind(host, port) as listener:
        app = create_gateway_app(
            gateway,
            metrics,
            keys=Keys(access, keys_of(access)),
            edge=edge,
            local=ipaddress.ip_address(listener.getsockname()[0]).is_loopback,
        )
        connections = Connections(metrics, most=most)
        connections.prepare(listener)

        async def serve() -> None:
            from octavo.server.http import http_server

            stop, finish, signals = asyncio.Event(), asyncio.Event(), 0

            def on_signal() -> None:
                nonlocal signals
                signals += 1
                stop.set()

            async def until(done: Callable[[], bool], limit_s: float) -> None:
                end_s = time.monotonic() + limit_s
                while not done() and time.monotonic() < end_s and signals < 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)  # at the end of the gateway, once

            loop = asyncio.get_running_loop()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, on_signal)
            server = http_server(app, listener, connections, finish)
            http = asyncio.create_task(server.serve(sockets=[]))
            stopping = asyncio.create_task(stop.wait())
            watching = asyncio.create_task(gateway.watch())
            learning: asyncio.Task[None] | None = None
            try:
                faults = dict(zip(tiers.names, await _checked(gateway), strict=True))
                for name, fault in faults.items():
                    if fault is not None:
                        _logger.warning("the tier %s is not well: %s", name, fault)
                if feedback is not None:
                    await feedback.start()
                    learning = asyncio.create_task(feedback.run())
                if on_ready is not None:
                    on_ready(address_of(listener, tls=False), faults)
                await asyncio.wait({http, stopping}, return_when=asyncio.FIRST_COMPLETED)
                app.state.draining = True
                if gateway.running:
                    _logger.warning(
                        "running requests: %d; waiting up to %g s for them", gateway.running, drain_timeout_s
                    )
                await until(lambda: not gateway.running, drain_timeout_s)
            finally:
                stopping.cancel()
                watching.cancel()
                if learning is not None:
                    learning.cancel()
                finish.set()
                await until(http.done, CLOSE_S)
                for connection in list(server.server_state.connections):
                    connection.transport.abort()
                await http
                with contextlib.suppress(asyncio.CancelledError):
                    await watching
                if learning is not None:
                    await asyncio.wait({learning})
                if feedback is not None:
                    feedback.close()
                await gateway.close()
                for number in (signal.SIGINT, signal.SIGTERM):
                    loop.remove_signal_handler(number)

        uvloop.run(serve())


def _recalibrating(tiers: Tiers, decider: Decider | None, folder: Path) -> Callable[[], str] | None:
    """How thresholds are found anew. Raises SettingsError."""
    feeding = tiers.feedback
    if feeding is None or not feeding.recalibrate_hours:
        return None
    if not feeding.outcomes or not isinstance(decider, VersionedDecider):
        raise SettingsError(
            "[feedback] recalibrate_hours needs outcomes, and a [decider] policy that is a folder of versions."
        )
    path, quality = folder / feeding.outcomes, feeding.recalibrate_quality

    def recalibrated() -> str:
        decided, outcomes = read_outcomes(path)
        found, version = recalibrate(
            decider.folder, decided, outcomes, quality=quality, tiers=decider.names()
        )
        assert version is not None
        one = found.threshold
        return f"version {version.number}: threshold {one.value:+.4f} ({one.low:+.4f} to {one.high:+.4f})"

    return recalibrated


async def _checked(gateway: Gateway) -> list[str | None]:
    """All tiers at once."""
    return await asyncio.gather(*(gateway.check(name) for name in gateway.tiers.names))
