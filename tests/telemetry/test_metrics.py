"""Prometheus metrics: names, and numbers that are right over steps, ends and restarts."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from octavo.engine.messages import Stats
from octavo.memory.accounting import MemoryUse
from octavo.telemetry.metrics import Metrics


def stats(
    running: int = 0,
    preemptions: int = 0,
    step_tokens: int = 0,
    used: int = 0,
    queried: int = 0,
    hits: int = 0,
    disk: int = 0,
    disk_hits: int = 0,
    accepted_at: tuple[int, ...] = (),
    step_s: float = 0.0,
) -> Stats:
    return Stats(
        running,
        0,
        100,
        used,
        0,
        step_s,
        step_tokens,
        preemptions,
        0,
        0,
        queried,
        hits,
        disk,
        disk_hits,
        drafts=len(accepted_at),
        draft_tokens=2 * sum(accepted_at),
        accepted_tokens=sum(accepted_at),
        accepted_at=accepted_at,
    )


def samples(metrics: Metrics) -> dict[str, float]:
    families = text_string_to_metric_families(metrics.text().decode())
    found = {}
    for family in families:
        for sample in family.samples:
            assert sample.labels["model_name"] == "m"
            own = [value for label, value in sample.labels.items() if label not in ("model_name", "le")]
            reason = own[0] if own else None
            if "le" not in sample.labels:
                found[f"{sample.name}/{reason}" if reason else sample.name] = sample.value
    return found


def test_vllms_names_and_ours() -> None:
    assert set(samples(Metrics("m"))) == {
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:num_preemptions_total",
        "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_hits_total",
        "vllm:prompt_tokens_total",
        "vllm:generation_tokens_total",
        "vllm:iteration_tokens_total_count",
        "vllm:iteration_tokens_total_sum",
        "vllm:time_to_first_token_seconds_count",
        "vllm:time_to_first_token_seconds_sum",
        "vllm:inter_token_latency_seconds_count",
        "vllm:inter_token_latency_seconds_sum",
        "vllm:e2e_request_latency_seconds_count",
        "vllm:e2e_request_latency_seconds_sum",
        "vllm:request_success_total/stop",
        "vllm:request_success_total/length",
        "vllm:request_success_total/abort",
        "vllm:request_success_total/error",
        "vllm:spec_decode_num_drafts_total",
        "vllm:spec_decode_num_draft_tokens_total",
        "vllm:spec_decode_num_accepted_tokens_total",
        "octavo_spec_decode_saved_steps_total",
        "octavo_cache_disk_bytes",
        "octavo_cache_disk_hit_tokens_total",
        "octavo_engine_busy_seconds_total",
        "octavo_engine_restarts_total",
        "octavo_requests_quarantined_total",
        "octavo_requests_refused_total/queue_full",
        "octavo_requests_refused_total/queue_tokens",
        "octavo_requests_refused_total/key",
        "octavo_requests_refused_total/key_concurrency",
        "octavo_requests_refused_total/key_requests",
        "octavo_requests_refused_total/key_tokens",
        "octavo_requests_refused_total/connections",
        "octavo_requests_refused_total/bodies",
        "octavo_deadlines_exceeded_total/request",
        "octavo_deadlines_exceeded_total/server",
        "octavo_requests_refused_total/page",
        "octavo_connections",
        "octavo_connections_dropped_total/stalled",
        "octavo_connections_dropped_total/buffer_full",
        "octavo_connections_dropped_total/idle",
        "octavo_connections_dropped_total/connections",
        "octavo_connections_dropped_total/pipelined",
        "octavo_batch_lines_total/completed",
        "octavo_batch_lines_total/failed",
        "octavo_kv_waste_tokens/internal",
        "octavo_kv_waste_tokens/external",
        "octavo_kv_waste_tokens/duplicate",
        "octavo_kv_shared_tokens",
    }


def test_waste_by_kind() -> None:
    metrics = Metrics("m")
    metrics.on_memory(MemoryUse(total=160, allocated=64, stored=50, external=32, duplicate=16, shared=48))
    found = samples(metrics)
    kinds = {kind: found[f"octavo_kv_waste_tokens/{kind}"] for kind in ("internal", "external", "duplicate")}
    assert kinds == {"internal": 14, "external": 32, "duplicate": 16}
    assert found["octavo_kv_shared_tokens"] == 48


def test_two_servers_in_one_process_do_not_share_numbers() -> None:
    first, second = Metrics("m"), Metrics("m")
    first.on_tokens(5, None)
    assert samples(first)["vllm:generation_tokens_total"] == 5
    assert samples(second)["vllm:generation_tokens_total"] == 0


def test_a_requests_life() -> None:
    metrics = Metrics("m")
    metrics.on_first_tokens(7, 0.5)
    metrics.on_tokens(1, None)
    metrics.on_tokens(2, 0.25)
    metrics.on_finish("stop", 1.5)
    metrics.on_finish("abort", 9.0)
    found = samples(metrics)
    assert found["vllm:prompt_tokens_total"] == 7
    assert found["vllm:generation_tokens_total"] == 3
    assert found["vllm:time_to_first_token_seconds_sum"] == 0.5
    assert found["vllm:inter_token_latency_seconds_count"] == 1
    assert found["vllm:e2e_request_latency_seconds_sum"] == 1.5
    assert found["vllm:request_success_total/stop"] == 1
    assert found["vllm:request_success_total/abort"] == 1


def test_the_engine_is_busy_in_steps_that_compute_and_the_count_survives_it() -> None:
    metrics = Metrics("m")
    metrics.on_step(stats(step_tokens=10, step_s=0.25))
    metrics.on_step(stats(step_tokens=0, step_s=0.5))  # it waited for a grammar, or for the disk
    metrics.on_restart()
    metrics.on_step(stats(step_tokens=1, step_s=0.125))
    assert samples(metrics)["octavo_engine_busy_seconds_total"] == 0.375


def test_totals_go_on_over_a_restart_and_gauges_begin_anew() -> None:
    metrics = Metrics("m")
    metrics.on_step(stats(running=3, preemptions=2, step_tokens=10, used=25, queried=100, hits=16))
    metrics.on_step(stats(running=3, preemptions=5, step_tokens=0, used=50, queried=100, hits=16))
    found = samples(metrics)
    assert found["vllm:num_preemptions_total"] == 5
    assert found["vllm:kv_cache_usage_perc"] == 0.5
    assert found["vllm:iteration_tokens_total_count"] == 1
    metrics.on_step(stats(preemptions=5, queried=100, hits=16, accepted_at=(4, 1)))
    metrics.on_restart()
    assert samples(metrics)["vllm:num_requests_running"] == 0
    metrics.on_step(
        stats(running=3, preemptions=1, queried=30, hits=16, disk=7, disk_hits=32, accepted_at=(3, 0))
    )
    found = samples(metrics)
    assert found["vllm:num_preemptions_total"] == 6
    assert found["vllm:prefix_cache_queries_total"] == 130
    assert found["vllm:prefix_cache_hits_total"] == 32
    assert found["octavo_cache_disk_bytes"] == 7
    assert found["octavo_cache_disk_hit_tokens_total"] == 32
    assert found["octavo_engine_restarts_total"] == 1
    assert found["vllm:spec_decode_num_accepted_tokens_total"] == 8
    assert found["vllm:spec_decode_num_draft_tokens_total"] == 16
    assert found["vllm:spec_decode_num_accepted_tokens_per_pos_total/0"] == 7
    assert found["vllm:spec_decode_num_accepted_tokens_per_pos_total/1"] == 1
