"""Expositions shaped as the projects write them, and what our readings of them are."""

from __future__ import annotations

import re
from typing import Any

import pytest

from octavo.bench.exposition import samples
from octavo.bench.projects import PROJECTS, READINGS, project_of
from octavo.bench.readings import server_scalars
from octavo.bench.record import ServerSample
from octavo.bench.window import Window
from tests.conftest import REPOSITORY

VLLM = """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:num_requests_waiting{engine="1",model_name="m"} 0.0
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 1.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.25
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 1000.0
vllm:prefix_cache_queries_total{engine="1",model_name="m"} 1e+03
# TYPE vllm:prefix_cache_queries_created gauge
vllm:prefix_cache_queries_created{engine="0",model_name="m"} 1.79607e+09
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 400.0
vllm:prefix_cache_hits_total{engine="1",model_name="m"} 100.0
# TYPE vllm:external_prefix_cache_hits_total counter
vllm:external_prefix_cache_hits_total{engine="0",model_name="m"} 77.0
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{engine="0",model_name="m"} 2.0
vllm:num_preemptions_total{engine="1",model_name="m"} 0.0
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="m"} 1100.0
vllm:prompt_tokens_total{engine="1",model_name="m"} 1200.0
# TYPE vllm:prompt_tokens_by_source_total counter
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_compute"} 600.0
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="m"} 50.0
vllm:generation_tokens_total{engine="1",model_name="m"} 60.0
# TYPE vllm:spec_decode_num_draft_tokens_total counter
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 30.0
# TYPE vllm:spec_decode_num_accepted_tokens_total counter
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 20.0
# TYPE vllm:iteration_tokens_total histogram
vllm:iteration_tokens_total_bucket{engine="0",le="1.0",model_name="m"} 9.0
vllm:iteration_tokens_total_sum{engine="0",model_name="m"} 9.0
vllm:iteration_tokens_total_count{engine="0",model_name="m"} 9.0
"""
VLLM_READ = {
    "running": 7.0,
    "waiting": 1.0,
    "kv_use": 0.375,
    "prompt_tokens": 2300.0,
    "generated_tokens": 110.0,
    "prefix_queried_tokens": 2000.0,
    "prefix_hit_tokens": 500.0,
    "preemptions": 2.0,
    "drafted_tokens": 30.0,
    "accepted_tokens": 20.0,
}

OLD_VLLM = """vllm:num_requests_running{model_name="m"} 3.0
vllm:gpu_cache_usage_perc{model_name="m"} 0.5
vllm:gpu_prefix_cache_queries_total{model_name="m"} 1000.0
vllm:gpu_prefix_cache_hits_total{model_name="m"} 400.0
vllm:prompt_tokens{model_name="m"} 1100.0
"""

RANKS = 'engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0"'
SGLANG = f"""# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{{dp_rank="0",{RANKS},tp_rank="0"}} 3.0
sglang:num_running_reqs{{dp_rank="0",{RANKS},tp_rank="1"}} 3.0
sglang:num_running_reqs{{dp_rank="1",{RANKS},tp_rank="2"}} 5.0
# TYPE sglang:num_queue_reqs gauge
sglang:num_queue_reqs{{dp_rank="0",priority="",{RANKS},tp_rank="0"}} 6.0
sglang:num_queue_reqs{{dp_rank="0",priority="1",{RANKS},tp_rank="0"}} 4.0
sglang:num_queue_reqs{{dp_rank="0",priority="2",{RANKS},tp_rank="0"}} 2.0
# TYPE sglang:token_usage gauge
sglang:token_usage{{dp_rank="0",{RANKS},tp_rank="0"}} 0.2
sglang:token_usage{{dp_rank="1",{RANKS},tp_rank="2"}} 0.6
# TYPE sglang:num_retracted_reqs gauge
sglang:num_retracted_reqs{{dp_rank="0",{RANKS},tp_rank="0"}} 9.0
# TYPE sglang:num_retracted_requests_total counter
sglang:num_retracted_requests_total{{dp_rank="0",{RANKS},tp_rank="0"}} 2.0
# TYPE sglang:prefill_effective_tokens_total counter
sglang:prefill_effective_tokens_total{{dp_rank="0",mode="input",{RANKS},tp_rank="0"}} 60.0
sglang:prefill_effective_tokens_total{{dp_rank="0",mode="device_hit",{RANKS},tp_rank="0"}} 30.0
sglang:prefill_effective_tokens_total{{dp_rank="0",mode="host_hit",{RANKS},tp_rank="0"}} 9.0
sglang:prefill_effective_tokens_total{{dp_rank="0",mode="storage_hit",{RANKS},tp_rank="0"}} 1.0
# TYPE sglang:forward_execution_seconds_total counter
sglang:forward_execution_seconds_total{{category="extend",dp_rank="0",{RANKS},tp_rank="0"}} 1.5
sglang:forward_execution_seconds_total{{category="decode",dp_rank="0",{RANKS},tp_rank="0"}} 2.5
sglang:forward_execution_seconds_total{{category="decode",dp_rank="1",{RANKS},tp_rank="2"}} 2.0
# TYPE sglang:scheduler_idle_seconds_total counter
sglang:scheduler_idle_seconds_total{{dp_rank="0",{RANKS},tp_rank="0"}} 10.0
sglang:scheduler_idle_seconds_total{{dp_rank="1",{RANKS},tp_rank="2"}} 20.0
# TYPE sglang:prompt_tokens_total counter
sglang:prompt_tokens_total{{is_streaming="true",model_name="m"}} 90.0
sglang:prompt_tokens_total{{is_streaming="false",model_name="m"}} 10.0
# TYPE sglang:generation_tokens_total counter
sglang:generation_tokens_total{{is_streaming="true",model_name="m"}} 7.0
# TYPE sglang:cached_tokens_total counter
sglang:cached_tokens_total{{cache_source="device",model_name="m"}} 1.0
"""
SGLANG_READ = {
    "running": 8.0,
    "waiting": 6.0,
    "kv_use": 0.4,
    "prompt_tokens": 100.0,
    "generated_tokens": 7.0,
    "prefix_queried_tokens": 100.0,
    "prefix_hit_tokens": 40.0,
    "preemptions": 2.0,
    "busy_s": 3.0,
    "idle_s": 15.0,
}

LLAMA_CPP = """# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed, excluding cached tokens
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 1.20034e+06
# HELP llamacpp:prompt_tokens_cached_total Number of prompt tokens reused from the cache
# TYPE llamacpp:prompt_tokens_cached_total counter
llamacpp:prompt_tokens_cached_total 660
# TYPE llamacpp:prompt_seconds_total counter
llamacpp:prompt_seconds_total 3.5
# TYPE llamacpp:tokens_predicted_total counter
llamacpp:tokens_predicted_total 77
# TYPE llamacpp:tokens_predicted_seconds_total counter
llamacpp:tokens_predicted_seconds_total 100
# TYPE llamacpp:spec_decode_num_draft_tokens_total counter
llamacpp:spec_decode_num_draft_tokens_total 4
# TYPE llamacpp:spec_decode_num_accepted_tokens_total counter
llamacpp:spec_decode_num_accepted_tokens_total 3
# TYPE llamacpp:predicted_tokens_seconds gauge
llamacpp:predicted_tokens_seconds nan
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 2
# TYPE llamacpp:requests_deferred gauge
llamacpp:requests_deferred 5
# TYPE llamacpp:n_busy_slots_per_decode gauge
llamacpp:n_busy_slots_per_decode 1.5
"""
LLAMA_CPP_READ = {
    "running": 2.0,
    "waiting": 5.0,
    "prompt_tokens": 1_201_000.0,
    "generated_tokens": 77.0,
    "prefix_queried_tokens": 1_201_000.0,
    "prefix_hit_tokens": 660.0,
    "drafted_tokens": 4.0,
    "accepted_tokens": 3.0,
}

TGI = """# TYPE tgi_batch_inference_count counter
tgi_batch_inference_count{method="decode"} 5

# TYPE tgi_queue_size gauge
tgi_queue_size 6

# TYPE tgi_batch_current_size gauge
tgi_batch_current_size 4

# TYPE tgi_request_input_length histogram
tgi_request_input_length_bucket{le="1"} 0
tgi_request_input_length_sum 500
tgi_request_input_length_count 9

# TYPE tgi_request_generated_tokens histogram
tgi_request_generated_tokens_bucket{le="+Inf"} 9
tgi_request_generated_tokens_sum 90
tgi_request_generated_tokens_count 9

# TYPE tgi_batch_inference_duration histogram
tgi_batch_inference_duration_bucket{method="prefill",le="+Inf"} 2
tgi_batch_inference_duration_sum{method="prefill"} 0.5
tgi_batch_inference_duration_sum{method="decode"} 1.75
"""
TGI_READ = {
    "running": 4.0,
    "waiting": 6.0,
    "prompt_tokens": 500.0,
    "generated_tokens": 90.0,
    "busy_s": 2.25,
}


def read(text: str) -> tuple[str, dict[str, float]]:
    wanted = frozenset(name for project in PROJECTS for name in project.metrics())
    found = list(samples(text.encode(), wanted))
    project = project_of(sample.name for sample in found)
    assert project is not None
    return project.name, project.values(found)


@pytest.mark.parametrize(
    ("text", "name", "values"),
    [
        (VLLM, "vLLM", VLLM_READ),
        (VLLM.replace("vllm:", "vllm_"), "vLLM", VLLM_READ),
        (VLLM.replace("_total{", "{").replace("_total counter", " counter"), "vLLM", VLLM_READ),
        (
            OLD_VLLM,
            "vLLM",
            {
                "running": 3.0,
                "kv_use": 0.5,
                "prompt_tokens": 1100.0,
                "prefix_queried_tokens": 1000.0,
                "prefix_hit_tokens": 400.0,
            },
        ),
        (SGLANG, "SGLang", SGLANG_READ),
        (LLAMA_CPP, "llama.cpp", LLAMA_CPP_READ),
        (TGI, "TGI", TGI_READ),
        (
            VLLM + 'octavo_engine_busy_seconds_total{model_name="m"} 4.5\n',
            "Octavo",
            VLLM_READ | {"busy_s": 4.5},
        ),
    ],
)
def test_each_projects_metrics(text: str, name: str, values: dict[str, float]) -> None:
    project, found = read(text)
    assert project == name
    assert found == pytest.approx(values, rel=1e-12)


def test_sglang_before_it_counted_what_it_looks_up() -> None:
    _, found = read("".join(line + "\n" for line in SGLANG.splitlines() if "effective" not in line))
    assert (found["prefix_queried_tokens"], found["prefix_hit_tokens"]) == (100.0, 1.0)


def test_nobodys_metrics() -> None:
    assert project_of(["go_goroutines", "http_requests_total"]) is None
    assert project_of([]) is None


def test_every_name_is_one_of_ours_and_each_of_ours_is_known_somewhere() -> None:
    ours = [reading.name for reading in READINGS]
    assert len(set(ours)) == len(ours)
    used = {name for project in PROJECTS for name in project.terms}
    assert used == set(ours)


def scalars(**series: list[float]) -> dict[str, Any]:
    """Readings a second apart, over all of their time."""
    length = max(map(len, series.values()))
    rows = [
        ServerSample(place * 1_000_000, {name: values[place] for name, values in series.items()})
        for place in range(length)
    ]
    return server_scalars(rows, Window(start_us=0, end_us=(length - 1) * 1_000_000, rule="all"))


def test_how_busy_an_engine_was() -> None:
    """By its own clock, by the time in which it was idle, or, where it tells neither, by whether requests ran."""
    running = [0.0, 2.0, 2.0, 1.0, 0.0]
    measured = scalars(running=running, busy_s=[7.0, 7.5, 8.5, 9.0, 9.0], idle_s=[1.0, 2.0, 3.0, 4.0, 5.0])
    assert measured["busy_share"] == pytest.approx(0.5)
    idle = scalars(running=running, idle_s=[1.0, 1.5, 1.5, 1.5, 2.0])
    assert idle["busy_share"] == pytest.approx(0.75)
    neither = scalars(running=running)
    assert neither["busy_share"] is None
    assert [one["busy_share_estimate"] for one in (measured, idle, neither)] == pytest.approx([0.75] * 3)
    assert scalars(waiting=[1.0, 1.0])["busy_share_estimate"] is None


def test_the_page_has_each_reading_with_the_metrics_it_is_made_of() -> None:
    page = (REPOSITORY / "docs" / "bench.md").read_text()
    section = page.partition("## What the server says")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", section, re.MULTILINE))
    assert list(rows) == [reading.name for reading in READINGS]
    for reading in READINGS:
        assert rows[reading.name].startswith(f"{reading.unit} |")
        told = set(re.findall(r"`([^`]+)`", rows[reading.name]))
        sums = [terms for project in PROJECTS for terms in project.terms.get(reading.name, ())]
        assert told == {term.metric for terms in sums for term in terms}
