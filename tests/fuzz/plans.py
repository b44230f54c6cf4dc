"""`python -m tests.fuzz.plans FOLDER NUMBER…`: mutated plans to the kernels, in a process that may die of them.

Each case is named on stdout before it is tried, so that the last one named is the one that killed.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from octavo.backends.base import (
    BlockCopy,
    ChoiceRule,
    Limits,
    Plan,
    PlanError,
    PlanRow,
    SampleRow,
    Samples,
    SlotOpen,
)
from octavo.backends.native import NativeBackend
from octavo.models.store import StoredModel
from tests.fuzz.mutator import generator, mutated, places

LIMITS = Limits(num_blocks=64, block_size=16, max_slots=8, max_step_tokens=64, max_model_len=128)
_NUMBERS = (
    -1,
    0,
    1,
    2,
    3,
    7,
    8,
    15,
    16,
    17,
    31,
    32,
    63,
    64,
    65,
    127,
    128,
    129,
    286,
    287,
    2**15,
    2**31 - 1,
    2**31,
    2**63,
)
_PROMPT = tuple(range(40, 70))

GOOD = [
    Plan(
        0,
        (
            SlotOpen(
                0,
                _PROMPT,
                ((4, 9),),
                ChoiceRule(30, 7, 1.0, 5, 0.9, 0.1, bias=((5, 1.0),), banned_early=(2,), logprobs=2),
            ),
            SlotOpen(
                1,
                _PROMPT,
                ((4, 9),),
                ChoiceRule(30, repetition=1.1, frequency=0.1, presence=0.1, min_tokens=2),
            ),
            SlotOpen(2, _PROMPT, ((20, 21),), ChoiceRule(30), "mean"),
        ),
        (BlockCopy(0, 4, 5),),
        (PlanRow(0, 0, 30), PlanRow(2, 0, 30)),
        (SampleRow(0, 29, 0), SampleRow(0, 29, 1), SampleRow(0, 3, 0, 5, 2), SampleRow(1, 29, 2)),
    ),
    Plan(1, rows=(PlanRow(0, 30, 1, (-1,)),), samples=(SampleRow(0, 0, 0),)),
    Plan(
        2, (), (), (PlanRow(0, 31, 2, (-1, 70), (2,), ((10, 11),)),), (SampleRow(0, 0, 0), SampleRow(0, 1, 0))
    ),
]
"""Plans that follow each other."""

_SHAPES: dict[type, dict[int, type]] = {
    Plan: {1: SlotOpen, 2: BlockCopy, 3: PlanRow, 4: SampleRow},
    SlotOpen: {3: ChoiceRule},
}


def plan_of(value: Any, kind: type = Plan) -> Any:
    """A struct from lists, whatever they hold: the C++ side reads attributes, and nothing has checked their types."""
    if not isinstance(value, list):
        return value
    inner = _SHAPES.get(kind, {})
    parts = []
    for place, child in enumerate(value[: len(kind.__struct_fields__)]):  # type: ignore[attr-defined]
        if place in inner:
            child = plan_of(child, inner[place]) if kind is SlotOpen else _each(child, inner[place])
        parts.append(_tuples(child))
    try:
        return kind(*parts)
    except TypeError:
        return value


def _each(value: Any, kind: type) -> Any:
    return [plan_of(child, kind) for child in value] if isinstance(value, list) else value


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def mutant_of(random: random.Random, plan: Plan) -> Any:
    """A plan with changed numbers, or with anything."""
    value = json.loads(json.dumps(msgspec.to_builtins(plan)))
    if random.random() < 0.3:
        mutant = plan_of(mutated(random, value, ["x"], random.choice((1, 2, 3))))
        return mutant if isinstance(mutant, Plan) else plan
    leaves = [(at, key) for at, key in places(value) if not isinstance(at[key], list)]
    for at, key in random.sample(leaves, random.choice((1, 1, 2, 3, 5))):
        at[key] = (
            random.choice(_NUMBERS)
            if random.random() < 0.7
            else at[key] + random.choice((-1, 1))
            if isinstance(at[key], int)
            else None
        )
    return plan_of(value)


def masks_of(random: random.Random, count: int) -> Any:
    """Right ones, and others."""
    right = np.full(9, -1, np.int32)
    wrong: list[Any] = [right[:8], right.astype(np.int64), right.astype(np.float32), np.zeros((9, 1), np.int32),
                        np.zeros(18, np.int32)[::2], np.zeros(9, np.int32), b"x" * 36, 5, "mask", [1] * 9]  # fmt: skip
    match random.randrange(6):
        case 0:
            return [random.choice(wrong) for _ in range(count)]
        case 1:
            return [right] * random.choice((0, 1, count, count + 1, 100))
        case 2:
            return [right, None, random.choice(wrong), right][:count]
    return None


def play(backend: NativeBackend, plan: Any, masks: Any = None) -> Samples:
    handle = backend.launch(plan)
    backend.sample(handle, masks)
    return backend.collect(handle)


def main(folder: Path, numbers: list[int]) -> None:
    backend = NativeBackend(StoredModel.load(folder), LIMITS, threads=1)
    whole = [play(backend, plan) for plan in GOOD]
    told: Counter[str] = Counter()
    for number in numbers:
        print(number, flush=True)
        random = generator(number, "plans")
        last = random.randrange(len(GOOD))
        for plan in GOOD[:last]:
            play(backend, plan)
        for _ in range(random.choice((1, 1, 2, 4))):
            plan = mutant_of(random, GOOD[last])
            try:
                play(backend, plan, masks_of(random, len(GOOD[last].samples)))
                told["answered"] += 1
            except PlanError:
                told["refused"] += 1
                if backend._flight.last is not None and backend._flight.last.samples is None:
                    backend.sample(backend._flight.last)
            backend._flight.clear()
        assert [play(backend, plan) for plan in GOOD] == whole, "a plan left something behind"
    print(dict(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(number) for number in sys.argv[2:]])
