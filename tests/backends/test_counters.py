"""What a step of the native backend does, counted: barriers, bytes of weights, calls for memory. No clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from octavo.backends.base import ChoiceRule
from octavo.backends.native import NativeBackend
from octavo.models.store import open_model
from tests.backends.conftest import LIMITS, MakeBackend
from tests.backends.driver import Ask, run
from tests.backends.test_invariance import GREEDY, SEEDED, prompt


@pytest.mark.parametrize("rows", [1, 2, 16])
def test_few_rows_wait_at_most_five_times_a_layer(
    make: MakeBackend, tiny_model_path: Path, rows: int
) -> None:
    backend = make("native", tiny_model_path)
    assert isinstance(backend, NativeBackend)
    run(backend, [Ask(prompt(9), 3, GREEDY)] * rows)
    counters = backend.counters()
    assert (counters["barriers"], counters["by_rows"]) == (5 * backend.spec.layers, 0)


def test_many_rows_wait_twice_a_layer(make: MakeBackend, tiny_model_path: Path) -> None:
    backend = make("native", tiny_model_path)
    assert isinstance(backend, NativeBackend)
    run(backend, [Ask(prompt(200), 1, GREEDY)])
    counters = backend.counters()
    assert (counters["barriers"], counters["by_rows"]) == (2 * backend.spec.layers, 1)


@pytest.mark.parametrize(
    ("rows", "times", "head"), [(1, 1, 1), (16, 1, 1), (17, 2, 1), (33, 2, 2), (64, 2, 2)]
)
def test_each_weight_is_read_once_and_from_nine_rows_each_on_once_a_worker(
    make: MakeBackend, tiny_model_path: Path, rows: int, times: int, head: int
) -> None:
    """Two workers. The output matrix, which is also the embedding, is read once for every 32 samples."""
    limits = msgspec.structs.replace(LIMITS, max_slots=64, max_step_tokens=1024)
    backend = make("native", tiny_model_path, limits)
    assert isinstance(backend, NativeBackend)
    run(backend, [Ask(prompt(9), 3, GREEDY)] * rows)
    model = open_model(tiny_model_path)
    nbytes = [
        (t.rows == model.spec.vocab_size, t.nbytes) for t in model.tensors.values() if t.kind == "matrix"
    ]
    assert backend.counters()["weight_bytes"] == sum(
        n * (head if of_head else times) for of_head, n in nbytes
    )


@pytest.mark.parametrize("rule", [GREEDY, SEEDED])
def test_a_step_allocates_nothing(make: MakeBackend, tiny_model_path: Path, rule: ChoiceRule) -> None:
    """Neither one that decodes nor one that also begins and reads prompts, once its like has been seen."""
    backend = make("native", tiny_model_path)
    assert isinstance(backend, NativeBackend)
    asks = [Ask(prompt(n), 20, rule, arrive=n % 7) for n in (5, 40, 150, 9)]
    run(backend, asks, chunk=64)
    counted = Counted(backend)
    run(counted, asks, chunk=64)
    assert len(counted.allocations) > 20
    assert set(counted.allocations) == {0}


class Counted:
    """The same backend, noting after each step how often it asked for memory."""

    def __init__(self, backend: NativeBackend) -> None:
        self._backend = backend
        self.allocations: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def collect(self, handle: Any) -> Any:
        self.allocations.append(self._backend.counters()["allocations"])
        return self._backend.collect(handle)
