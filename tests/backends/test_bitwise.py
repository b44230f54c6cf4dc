"""Promise 1 on the default model: each oracle prompt alone, against the same in company, in chunks, forked, on
other threads and instructions. Ids and float32 log-probabilities must be equal, bit for bit."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from octavo.backends.base import ChoiceRule, Limits
from octavo.backends.native import NativeBackend
from octavo.config import KvDtype
from octavo.models.store import StoredModel
from tests.backends.driver import WHOLE, Ask, Told, run
from tests.backends.test_oracle import Case

LEAST: str = pytest.importorskip("octavo._kernels", reason="the kernels are not built").ops.isas()[:2][-1]
"""The plainest vectors that this processor has."""
LIMITS = Limits(num_blocks=400, block_size=16, max_slots=36, max_step_tokens=512, max_model_len=256)
NEW_TOKENS = 12
GREEDY = ChoiceRule(0, logprobs=3)
SEEDED = ChoiceRule(0, seed=11, temperature=1.0, top_p=0.9, logprobs=3)


@pytest.fixture(scope="module")
def asks(shared_dir: Path) -> list[Ask]:
    """Greedy and sampled in turn; two of them score their prompt."""
    text = (shared_dir / "oracle" / "smollm2-135m.json").read_bytes()
    cases = msgspec.json.decode(text, type=list[Case])
    return [
        Ask(case.prompt_ids, NEW_TOKENS, (GREEDY, SEEDED)[i % 2], prompt_top=2 if i in (3, 4) else None)
        for i, case in enumerate(cases)
    ]


@pytest.fixture(
    scope="module",
    params=["bf16", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("fp32", "int8"))],
)
def backend(request: pytest.FixtureRequest, model_dir: Path) -> Iterator[NativeBackend]:
    made = NativeBackend(StoredModel.load(model_dir), LIMITS, kv_dtype=request.param, threads=2)
    yield made
    made.close()


@pytest.fixture(scope="module")
def alone(backend: NativeBackend, asks: list[Ask]) -> list[Told]:
    return [run(backend, [ask])[0] for ask in asks]


def neighbours(count: int) -> list[Ask]:
    """Random prompts of random lengths that come and go."""
    dice = random.Random(count)
    return [
        Ask(
            tuple(dice.choices(range(49152), k=dice.randint(1, 60))),
            dice.randint(1, NEW_TOKENS),
            dice.choice([GREEDY, SEEDED]),
            arrive=dice.randint(0, 6),
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize("count", [1, 2, 5, 8, 22])
def test_with_random_neighbours(
    backend: NativeBackend, asks: list[Ask], alone: list[Told], count: int
) -> None:
    """One by one among few, all together among many: plans of 2 to 33 rows."""
    told = run(backend, [*neighbours(count), *asks], chunk=64, seed=count)
    assert told[count:] == alone
    pick = count % len(asks)
    assert run(backend, [asks[pick], *neighbours(count)], seed=count)[0] == alone[pick]


@pytest.mark.parametrize("chunk", [1, 7, 32, 33, WHOLE])
def test_in_chunks(backend: NativeBackend, asks: list[Ask], alone: list[Told], chunk: int) -> None:
    assert run(backend, asks, chunk=chunk, seed=chunk) == alone


def test_preempted(backend: NativeBackend, asks: list[Ask], alone: list[Told]) -> None:
    assert run(backend, asks, drop_every=5, seed=4) == alone


@pytest.mark.parametrize("rule", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_forks(backend: NativeBackend, asks: list[Ask], rule: ChoiceRule) -> None:
    """n = 3 shares the prompt's blocks; each child copies the partial last one before it writes."""
    ids = asks[1].prompt
    assert len(ids) % 16
    children = [msgspec.structs.replace(rule, seed=rule.seed + i) for i in range(3)]
    singles = [run(backend, [Ask(ids, NEW_TOKENS, child)])[0].children[0] for child in children]
    told = run(backend, [*neighbours(3), Ask(ids, NEW_TOKENS, rule, n=3)], chunk=9)
    assert list(told[-1].children) == singles


@pytest.mark.parametrize(("threads", "isa"), [(1, ""), (3, ""), (2, LEAST)])
def test_on_other_threads_and_instructions(
    backend: NativeBackend, model_dir: Path, asks: list[Ask], alone: list[Told], threads: int, isa: str
) -> None:
    (kv_dtype,) = (kind for kind in get_args(KvDtype) if f"kv-{kind}" in backend.arithmetic_id)
    other = NativeBackend(
        StoredModel.load(model_dir),
        LIMITS,
        kv_dtype=kv_dtype,
        threads=threads,
        isa=isa,
    )
    assert run(other, asks) == alone
    other.close()
