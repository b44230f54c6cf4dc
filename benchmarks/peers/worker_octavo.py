"""Octavo's worker: the engine in this process, without HTTP. See work.py."""

from __future__ import annotations

import time
from collections.abc import Sequence

from benchmarks.engine import add
from benchmarks.peers.work import Task, answer, decoding
from octavo.config import EngineConfig
from octavo.engine.build import build_engine
from octavo.engine.engine import Engine
from octavo.models.store import open_model


def measure(task: Task) -> Sequence[float]:
    blocks = task.work.streams * (-(-task.longest // 16) + 1)
    config = EngineConfig(
        speculation="off",  # one token of each stream a step
        prefix_cache=False,
        model_dir=str(open_model(task.model).dir),
        num_blocks=blocks,
        max_model_len=task.longest,
        **task.flags,
    )
    engine = build_engine(config)
    try:
        if task.work.kind == "prefill":
            return [_prefill(engine, task, number) for number in range(1 + task.repeats)][1:]
        return [_decode(engine, task, number) for number in range(task.repeats)]
    finally:
        engine.close()


def _prefill(engine: Engine, task: Task, number: int) -> float:
    engine.add(add(f"p{number}", task.work.tokens, 1, task.vocabulary))
    began = time.perf_counter()
    while not engine.idle:
        engine.step()
    return task.work.tokens / (time.perf_counter() - began)


def _decode(engine: Engine, task: Task, number: int) -> float:
    names = [f"d{number}.{stream}" for stream in range(task.work.streams)]
    for name in names:
        engine.add(add(name, task.work.tokens, task.longest - task.work.tokens, task.vocabulary))
    rate = decoding(task, lambda: sum(len(item.samples) for item in engine.step().items))
    for name in names:
        engine.abort(name)
    while not engine.idle:
        engine.step()
    return rate


if __name__ == "__main__":
    answer(measure)
