"""What feedback counts, as Prometheus metrics. Knows numbers alone."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

from octavo.routing.drift import Reading

__all__ = ["FeedbackMetrics"]


class FeedbackMetrics:
    """Of one gateway, in its registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.outcomes = Counter(
            "octavo_route_outcomes",
            "What answers were worth, by who answered and who says it.",
            ("tier", "source", "good"),
            registry=registry,
        )
        self.judged = Counter(
            "octavo_route_judged",
            "Answers that a judge compared with another tier's: better, worse, same.",
            ("result",),
            registry=registry,
        )
        self.left_out = Gauge(
            "octavo_route_judge_left_out",
            "Answers that were drawn and not compared: money, busy, failed.",
            ("reason",),
            registry=registry,
        )
        self.cost = Gauge(
            "octavo_route_feedback_cost",
            "Spent today (UTC) on judge or explore, what runs estimated.",
            ("of",),
            registry=registry,
        )
        self.lost = Gauge(
            "octavo_route_outcomes_lost", "Lines of outcomes that were not written.", registry=registry
        )
        self._distance = Gauge(
            "octavo_route_drift",
            "Kolmogorov's distance of the last window from the reference.",
            ("of",),
            registry=registry,
        )
        self._bound = Gauge("octavo_route_drift_bound", "Above it is an alarm.", ("of",), registry=registry)
        self._psi = Gauge(
            "octavo_route_drift_psi", "Population stability index, beside it.", ("of",), registry=registry
        )
        self._alarms = Counter(
            "octavo_route_drift_alarms", "Windows that had moved.", ("of",), registry=registry
        )

    def on_drift(self, of: str, reading: Reading) -> None:
        """A window is full."""
        self._distance.labels(of).set(reading.distance)
        self._bound.labels(of).set(reading.bound)
        self._psi.labels(of).set(reading.psi)
        self._alarms.labels(of).inc(float(reading.alarm))
