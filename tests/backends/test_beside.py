"""Two models on the same threads: each answers as alone, and either may be closed first."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from octavo.backends.native import NativeBackend
from tests.backends.conftest import MakeBackend
from tests.backends.driver import run
from tests.backends.test_invariance import ASKS
from tests.models.tiny import write_tiny_llama

pytest.importorskip("octavo._kernels", reason="the kernels are not built")


def threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


@pytest.mark.parametrize("first", [0, 1])
def test_both_answer_as_alone(make: MakeBackend, tiny_model_path: Path, tmp_path: Path, first: int) -> None:
    other = write_tiny_llama(tmp_path / "other.gguf", seed=1)
    alone = [run(make("native", path, threads=3), ASKS) for path in (tiny_model_path, other)]
    assert alone[0] != alone[1]
    one = make("native", tiny_model_path, threads=3)
    before = threads()
    two = make("native", other, threads=1, beside=one)
    assert threads() == before
    assert isinstance(two, NativeBackend) and two.threads == 3
    for _ in range(2):
        assert [run(one, ASKS), run(two, ASKS)] == alone
    (one, two)[first].close()
    assert run((two, one)[first], ASKS) == alone[1 - first]


def test_one_of_them_computes_at_a_time(make: MakeBackend, tiny_model_path: Path) -> None:
    """Two calls at once would share workers that expect one: the second is refused."""
    one = make("native", tiny_model_path, threads=2)
    two = make("native", tiny_model_path, beside=one)
    refused: list[RuntimeError] = []

    def work(backend: object) -> None:
        for _ in range(30):
            try:
                run(backend, ASKS[:2])  # type: ignore[arg-type]
            except RuntimeError as error:
                refused.append(error)
                return

    workers = [threading.Thread(target=work, args=(backend,)) for backend in (one, two)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert refused and all("busy with a call of another thread" in str(error) for error in refused)
