"""llama.cpp's worker: its C interface, the nearest to what its own server does with a batch. See work.py.

All streams are sequences of one context, one token each in a batch, and the choice is the greatest logit, found by
NumPy: the cheapest way that Python has. Nothing but `llama_decode` and that choice is in a measured step.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from typing import Any

import llama_cpp
import numpy as np

from benchmarks.peers.work import Clock, Task, answer, prompt

BATCH = 512
"""Prompt tokens given at a time, as Octavo takes them."""


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
def _quiet(level: int, text: bytes, data: ctypes.c_void_p) -> None:
    pass


class Context:
    """A model, a context and a batch."""

    def __init__(self, task: Task) -> None:
        llama_cpp.llama_log_set(_quiet, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(
            task.model.encode(), llama_cpp.llama_model_default_params()
        )
        if not self._model:
            raise RuntimeError(f"llama.cpp does not load {task.model}")
        flags = task.flags
        params = llama_cpp.llama_context_default_params()
        params.n_seq_max = task.work.streams
        params.n_ctx = task.work.streams * (-(-task.longest // 256) * 256)
        params.n_batch = max(BATCH, flags["ubatch"])
        params.n_ubatch = flags["ubatch"]
        params.n_threads = flags["threads"]
        params.n_threads_batch = flags["threads_batch"]
        params.flash_attn_type = int(flags["flash_attn"])
        kinds = {"f16": llama_cpp.GGML_TYPE_F16, "q8_0": llama_cpp.GGML_TYPE_Q8_0}
        params.type_k = params.type_v = kinds[flags["kv"]]
        params.kv_unified = flags["unified"]
        params.no_perf = True
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        if not self._context:
            raise RuntimeError(f"llama.cpp makes no context with {flags}")
        self._vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self._size = params.n_batch
        self._batch = llama_cpp.llama_batch_init(self._size, 0, 1)
        self._seq_ids = self._batch.seq_id
        self._tokens = self._view(self._batch.token, np.int32)
        self._positions = self._view(self._batch.pos, np.int32)
        self._counts = self._view(self._batch.n_seq_id, np.int32)
        self._wanted = self._view(self._batch.logits, np.int8)
        self._counts[:] = 1

    def _view(self, pointer: Any, kind: Any) -> Any:
        return np.ctypeslib.as_array(pointer, (self._size,)).view(kind)

    def clear(self) -> None:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), False)

    def read(self, sequence: int, ids: Sequence[int]) -> int:
        """Read a prompt, from an empty sequence; returns the token after it."""
        last = 0
        for start in range(0, len(ids), BATCH):
            part = ids[start : start + BATCH]
            last = len(part)
            self._tokens[:last] = part
            self._positions[:last] = np.arange(start, start + last)
            for row in range(last):
                self._seq_ids[row][0] = sequence
            self._wanted[:last] = 0
            self._wanted[last - 1] = start + last == len(ids)
            self._decode(last)
        return self._best(last - 1)

    def step(self, tokens: Sequence[int], position: int) -> list[int]:
        """One token for each sequence, all at this position; returns those that follow."""
        count = len(tokens)
        self._tokens[:count] = tokens
        self._positions[:count] = position
        self._wanted[:count] = 1
        for row in range(count):
            self._seq_ids[row][0] = row
        self._decode(count)
        return [self._best(row) for row in range(count)]

    def _decode(self, count: int) -> None:
        self._batch.n_tokens = count
        code = llama_cpp.llama_decode(self._context, self._batch)
        if code:
            raise RuntimeError(f"llama_decode returned {code}")

    def _best(self, row: int) -> int:
        logits = llama_cpp.llama_get_logits_ith(self._context, row)
        return int(np.ctypeslib.as_array(logits, (self._vocabulary,)).argmax())


def measure(task: Task) -> Sequence[float]:
    context = Context(task)
    if task.work.kind == "prefill":
        return [_prefill(context, task, number) for number in range(1 + task.repeats)][1:]
    return [_decode(context, task, number) for number in range(task.repeats)]


def _prefill(context: Context, task: Task, number: int) -> float:
    ids = prompt(f"p{number}", task.work.tokens, task.vocabulary)
    context.clear()
    began = time.perf_counter()
    context.read(0, ids)
    return task.work.tokens / (time.perf_counter() - began)


def _decode(context: Context, task: Task, number: int) -> float:
    context.clear()
    tokens = [
        context.read(stream, prompt(f"d{number}.{stream}", task.work.tokens, task.vocabulary))
        for stream in range(task.work.streams)
    ]
    position = task.work.tokens
    clock = Clock(task.work.streams, task.decoded)

    def step() -> int:
        nonlocal tokens, position
        tokens = context.step(tokens, position)
        position += 1
        return len(tokens)

    while not clock.done:
        clock.step(step)
    return clock.rate()


if __name__ == "__main__":
    answer(measure)
