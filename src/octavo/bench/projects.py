"""Which metric of which server says what: our name of each reading, and from what it is made in each project.

Knows names and how samples add up, not how a text is fetched or read. Looked up in the projects' sources:

| project   | seen in                                                                 | exposed                |
|-----------|-------------------------------------------------------------------------|------------------------|
| Octavo    | octavo/telemetry/metrics.py: vLLM's names, and a few of its own         | always                 |
| vLLM      | 0.32.0, vllm/v1/metrics/loggers.py, vllm/v1/spec_decode/metrics.py      | always                 |
| SGLang    | 0.5.23, sglang/srt/observability/metrics_collector.py                   | with --enable-metrics  |
| llama.cpp | as in llama-cpp-python 0.3.36, tools/server/server-task.cpp             | with --metrics         |
| TGI       | 3.x, router/src/server.rs, backends/v3/src/backend.rs, its metrics page | always                 |

Names that vLLM had before (`gpu_cache_usage_perc`, `gpu_prefix_cache_*`) come after today's. A counter is exposed with
`_total` by some client libraries and without it by others: here it stands without.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from octavo.bench.exposition import Sample

__all__ = ["PROJECTS", "READINGS", "Project", "Reading", "Term", "model_of", "project_of"]


class Reading(NamedTuple):
    """One of our names."""

    name: str
    unit: str
    words: str
    counter: bool = False
    """It only grows, until the server starts again."""
    mean: bool = False
    """Of several engines behind one address the mean, not the sum."""


READINGS = (
    Reading("running", "sequences", "Requests that the server works on."),
    Reading("waiting", "sequences", "Requests that wait in the server."),
    Reading("kv_use", "share", "How full the KV memory is; 1 is full.", mean=True),
    Reading("prompt_tokens", "tokens", "Prompt tokens taken, found in a cache or computed.", counter=True),
    Reading("generated_tokens", "tokens", "Tokens made.", counter=True),
    Reading("prefix_queried_tokens", "tokens", "Prompt tokens looked up in the prefix cache.", counter=True),
    Reading("prefix_hit_tokens", "tokens", "Prompt tokens found there.", counter=True),
    Reading("preemptions", "count", "Running requests that were set back for want of memory.", counter=True),
    Reading("drafted_tokens", "tokens", "Guessed tokens (speculative decoding).", counter=True),
    Reading("accepted_tokens", "tokens", "Guessed tokens that were right.", counter=True),
    Reading("busy_s", "s", "Time in which the engine computed.", counter=True, mean=True),
    Reading("idle_s", "s", "Time in which the engine had nothing to do.", counter=True, mean=True),
)


class Term(NamedTuple):
    """A metric that counts: all of its samples, or those with one of some values of a label."""

    metric: str
    label: str = ""
    values: frozenset[str] = frozenset()

    def takes(self, labels: Mapping[str, str]) -> bool:
        return not self.label or labels.get(self.label, "") in self.values


Sum = tuple[Term, ...]

_ENGINE = ("engine", "dp_rank", "engine_type")
"""Labels that tell engines behind one address apart."""
_WORKER = ("tp_rank", "pp_rank", "moe_ep_rank")
"""Labels of processes that are one engine together: each may tell the same."""
_MODEL = ("model_name", "model")


class Project(NamedTuple):
    """A kind of server."""

    name: str
    terms: Mapping[str, tuple[Sum, ...]]
    """By reading: sums of metrics, of which the first counts that has any sample."""
    marks: tuple[str, ...]
    """What metrics of this project's alone begin with."""

    def values(self, samples: Iterable[Sample]) -> dict[str, float]:
        """Our readings. A reading of which there is no sample is not in it."""
        of_metric: dict[str, list[Sample]] = {}
        for sample in samples:
            # A request's priority is a label of SGLang's beside the sum over all, where it is "".
            if not sample.labels.get("priority"):
                of_metric.setdefault(_plain(sample.name), []).append(sample)
        found: dict[str, float] = {}
        for reading in READINGS:
            for terms in self.terms.get(reading.name, ()):
                taken = [
                    sample
                    for term in terms
                    for sample in of_metric.get(_plain(term.metric), ())
                    if term.takes(sample.labels)
                ]
                if taken:
                    found[reading.name] = _joined(taken, mean=reading.mean)
                    break
        return found

    def metrics(self) -> set[bytes]:
        """The names to look for in a text, in each of their spellings."""
        names = {term.metric for sums in self.terms.values() for terms in sums for term in terms}
        spelled = {one for name in names for one in (name, name.replace(":", "_"))}
        return {one.encode() for name in spelled for one in (name, f"{name}_total")}


def project_of(names: Iterable[str]) -> Project | None:
    """Whose metrics these are; None where they are nobody's that we know."""
    plain = [name.replace(":", "_") for name in names]
    for project in PROJECTS:
        if any(name.startswith(project.marks) for name in plain):
            return project
    return None


def model_of(sample: Sample) -> str | None:
    """The model that a sample is of, where it says."""
    return next((sample.labels[label] for label in _MODEL if sample.labels.get(label)), None)


def _plain(name: str) -> str:
    return name.replace(":", "_").removesuffix("_total")


def _joined(samples: list[Sample], *, mean: bool) -> float:
    """Added up in each process; of an engine's processes the largest; of engines the sum or the mean."""
    processes: dict[tuple[tuple[str, ...], tuple[str, ...]], float] = {}
    for sample in samples:
        engine, worker = (
            tuple(sample.labels.get(label, "") for label in labels) for labels in (_ENGINE, _WORKER)
        )
        processes[engine, worker] = processes.get((engine, worker), 0.0) + sample.value
    engines: dict[tuple[str, ...], float] = {}
    for (engine, _), value in processes.items():
        engines[engine] = max(value, engines.get(engine, value))
    return sum(engines.values()) / (len(engines) if mean else 1)


def _one(*metrics: str) -> tuple[Sum, ...]:
    """One metric, by today's name or an older one."""
    return tuple((Term(metric),) for metric in metrics)


_VLLM: dict[str, tuple[Sum, ...]] = {
    "running": _one("vllm:num_requests_running"),
    "waiting": _one("vllm:num_requests_waiting"),
    "kv_use": _one("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    "prompt_tokens": _one("vllm:prompt_tokens"),
    "generated_tokens": _one("vllm:generation_tokens"),
    "prefix_queried_tokens": _one("vllm:prefix_cache_queries", "vllm:gpu_prefix_cache_queries"),
    "prefix_hit_tokens": _one("vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_hits"),
    "preemptions": _one("vllm:num_preemptions"),
    "drafted_tokens": _one("vllm:spec_decode_num_draft_tokens"),
    "accepted_tokens": _one("vllm:spec_decode_num_accepted_tokens"),
}

_SGLANG_HITS = frozenset({"device_hit", "host_hit", "storage_hit"})

PROJECTS = (
    Project(
        "Octavo",
        _VLLM | {"busy_s": _one("octavo_engine_busy_seconds")},
        ("octavo_",),
    ),
    Project("vLLM", _VLLM, ("vllm_",)),
    Project(
        "SGLang",
        {
            "running": _one("sglang:num_running_reqs"),
            "waiting": _one("sglang:num_queue_reqs"),
            "kv_use": _one("sglang:token_usage"),
            "prompt_tokens": _one("sglang:prompt_tokens"),
            "generated_tokens": _one("sglang:generation_tokens"),
            # The first is counted while prompts are computed, the others when a request ends.
            "prefix_queried_tokens": _one("sglang:prefill_effective_tokens", "sglang:prompt_tokens"),
            "prefix_hit_tokens": (
                (Term("sglang:prefill_effective_tokens", "mode", _SGLANG_HITS),),
                (Term("sglang:cached_tokens"),),
            ),
            "preemptions": _one("sglang:num_retracted_requests"),
            # Where it measures its GPU's time (SGLANG_ENABLE_METRICS_DEVICE_TIMER).
            "busy_s": _one("sglang:forward_execution_seconds"),
            "idle_s": _one("sglang:scheduler_idle_seconds"),
        },
        ("sglang_",),
    ),
    Project(
        "llama.cpp",
        {
            "running": _one("llamacpp:requests_processing"),
            "waiting": _one("llamacpp:requests_deferred"),
            "kv_use": _one("llamacpp:kv_cache_usage_ratio"),
            # The first is of computed ones alone.
            "prompt_tokens": ((Term("llamacpp:prompt_tokens"), Term("llamacpp:prompt_tokens_cached")),),
            "generated_tokens": _one("llamacpp:tokens_predicted"),
            "prefix_queried_tokens": (
                (Term("llamacpp:prompt_tokens"), Term("llamacpp:prompt_tokens_cached")),
            ),
            "prefix_hit_tokens": _one("llamacpp:prompt_tokens_cached"),
            "drafted_tokens": _one("llamacpp:spec_decode_num_draft_tokens"),
            "accepted_tokens": _one("llamacpp:spec_decode_num_accepted_tokens"),
        },
        ("llamacpp_",),
    ),
    Project(
        "TGI",
        {
            "running": _one("tgi_batch_current_size"),
            "waiting": _one("tgi_queue_size"),
            "prompt_tokens": _one("tgi_request_input_length_sum"),
            "generated_tokens": _one("tgi_request_generated_tokens_sum"),
            "busy_s": _one("tgi_batch_inference_duration_sum"),
        },
        ("tgi_",),
    ),
)
"""In the order in which they are asked: Octavo has vLLM's names too."""
