"""OpenVINO GenAI's worker: its continuous batching, step by step. See work.py.

The model is a folder with the GGUF's weights as OpenVINO's own reader converted them (see tools.py).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino
import openvino_genai

from benchmarks.peers.work import Task, answer, decoding, prompt


def measure(task: Task) -> Sequence[float]:
    flags = task.flags
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.max_num_batched_tokens = 512
    scheduler.max_num_seqs = max(task.work.streams, 1)
    scheduler.enable_prefix_caching = False
    scheduler.dynamic_split_fuse = True
    scheduler.cache_size = 2  # GB: 64 streams of 200 tokens in fp32 are 0.6
    properties = {
        "INFERENCE_NUM_THREADS": flags["threads"],
        "KV_CACHE_PRECISION": flags["kv"],
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": flags["group"],
        "PERFORMANCE_HINT": "LATENCY",
    }
    pipe = openvino_genai.ContinuousBatchingPipeline(task.model, scheduler, "CPU", properties)
    if task.work.kind == "prefill":
        return [_prefill(pipe, task, number) for number in range(1 + task.repeats)][1:]
    return [_decode(pipe, task, number) for number in range(task.repeats)]


def _add(pipe: Any, number: int, ids: Sequence[int], outputs: int) -> Any:
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = outputs
    config.ignore_eos = True
    config.do_sample = False
    return pipe.add_request(number, openvino.Tensor(np.array([ids], np.int64)), config)


def _prefill(pipe: Any, task: Task, number: int) -> float:
    handle = _add(
        pipe, number, prompt(f"p{number}", task.work.tokens, task.vocabulary), 1
    )  # ends when dropped
    began = time.perf_counter()
    while pipe.has_non_finished_requests():
        pipe.step()
    taken = time.perf_counter() - began
    if not handle.can_read():
        raise RuntimeError("the prompt gave no token")
    return task.work.tokens / taken


def _decode(pipe: Any, task: Task, number: int) -> float:
    streams = task.work.streams
    handles = [
        _add(
            pipe,
            1000 * number + stream,
            prompt(f"d{number}.{stream}", task.work.tokens, task.vocabulary),
            task.longest - task.work.tokens,
        )
        for stream in range(streams)
    ]

    def step() -> int:
        pipe.step()
        tokens = 0
        for handle in handles:
            if handle.can_read():
                tokens += sum(len(output.generated_ids) for output in handle.read().values())
        return tokens

    rate = decoding(task, step)
    for handle in handles:
        handle.stop()
    while pipe.has_non_finished_requests():
        pipe.step()
    return rate


if __name__ == "__main__":
    answer(measure)
