"""Prometheus metrics under vLLM's names where the meaning is the same, `octavo_` for our own. Knows only numbers."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.exposition import generate_latest

__all__ = ["CONTENT_TYPE", "Metrics", "StepStats"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# vLLM's buckets, so that its dashboards' quantiles can be compared with ours.
_TTFT_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)  # fmt: skip
_ITL_S = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
_E2E_S = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip
_STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)

_REFUSALS = (
    "queue_full",
    "queue_tokens",
    "key",
    "page",
    "key_concurrency",
    "key_requests",
    "key_tokens",
    "connections",
    "bodies",
)
_DROPS = ("stalled", "buffer_full", "idle", "connections", "pipelined")
_LIMITS, _STAGES = ("request", "server"), ("preparing", "waiting", "answering")
_RESULTS = {False: "completed", True: "failed"}
_REASONS = ("stop", "length", "abort", "error")


class StepStats(Protocol):
    """What a step reports (engine/messages.Stats). Totals count from the engine process's start."""

    @property
    def running(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    @property
    def blocks_total(self) -> int: ...
    @property
    def blocks_used(self) -> int: ...
    @property
    def step_duration_s(self) -> float: ...
    @property
    def step_tokens(self) -> int: ...
    @property
    def preemptions(self) -> int: ...
    @property
    def prefix_queried_tokens(self) -> int: ...
    @property
    def prefix_hit_tokens(self) -> int: ...
    @property
    def disk_bytes(self) -> int: ...
    @property
    def disk_hit_tokens(self) -> int: ...
    @property
    def drafts(self) -> int: ...
    @property
    def draft_tokens(self) -> int: ...
    @property
    def accepted_tokens(self) -> int: ...
    @property
    def accepted_at(self) -> tuple[int, ...]: ...
    @property
    def saved_steps(self) -> int: ...


class MemoryUse(Protocol):
    """How the KV memory is used (memory/accounting.MemoryUse), in tokens."""

    @property
    def internal(self) -> int: ...
    @property
    def external(self) -> int: ...
    @property
    def duplicate(self) -> int: ...
    @property
    def shared(self) -> int: ...


class _Totals(NamedTuple):
    """What one engine process has counted since its start."""

    preemptions: int = 0
    prefix_queried_tokens: int = 0
    prefix_hit_tokens: int = 0
    disk_hit_tokens: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    saved_steps: int = 0


class Metrics:
    """One served model's metrics in a registry of their own; an Observer of EngineClient. Times are seconds."""

    def __init__(self, model_name: str) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry = CollectorRegistry()

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(name, text, ("model_name",), registry=registry).labels(model_name)

        def counter(name: str, text: str) -> Counter:
            return Counter(name, text, ("model_name",), registry=registry).labels(model_name)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, text, ("model_name",), registry=registry, buckets=buckets).labels(
                model_name
            )

        self._running = gauge("vllm:num_requests_running", "Sequences that hold a slot.")
        self._waiting = gauge("vllm:num_requests_waiting", "Sequences that wait for a slot.")
        self._kv_usage = gauge("vllm:kv_cache_usage_perc", "Used KV blocks of all; 1 is full.")
        self._preemptions = counter("vllm:num_preemptions", "Sequences preempted.")
        self._prefix_queries = counter(
            "vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache."
        )
        self._prefix_hits = counter("vllm:prefix_cache_hits", "Prompt tokens found there.")
        self._disk_bytes = gauge("octavo_cache_disk_bytes", "What the disk cache takes.")
        self._disk_hits = counter(
            "octavo_cache_disk_hit_tokens", "Tokens whose K and V came back from the disk cache."
        )
        self._drafts = counter("vllm:spec_decode_num_drafts", "Steps of sequences with guessed tokens.")
        self._draft_tokens = counter("vllm:spec_decode_num_draft_tokens", "Guessed tokens.")
        self._accepted = counter("vllm:spec_decode_num_accepted_tokens", "Guessed tokens that were right.")
        self._saved_steps = counter(
            "octavo_spec_decode_saved_steps",
            "Steps that no stream needed, since all of them had right guesses.",
        )
        self._accepted_at = Counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Guessed tokens that were right, by their place in the guess.",
            ("model_name", "position"),
            registry=registry,
        )
        self._accepted_before: tuple[int, ...] = ()
        self._model_name = model_name
        self._prompt_tokens = counter("vllm:prompt_tokens", "Prompt tokens of answered requests.")
        self._generation_tokens = counter("vllm:generation_tokens", "Generated tokens.")
        self._step_tokens = histogram(
            "vllm:iteration_tokens_total", "Tokens computed in a step.", _STEP_TOKENS
        )
        self._busy_s = counter("octavo_engine_busy_seconds", "Time in steps that computed tokens.")
        self._ttft = histogram("vllm:time_to_first_token_seconds", "Arrival to first token.", _TTFT_S)
        self._itl = histogram("vllm:inter_token_latency_seconds", "Between a sequence's outputs.", _ITL_S)
        self._e2e = histogram("vllm:e2e_request_latency_seconds", "Arrival to the last token.", _E2E_S)
        finished = Counter(
            "vllm:request_success",
            "Requests ended, by reason.",
            ("model_name", "finished_reason"),
            registry=registry,
        )
        self._finished = {reason: finished.labels(model_name, reason) for reason in _REASONS}
        refused = Counter(
            "octavo_requests_refused",
            "Requests turned away, by reason.",
            ("model_name", "reason"),
            registry=registry,
        )
        self._refused = {reason: refused.labels(model_name, reason) for reason in _REFUSALS}
        deadlines = Counter(
            "octavo_deadlines_exceeded",
            "Requests given up for their time was over: who had set it, and how far they were.",
            ("model_name", "limit", "stage"),
            registry=registry,
        )
        self._deadlines = {
            (limit, stage): deadlines.labels(model_name, limit, stage)
            for limit in _LIMITS
            for stage in _STAGES
        }
        self._connections = gauge("octavo_connections", "Open connections.")
        dropped = Counter(
            "octavo_connections_dropped",
            "Connections cut off, by reason.",
            ("model_name", "reason"),
            registry=registry,
        )
        self._dropped = {reason: dropped.labels(model_name, reason) for reason in _DROPS}
        lines = Counter(
            "octavo_batch_lines",
            "Lines of batches with a result on the disk: completed, or failed.",
            ["model_name", "result"],
            registry=self.registry,
        )
        self._batch_lines = {failed: lines.labels(model_name, result) for failed, result in _RESULTS.items()}
        self._restarts = counter("octavo_engine_restarts", "Engine processes started after the first.")
        self._quarantined = counter(
            "octavo_requests_quarantined", "Requests that ended the engine and are not tried again."
        )
        waste = Gauge(
            "octavo_kv_waste_tokens",
            "KV memory without use, in tokens that fit in: held without one, free but in pieces, stored twice.",
            ("model_name", "kind"),
            registry=registry,
        )
        self._waste = {kind: waste.labels(model_name, kind) for kind in ("internal", "external", "duplicate")}
        self._shared = gauge(
            "octavo_kv_shared_tokens", "KV memory that sharing saves, in tokens that fit in."
        )
        self._seen = _Totals()

    def on_memory(self, use: MemoryUse) -> None:
        """Once a second, and when nothing is left to do."""
        self._waste["internal"].set(use.internal)
        self._waste["external"].set(use.external)
        self._waste["duplicate"].set(use.duplicate)
        self._shared.set(use.shared)

    def on_step(self, stats: StepStats) -> None:
        """A step ended."""
        self._running.set(stats.running)
        self._waiting.set(stats.waiting)
        self._kv_usage.set(stats.blocks_used / stats.blocks_total if stats.blocks_total else 0.0)
        if stats.step_tokens:
            self._step_tokens.observe(stats.step_tokens)
            self._busy_s.inc(stats.step_duration_s)
        self._disk_bytes.set(stats.disk_bytes)
        now = _Totals(
            stats.preemptions,
            stats.prefix_queried_tokens,
            stats.prefix_hit_tokens,
            stats.disk_hit_tokens,
            stats.drafts,
            stats.draft_tokens,
            stats.accepted_tokens,
            stats.saved_steps,
        )
        if now != self._seen:
            if now.accepted_tokens != self._seen.accepted_tokens:
                self._count_places(stats.accepted_at)
            counters = (
                self._preemptions,
                self._prefix_queries,
                self._prefix_hits,
                self._disk_hits,
                self._drafts,
                self._draft_tokens,
                self._accepted,
                self._saved_steps,
            )
            for counter, total, before in zip(counters, now, self._seen, strict=True):
                counter.inc(total - before)
            self._seen = now

    def _count_places(self, accepted: tuple[int, ...]) -> None:
        before = self._accepted_before or (0,) * len(accepted)
        for place, (total, seen) in enumerate(zip(accepted, before, strict=True)):
            if total > seen:
                self._accepted_at.labels(self._model_name, str(place)).inc(total - seen)
        self._accepted_before = accepted

    def on_first_tokens(self, prompt_tokens: int, since_arrival_s: float) -> None:
        """A request's first output."""
        self._prompt_tokens.inc(prompt_tokens)
        self._ttft.observe(since_arrival_s)

    def on_tokens(self, count: int, since_last_s: float | None) -> None:
        """A sequence's output; `since_last_s` is None for its first."""
        self._generation_tokens.inc(count)
        if since_last_s is not None:
            self._itl.observe(since_last_s)

    def on_finish(self, reason: str, since_arrival_s: float) -> None:
        """A request ended: `stop`, `length`, `abort` (the reader left) or `error`."""
        self._finished[reason].inc()
        if reason in ("stop", "length"):
            self._e2e.observe(since_arrival_s)

    def on_refused(self, reason: str) -> None:
        """A request was turned away; the reasons are in docs/security.md, and in server/connections."""
        self._refused[reason].inc()

    def on_deadline(self, limit: str, stage: str) -> None:
        """A request's time was over; `limit` and `stage`: see server/deadlines."""
        self._deadlines[limit, stage].inc()

    def on_connections(self, count: int) -> None:
        """So many are open."""
        self._connections.set(count)

    def on_dropped(self, reason: str) -> None:
        """The server cut a connection off (for what reasons: server/connections)."""
        self._dropped[reason].inc()

    def on_batch_line(self, *, failed: bool) -> None:
        """A line of a batch has its result."""
        self._batch_lines[failed].inc()

    def on_quarantine(self) -> None:
        """A request ended the engine and is not tried again."""
        self._quarantined.inc()

    def on_restart(self) -> None:
        """A new engine process: nothing runs in it, and its totals begin at 0."""
        self._restarts.inc()
        self._seen = _Totals()
        self._accepted_before = ()
        self._running.set(0)
        self._waiting.set(0)
        self._kv_usage.set(0)

    def text(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self.registry)
