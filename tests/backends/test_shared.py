"""Sequences that share segments of KV: attention reads these once for all, and no bit of an answer knows of it.

Every answer is compared (`==` on ids and float32 log-probabilities) with that of the same request alone, in blocks of
its own. What was read is counted, not timed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from octavo.backends.base import Limits
from octavo.backends.native import NativeBackend
from tests.backends.conftest import make_backend
from tests.backends.driver import WHOLE, Ask, Told, run
from tests.backends.test_invariance import GREEDY, SEEDED, prompt
from tests.models.tiny import write_tiny_llama

kernels = pytest.importorskip("octavo._kernels", reason="the kernels are not built")

SEGMENT = 256
BLOCK = 16
LIMITS = Limits(num_blocks=2400, block_size=BLOCK, max_slots=40, max_step_tokens=1024, max_model_len=1024)
HEADS = {"two-a-group": (4, 2), "one-a-group": (2, 2), "three-a-group": (9, 3), "seven-a-group": (7, 1)}
"""Query heads and KV heads."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By the names of HEADS."""
    folder = tmp_path_factory.mktemp("shared")
    return {
        name: write_tiny_llama(folder / f"{name}.gguf", heads=heads, kv_heads=kv_heads)
        for name, (heads, kv_heads) in HEADS.items()
    }


def native(path: Path, limits: Limits = LIMITS, **options: Any) -> NativeBackend:
    backend = make_backend("native", path, limits, **{"threads": 2, **options})
    assert isinstance(backend, NativeBackend)
    return backend


KINDS = [
    ("two-a-group", "fp32", 2),
    ("two-a-group", "bf16", 2),
    ("two-a-group", "int8", 2),
    ("two-a-group", "bf16", 1),
    ("one-a-group", "fp32", 1),
    ("three-a-group", "bf16", 2),
    ("three-a-group", "int8", 1),
    ("seven-a-group", "fp32", 2),
]


@pytest.fixture(params=KINDS, ids=lambda kind: "-".join(map(str, kind)), scope="module")
def backend(request: pytest.FixtureRequest, model: dict[str, Path]) -> Iterator[NativeBackend]:
    """One for all tests: what others left in its memory must not matter."""
    heads, kv_dtype, threads = request.param
    made = native(model[heads], kv_dtype=kv_dtype, threads=threads)
    yield made
    made.close()


def ids(seed: object, count: int) -> tuple[int, ...]:
    return tuple(random.Random(str(seed)).choices(range(3, 287), k=count))


def family(length: int, count: int, new_tokens: int = 6) -> list[Ask]:
    """Requests that begin with the same `length` tokens. The first computes them, and leaves before the others."""
    first, *others = (
        Ask(prompt(length) + ids((length, number), 1 + number % 20), new_tokens, (GREEDY, SEEDED)[number % 2])
        for number in range(count)
    )
    late = [
        Ask(ask.prompt, new_tokens + 2 + i % 3, ask.rule, arrive=1 + i % 2) for i, ask in enumerate(others)
    ]
    return [first, *late]


def alone(backend: NativeBackend, asks: list[Ask]) -> list[Told]:
    return [run(backend, [Ask(ask.prompt, ask.new_tokens, ask.rule, ask.n)])[0] for ask in asks]


@pytest.mark.parametrize("length", [255, 256, 257, 511, 512, 513])
def test_around_the_borders_of_segments(backend: NativeBackend, length: int) -> None:
    asks = family(length, 5)
    assert run(backend, asks, share=True, seed=length) == alone(backend, asks)


@pytest.mark.parametrize(("segments", "count"), [(1, 2), (1, 33), (2, 8), (3, 3), (3, 17)])
def test_groups_of_all_sizes(backend: NativeBackend, segments: int, count: int) -> None:
    asks = family(segments * SEGMENT + 5, count)
    assert run(backend, asks, share=True, seed=count) == alone(backend, asks)


def tree() -> list[Ask]:
    """Two branches of two segments each on one trunk of one, and one request that leaves the trunk at once."""
    trunk = prompt(SEGMENT)
    asks = [Ask(trunk + ids("bare", 3), 16, GREEDY)]
    for branch in range(2):
        stem = trunk + ids(branch, 2 * SEGMENT)
        for leaf in range(4):
            own = ids((branch, leaf), 2 + 9 * leaf)
            asks.append(Ask(stem + own, 5 + 4 * leaf, (SEEDED, GREEDY)[leaf % 2], arrive=1 + 2 * (leaf > 0)))
    return asks


def strangers() -> list[Ask]:
    """Nobody's relatives: short, long and just as long, coming and going."""
    lengths = (1, 30, 255, 256, 300, 515, 769, 800)
    return [Ask(ids(n, n), 3 + n % 9, (GREEDY, SEEDED)[n % 2], arrive=n % 5) for n in lengths]


@pytest.mark.parametrize("chunk", [5, 64, WHOLE])
def test_a_tree_among_strangers(backend: NativeBackend, chunk: int) -> None:
    """Some share one segment, some three; prompts are read beside them, in rows of few tokens and of many."""
    asks = [*tree(), *strangers()]
    expected = alone(backend, asks)
    assert run(backend, asks, share=True, chunk=chunk, seed=chunk) == expected
    assert run(backend, asks[::-1], share=True, chunk=chunk)[::-1] == expected


def test_children_of_one_request(backend: NativeBackend) -> None:
    """They share whole segments and copy the block that they write."""
    ask = Ask(prompt(520), 20, SEEDED, n=6)
    (expected,) = alone(backend, [ask])
    assert run(backend, [*strangers(), ask], chunk=300)[-1] == expected


def test_some_computed_again(backend: NativeBackend) -> None:
    asks = family(530, 6, new_tokens=9)
    assert run(backend, asks, share=True, drop_every=4) == alone(backend, asks)


def test_where_the_memory_for_parts_is_full(model: dict[str, Path]) -> None:
    """It is as long as each slot's longest sequence with one token a step; rows of more tokens fill it sooner."""
    backend = native(model["two-a-group"], msgspec.structs.replace(LIMITS, max_slots=4))
    asks = [Ask(prompt(530) + ids(number, 40), 8, GREEDY, arrive=number > 0) for number in range(4)]
    expected = alone(backend, asks)
    for chunk in (3, 8):
        assert run(backend, asks, share=True, chunk=chunk) == expected
    backend.close()


@pytest.mark.parametrize("isa", kernels.ops.isas())
def test_on_every_instruction_set(model: dict[str, Path], isa: str) -> None:
    backend, best = native(model["three-a-group"], isa=isa), native(model["three-a-group"])
    asks = family(515, 4)
    assert run(backend, asks, share=True) == alone(best, asks)
    backend.close()
    best.close()


class Reads:
    """The same backend, noting the bytes of K and V that each step reads, and its rows."""

    def __init__(self, backend: NativeBackend) -> None:
        self._backend = backend
        self.steps: list[tuple[int, tuple[Any, ...]]] = []
        self.allocations: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def launch(self, plan: Any) -> Any:
        handle = self._backend.launch(plan)
        counters = self._backend.counters()
        self.steps.append((counters["kv_bytes"], plan.rows))
        self.allocations.add(counters["allocations"])
        return handle


def bytes_of_blocks(backend: NativeBackend, blocks: int) -> int:
    """Of K and V in all layers."""
    return blocks * backend.block_bytes


def blocks_seen(row: Any) -> int:
    end: int = row.start + row.count
    return -(-end // BLOCK)


@pytest.mark.parametrize(("heads", "count"), [("three-a-group", 32), ("two-a-group", 17), ("one-a-group", 2)])
@pytest.mark.parametrize("segments", [2, 3])
@pytest.mark.parametrize("threads", [1, 2])
def test_shared_segments_are_read_once(
    model: dict[str, Path], heads: str, segments: int, count: int, threads: int
) -> None:
    """Once a step for all sequences, and what lies behind them once for each."""
    backend = native(model[heads], threads=threads)
    asks = family(segments * SEGMENT + 3, count + 1)
    noted = Reads(backend)
    run(noted, asks, share=True)
    full = [step for step in noted.steps if len(step[1]) == count and all(row.count == 1 for row in step[1])]
    assert full
    for nbytes, rows in full:
        shared = segments * SEGMENT // BLOCK
        assert nbytes == bytes_of_blocks(backend, shared + sum(blocks_seen(row) - shared for row in rows))
    backend.close()


def test_what_is_not_shared_is_read_by_each(model: dict[str, Path]) -> None:
    """Equal prompts in blocks of their own; and shared blocks that fill no segment."""
    backend = native(model["two-a-group"])
    for length, share in ((600, False), (SEGMENT - 1, True)):
        noted = Reads(backend)
        run(noted, family(length, 9), share=share)
        steps = [step for step in noted.steps if all(row.count == 1 for row in step[1])]
        assert len(steps) > 5
        for nbytes, rows in steps:
            assert nbytes == bytes_of_blocks(backend, sum(map(blocks_seen, rows)))
    backend.close()


def test_a_tree_reads_its_trunk_once(model: dict[str, Path]) -> None:
    backend = native(model["three-a-group"])
    noted = Reads(backend)
    run(noted, tree(), share=True)
    nbytes, rows = next(
        step for step in noted.steps if len(step[1]) == 9 and all(row.count == 1 for row in step[1])
    )
    trunk, branch = SEGMENT // BLOCK, 2 * SEGMENT // BLOCK
    own = [blocks_seen(row) - trunk for row in rows]
    own = [blocks - branch if blocks > branch else blocks for blocks in own]
    assert nbytes == bytes_of_blocks(backend, trunk + 2 * branch + sum(own))
    backend.close()


def test_sharing_allocates_nothing(model: dict[str, Path]) -> None:
    backend = native(model["three-a-group"])
    run(backend, [*tree(), *strangers()], share=True)
    noted = Reads(backend)
    run(noted, [*tree(), *strangers()], share=True)
    assert noted.allocations == {0}
    backend.close()
