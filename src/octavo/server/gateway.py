"""A gateway's routes: OpenAI's API in front of tiers. Knows ASGI; who answers is routing's (routing/gateway)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

import octavo
from octavo.errors import OctavoError, Overloaded
from octavo.protocol.errors import RequestRefused
from octavo.routing.asked import CHAT, COMPLETIONS, EMBEDDINGS, Asked
from octavo.routing.course import Course
from octavo.routing.feedback import UnknownResponse
from octavo.routing.gateway import Gateway
from octavo.routing.metrics import GatewayMetrics
from octavo.routing.nearest import nearest
from octavo.routing.tiers import Tier
from octavo.server import errors
from octavo.server.auth import KeyCheck
from octavo.server.dialects import request_id_of
from octavo.server.edge import Edge, with_origins
from octavo.server.keys import ALLOWANCE, Keys
from octavo.server.limits import read_body
from octavo.server.pages import PageCheck
from octavo.server.replies import json_response
from octavo.server.request_log import RequestLog
from octavo.server.request_note import note_error, note_of
from octavo.server.streaming import STREAM_HEADERS
from octavo.telemetry.metrics import CONTENT_TYPE

__all__ = ["create_gateway_app"]


class _App(Starlette):
    """As the server's own (see app): who may ask is settled outside of all else."""

    edge = Edge()
    local = False

    def build_middleware_stack(self) -> ASGIApp:
        checked = PageCheck(
            super().build_middleware_stack(),
            keys=self.state.keys,
            edge=self.edge,
            local=self.local,
            told=self.state.metrics.on_refused,
        )
        return RequestLog(with_origins(checked, self.edge.origins), lines=self.edge.access_log)


def create_gateway_app(
    gateway: Gateway, metrics: GatewayMetrics, *, keys: Keys, edge: Edge, local: bool
) -> Starlette:
    """The application around `gateway`, whose observer `metrics` is. Every route but health wants one of `keys`, where
    there are any. `local`: only this machine can reach it."""
    app = _App(
        routes=[
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/v1/completions", completions, methods=["POST"]),
            Route("/v1/embeddings", embeddings, methods=["POST"]),
            Route("/v1/feedback", feedback, methods=["POST"]),
            Route("/v1/models", list_models),
            Route("/v1/models/{model}", get_model),
            Route("/tiers", tiers),
            Route("/health", health),
            Route("/health/ready", health),
            Route("/health/live", live),
            Route("/metrics", prometheus),
            Route("/version", version),
        ],
        middleware=[Middleware(KeyCheck, keys=keys, told=metrics.on_refused)],
    )
    app.edge, app.local = edge, local
    app.router.redirect_slashes = False
    app.state.gateway, app.state.metrics, app.state.keys = gateway, metrics, keys
    app.state.draining = False
    app.state.started_s = int(time.time())
    errors.install(app)
    return app


async def chat(request: Request) -> Response:
    """A conversation's next message, by the cheapest tier that can."""
    return await _answered(request, CHAT)


async def completions(request: Request) -> Response:
    """A prompt's continuation."""
    return await _answered(request, COMPLETIONS)


async def embeddings(request: Request) -> Response:
    """Vectors, always by the same tier."""
    return await _answered(request, EMBEDDINGS)


async def feedback(request: Request) -> Response:
    """What a user says of an answer that its key was given."""
    run = request.app.state.gateway.feedback
    if run is None:
        raise RequestRefused(
            404, "Feedback is not taken here; the file of tiers has no table [feedback].", "not_found"
        )
    allowance = request.scope.get(ALLOWANCE)
    try:
        given = run.give(await read_body(request), None if allowance is None else allowance.key.name)
    except UnknownResponse as error:
        raise RequestRefused(404, str(error), "response_not_found", "response_id") from None
    return json_response(given)


async def list_models(request: Request) -> Response:
    """What clients may ask for: a name that lets the gateway decide, or a tier."""
    return json_response({"object": "list", "data": _cards(request)})


async def get_model(request: Request) -> Response:
    """One of them."""
    wanted, cards = request.path_params["model"], _cards(request)
    for card in cards:
        if card["id"] == wanted:
            return json_response(card)
    known = [str(card["id"]) for card in cards]
    raise RequestRefused(
        404,
        f"The model {wanted[:100]!r} is not served here; {nearest(wanted, known)}",
        "model_not_found",
        "model",
    )


async def tiers(request: Request) -> Response:
    """Each tier as it is now."""
    gateway: Gateway = request.app.state.gateway
    now_s = gateway.now_s()
    found = []
    for name, place in gateway.places.items():
        breaker, tier = place.breaker, place.tier
        found.append({
            "tier": name,
            "model": tier.model,
            "state": breaker.state(now_s),
            "reason": breaker.reason or None,
            "again_after_s": round(max(breaker.until_s - now_s, 0.0), 3),
            "running": place.running,
            "most_running": tier.most_running,
            "local": tier.local,
            "abilities": sorted(tier.abilities),
            "context": tier.context,
            "price": None if tier.price is None else {
                "input": tier.price.input, "cached": tier.price.cached, "output": tier.price.output,
            },
            "fallbacks": list(tier.fallbacks),
        })  # fmt: skip
    return json_response({"currency": gateway.tiers.general.currency, "tiers": found})


async def health(request: Request) -> Response:
    """200 while there is a tier that may be asked, else 503."""
    gateway: Gateway = request.app.state.gateway
    if request.app.state.draining:
        return json_response({"status": "draining"}, 503)
    now_s = gateway.now_s()
    well = any(place.breaker.state(now_s) != "open" for place in gateway.places.values())
    return json_response({"status": "ready" if well else "no tier is well"}, 200 if well else 503)


async def live(request: Request) -> Response:
    """200: this process answers."""
    return json_response({"status": "draining" if request.app.state.draining else "ready"})


async def prometheus(request: Request) -> Response:
    """Prometheus metrics."""
    gateway: Gateway = request.app.state.gateway
    metrics: GatewayMetrics = request.app.state.metrics
    if gateway.feedback is not None:
        gateway.feedback.text()
    return Response(metrics.text(gateway.places, gateway.now_s), media_type=CONTENT_TYPE)


async def version(request: Request) -> Response:
    """The version of the gateway."""
    return json_response({"version": octavo.__version__})


async def _answered(request: Request, path: str) -> Response:
    state = request.app.state
    gateway: Gateway = state.gateway
    arrived_s = gateway.now_s()
    if state.draining:
        raise Overloaded("The gateway is shutting down; ask another one.", retry_after_s=5)
    raw = await read_body(request)
    headers = {**request.headers, "x-request-id": request_id_of(request.scope)}
    allowance = request.scope.get(ALLOWANCE)
    key = None if allowance is None else allowance.key.name
    before_s = time.perf_counter()
    asked = Asked.read(path, raw, headers, key, arrived_s)
    course = await gateway.decide(asked)
    state.metrics.on_decision(time.perf_counter() - before_s)
    return _Relay(gateway, course)


class _Relay(Response):
    """The answer of a tier, passed on piece by piece as it comes."""

    def __init__(self, gateway: Gateway, course: Course) -> None:
        super().__init__()
        self._gateway = gateway
        self._course = course

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        work = asyncio.create_task(self._pass(scope, send))
        leaving = asyncio.create_task(_left(receive))
        try:
            await asyncio.wait({work, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            if not work.done():
                work.cancel()
                await asyncio.wait({work})
        if not work.cancelled():
            work.result()

    async def _pass(self, scope: Scope, send: Send) -> None:
        course = self._course
        try:
            answering = await self._gateway.answer(course)
        except OctavoError as error:
            response = errors.error_response(error, scope, headers=course.headers())
            await response(scope, _nothing, send)
            return
        note = note_of(scope)
        try:
            headers = {"content-type": answering.content_type, **course.headers()}
            if answering.streams:
                headers |= STREAM_HEADERS
                await _start(send, answering.status, headers)
                while data := await answering.read():
                    await send({"type": "http.response.body", "body": data, "more_body": True})
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            else:
                data = await answering.read()
                headers["content-length"] = str(len(data))
                await _start(send, answering.status, headers)
                await send({"type": "http.response.body", "body": data, "more_body": False})
        finally:
            answering.leave()
            last = course.attempts[-1]
            if last.outcome == "broken":
                note_error(scope, OctavoError(last.message))
            if last.usage is not None:
                note.prompt_tokens = last.usage.input


async def _start(send: Send, status: int, headers: Mapping[str, str]) -> None:
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _nothing() -> Any:
    raise AssertionError


def _cards(request: Request) -> list[dict[str, object]]:
    gateway: Gateway = request.app.state.gateway
    created = request.app.state.started_s
    names = [_card(name, created, None) for name in gateway.tiers.general.names]
    return [*names, *(_card(tier.name, created, tier) for tier in gateway.tiers.all)]


def _card(name: str, created: int, tier: Tier | None) -> dict[str, object]:
    card: dict[str, object] = {"id": name, "object": "model", "created": created, "owned_by": "octavo"}
    if tier is not None and tier.context is not None:
        card["max_model_len"] = tier.context
    return card
