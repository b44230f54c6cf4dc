"""vLLM's worker: its LLM class with the engine in this process, step by step. See work.py.

The model is a folder with the GGUF's weights, widened (see tools.py): vLLM's CPU backend has no kernels for GGUF.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.peers.work import Task, answer, decoding, prompt


def measure(task: Task) -> Sequence[float]:
    os.environ.update(
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_CPU_KVCACHE_SPACE="2",
        VLLM_CPU_OMP_THREADS_BIND=task.flags["bind"],
        VLLM_LOGGING_LEVEL="ERROR",
        HF_HUB_OFFLINE="1",
    )
    import vllm

    llm = vllm.LLM(
        model=task.model,
        dtype=task.flags["dtype"],
        max_model_len=max(task.longest, 512),
        max_num_seqs=64,
        max_num_batched_tokens=max(512, task.flags["batched"]),
        enable_prefix_caching=False,
        enforce_eager=task.flags["eager"],
        disable_log_stats=True,
    )
    engine = llm.llm_engine
    if task.work.kind == "prefill":
        return [_prefill(engine, task, number) for number in range(1 + task.repeats)][1:]
    return [_decode(engine, task, number) for number in range(task.repeats)]


def _add(engine: Any, name: str, ids: list[int], outputs: int) -> None:
    from vllm import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=outputs, ignore_eos=True, detokenize=False)
    engine.add_request(name, {"prompt_token_ids": ids}, params)


def _prefill(engine: Any, task: Task, number: int) -> float:
    _add(engine, f"p{number}", prompt(f"p{number}", task.work.tokens, task.vocabulary), 1)
    began = time.perf_counter()
    while engine.has_unfinished_requests():
        engine.step()
    return task.work.tokens / (time.perf_counter() - began)


def _decode(engine: Any, task: Task, number: int) -> float:
    names = [f"d{number}.{stream}" for stream in range(task.work.streams)]
    for name in names:
        ids = prompt(name, task.work.tokens, task.vocabulary)
        _add(engine, name, ids, task.longest - task.work.tokens)
    seen: dict[str, int] = {}

    def step() -> int:
        tokens = 0
        for output in engine.step():
            count = len(output.outputs[0].token_ids)
            tokens += count - seen.get(output.request_id, 0)
            seen[output.request_id] = count
        return tokens

    rate = decoding(task, step)
    engine.abort_request(names)
    while engine.has_unfinished_requests():
        engine.step()
    return rate


if __name__ == "__main__":
    answer(measure)
