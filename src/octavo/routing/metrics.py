"""What a gateway counts, as Prometheus metrics: by tier its share, tokens, cost, times, errors. Knows numbers alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.exposition import generate_latest

from octavo.routing.breaker import State
from octavo.routing.course import Attempt, Course
from octavo.routing.places import Place
from octavo.routing.tiers import Tiers

__all__ = ["GatewayMetrics"]

_FIRST_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_WHOLE_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0)
_DECISION_S = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.1)
_STATES: tuple[State, ...] = get_args(State)


class GatewayMetrics:
    """Of one gateway, in a registry of their own; an Observer. Costs are in the tiers' currency."""

    def __init__(self, tiers: Tiers) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry = CollectorRegistry()
        self._tiers = tiers

        def counter(name: str, text: str, *more: str) -> Counter:
            return Counter(f"octavo_route_{name}", text, ("tier", *more), registry=registry)

        self._requests = counter("requests", "Requests that a tier answered; `none`: nobody did.")
        self._chosen = counter("chosen", "Requests that a tier was chosen for, whoever answered them.")
        self._attempts = counter("attempts", "Requests to a tier, by how they ended.", "outcome")
        self._tokens = counter("tokens", "Tokens that a tier has counted, or we for it.", "kind")
        self._estimated = counter("estimated", "Attempts whose tokens we counted: the tier told none.")
        self._cost = counter("cost", f"What a tier's attempts cost, in {tiers.general.currency}.")
        self._unpriced = counter("unpriced", "Attempts whose cost is not known: the tier has no prices.")
        self._fallbacks = Counter(
            "octavo_route_fallbacks",
            "Requests that one tier was chosen for and another one answered.",
            ("chosen", "tier"),
            registry=registry,
        )
        self._first = Histogram(
            "octavo_route_first_byte_seconds",
            "From a request to a tier until its answer began.",
            ("tier",),
            registry=registry,
            buckets=_FIRST_S,
        )
        self._whole = Histogram(
            "octavo_route_attempt_seconds",
            "From a request to a tier until the end of its answer.",
            ("tier",),
            registry=registry,
            buckets=_WHOLE_S,
        )
        self._decision = Histogram(
            "octavo_route_decision_seconds",
            "How long it took to choose a tier.",
            registry=registry,
            buckets=_DECISION_S,
        )
        self._share = Gauge(
            "octavo_route_share",
            "Of all requests that were answered, those by this tier; 1 is all.",
            ("tier",),
            registry=registry,
        )
        self._running = Gauge(
            "octavo_route_running", "Requests that a tier has now.", ("tier",), registry=registry
        )
        self._state = Gauge(
            "octavo_route_tier_state",
            "1 at the state that a tier's breaker is in.",
            ("tier", "state"),
            registry=registry,
        )
        self._refused = Counter(
            "octavo_route_refused",
            "Requests turned away at the door, by reason.",
            ("reason",),
            registry=registry,
        )
        self._connections = Gauge("octavo_connections", "Open connections of clients.", registry=registry)
        self._dropped = Counter(
            "octavo_connections_dropped", "Connections cut off, by reason.", ("reason",), registry=registry
        )
        self._answered = dict.fromkeys(tiers.names, 0)
        for tier in tiers.names:  # so that a rate begins at 0
            self._requests.labels(tier)
            self._cost.labels(tier)

    def on_attempt(self, attempt: Attempt) -> None:
        """An attempt has ended."""
        tier = attempt.tier
        self._attempts.labels(tier, attempt.outcome).inc()
        if attempt.cost is None:
            self._unpriced.labels(tier).inc()
        else:
            self._cost.labels(tier).inc(attempt.cost)
        if (usage := attempt.usage) is not None:
            self._tokens.labels(tier, "input").inc(
                usage.input - usage.cached if usage.cached < usage.input else 0
            )
            self._tokens.labels(tier, "cached").inc(usage.cached)
            self._tokens.labels(tier, "output").inc(usage.output)
            if usage.estimated:
                self._estimated.labels(tier).inc()
        if attempt.first_s is not None:
            self._first.labels(tier).observe(attempt.first_s - attempt.began_s)
            if attempt.ended_s is not None and attempt.outcome == "answered":
                self._whole.labels(tier).observe(attempt.ended_s - attempt.began_s)

    def on_end(self, course: Course) -> None:
        """A request has ended."""
        tier, chosen = course.tier, course.verdict.tier
        self._chosen.labels(chosen).inc()
        self._requests.labels(tier or "none").inc()
        if tier is not None:
            self._answered[tier] += 1
            if tier != chosen:
                self._fallbacks.labels(chosen, tier).inc()

    def on_decision(self, seconds: float) -> None:
        """A tier was chosen."""
        self._decision.observe(seconds)

    def on_refused(self, reason: str) -> None:
        """A request was turned away before anybody was asked."""
        self._refused.labels(reason).inc()

    def on_connections(self, count: int) -> None:
        """So many are open."""
        self._connections.set(count)

    def on_dropped(self, reason: str) -> None:
        """The gateway cut a connection off (for what reasons: server/connections)."""
        self._dropped.labels(reason).inc()

    def text(self, places: Mapping[str, Place], now_s: Callable[[], float]) -> bytes:
        """Everything in Prometheus' text format, as it is now."""
        total = sum(self._answered.values())
        for name, place in places.items():
            self._share.labels(name).set(self._answered[name] / total if total else 0.0)
            self._running.labels(name).set(place.running)
            state = place.breaker.state(now_s())
            for one in _STATES:
                self._state.labels(name, one).set(one == state)
        return generate_latest(self.registry)
