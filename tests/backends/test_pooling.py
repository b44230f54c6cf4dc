"""Vectors of prompts: the same bits however a prompt is cut and whatever is beside it, and what they are made of."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from numpy.typing import NDArray

from octavo.backends.base import (
    Backend,
    ChoiceRule,
    Plan,
    PlanError,
    PlanRow,
    SampleRow,
    SlotOpen,
    TokenSample,
)
from octavo.backends.native import NativeBackend
from octavo.config import Pooling
from octavo.models.gguf import GGUFFile
from tests.backends.conftest import MakeBackend, make_backend
from tests.backends.driver import WHOLE, Ask, Told, run
from tests.backends.naive import naive_hidden
from tests.models.tiny import write_tiny_llama

KINDS = [(name, kv_dtype) for name in ("reference", "native") for kv_dtype in ("fp32", "bf16", "int8")]
LENGTHS = (1, 5, 16, 17, 70, 300)


def prompt(length: int) -> tuple[int, ...]:
    """Random ids of the tiny model."""
    return tuple(random.Random(length).choices(range(3, 287), k=length))


def ask(length: int, pooling: Pooling, **own: Any) -> Ask:
    return Ask(prompt(length), pooling=pooling, **own)


ASKS = [ask(length, pooling) for length in LENGTHS for pooling in ("mean", "last")]
BESIDE = [Ask(prompt(40), 12, prompt_top=2), Ask(prompt(23), 6, ChoiceRule(0, seed=3, temperature=1.0), n=3)]


def vectors(told: list[Told]) -> list[bytes]:
    return [one.children[0][0].vector for one in told]


def floats(data: bytes) -> NDArray[np.float32]:
    return np.frombuffer(data, "<f4")


@pytest.fixture(params=KINDS, ids="-".join, scope="module")
def kind(request: pytest.FixtureRequest) -> tuple[str, str]:
    """A backend's name and its KV type."""
    name, kv_dtype = request.param
    return name, kv_dtype


@pytest.fixture(scope="module")
def backend(kind: tuple[str, str], tiny_model_path: Path) -> Iterator[Backend]:
    backend = make_backend(kind[0], tiny_model_path, kv_dtype=kind[1])
    yield backend
    backend.close()


@pytest.fixture(scope="module")
def alone(kind: tuple[str, str], tiny_model_path: Path) -> list[Told]:
    """Each request alone in a new backend, its prompt whole."""
    backend = make_backend(kind[0], tiny_model_path, kv_dtype=kind[1])
    told = [run(backend, [ask])[0] for ask in ASKS]
    backend.close()
    return told


def test_one_vector_each(backend: Backend, alone: list[Told]) -> None:
    for told in alone:
        (sample,) = told.children[0]
        assert sample == TokenSample(0, vector=sample.vector)
        assert len(sample.vector) == 4 * backend.spec.hidden and np.isfinite(floats(sample.vector)).all()
    assert len(set(vectors(alone))) == len(ASKS) - 1  # of one token, mean and last are the same
    assert vectors(alone)[0] == vectors(alone)[1]


@pytest.mark.parametrize("chunk", [1, 7, 32, 33, WHOLE])
def test_together_and_in_chunks(backend: Backend, alone: list[Told], chunk: int) -> None:
    told = run(backend, [*ASKS, *BESIDE], chunk=chunk, seed=chunk)
    assert told[: len(ASKS)] == alone
    assert told[len(ASKS) :] == [run(backend, [one])[0] for one in BESIDE]


def test_dropped_and_recomputed(backend: Backend, alone: list[Told]) -> None:
    assert run(backend, ASKS[:10], chunk=9, drop_every=13, seed=2) == alone[:10]


def test_the_last_token_may_follow_cached_ones(backend: Backend) -> None:
    """The beginning is computed by another request, and the vectors are those of one alone."""
    whole = prompt(70)
    asks = [Ask(whole, 30), *(Ask(whole[:n], pooling="last", arrive=2) for n in (33, 48, 70))]
    told = run(backend, asks, share=True)
    assert told[1:] == [run(backend, [Ask(one.prompt, pooling="last")])[0] for one in asks[1:]]


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_any_number_of_threads(make: MakeBackend, tiny_model_path: Path, threads: int) -> None:
    alone = run(make("native", tiny_model_path, threads=1), ASKS, chunk=64)
    assert run(make("native", tiny_model_path, threads=threads), ASKS[::-1], chunk=50) == alone[::-1]


@pytest.mark.parametrize("isa", ["scalar", "avx2"])
def test_any_instructions(make: MakeBackend, tiny_model_path: Path, isa: str) -> None:
    alone = run(make("native", tiny_model_path), ASKS[:8])
    assert run(make("native", tiny_model_path, isa=isa), ASKS[:8]) == alone


@pytest.mark.parametrize("length", [5, 70])
def test_equals_a_naive_forward_pass(make: MakeBackend, tiny_model_path: Path, length: int) -> None:
    backend = make("reference", tiny_model_path)
    hidden = naive_hidden(backend.spec, tiny_model_path, prompt(length), {})
    mean, last = (vectors(run(backend, [ask(length, how)], chunk=32))[0] for how in ("mean", "last"))
    assert np.abs(floats(mean) - hidden.mean(axis=0)).max() < 1e-4
    assert np.abs(floats(last) - hidden[-1]).max() < 1e-4


@pytest.mark.parametrize("kv_dtype", ["fp32", "bf16", "int8"])
def test_native_and_reference_agree(make: MakeBackend, tiny_model_path: Path, kv_dtype: str) -> None:
    native = vectors(run(make("native", tiny_model_path, kv_dtype=kv_dtype), ASKS))
    reference = vectors(run(make("reference", tiny_model_path, kv_dtype=kv_dtype), ASKS))
    for ours, theirs in zip(map(floats, native), map(floats, reference), strict=True):
        cosine = float(ours @ theirs / np.linalg.norm(ours) / np.linalg.norm(theirs))
        assert cosine > 0.999
        assert np.abs(ours - theirs).max() < 0.05 * np.abs(theirs).max()


@pytest.mark.parametrize("name", ["reference", "native"])
def test_plans_that_cannot_be(make: MakeBackend, tiny_model_path: Path, name: str) -> None:
    ids, rule = prompt(20), ChoiceRule(20)

    def launch(pooling: str, *steps: tuple[tuple[int, int], tuple[SampleRow, ...]]) -> None:
        backend = make(name, tiny_model_path)
        opens: tuple[SlotOpen, ...] = (SlotOpen(0, ids, ((0, 1),), rule, pooling),)  # type: ignore[arg-type]
        for step, ((start, count), samples) in enumerate(steps):
            handle = backend.launch(Plan(step, opens, (), (PlanRow(0, start, count),), samples))
            backend.sample(handle)
            backend.collect(handle)
            opens = ()

    launch("mean", ((0, 12), ()), ((12, 8), (SampleRow(0, 7, 0),)))
    for bad in (
        (((4, 16), (SampleRow(0, 15, 0),)),),  # the first ones are missing
        (((0, 12), ()), ((0, 20), (SampleRow(0, 19, 0),))),  # the first ones twice
        (((0, 12), (SampleRow(0, 11, 0),)),),  # in the middle
    ):
        with pytest.raises(PlanError):
            launch("mean", *bad)
    with pytest.raises(PlanError):
        launch("last", ((0, 12), (SampleRow(0, 11, 0),)))


@pytest.mark.parametrize("name", ["native"])
def test_only_two_kinds(make: MakeBackend, tiny_model_path: Path, name: str) -> None:
    backend = make(name, tiny_model_path)
    for bad in ("max", 1):
        opened = SlotOpen(0, prompt(3), ((0,),), ChoiceRule(3), bad)  # type: ignore[arg-type]
        with pytest.raises(PlanError, match="pooling is"):
            backend.launch(Plan(0, (opened,), (), (PlanRow(0, 0, 3),), (SampleRow(0, 2, 0),)))


@pytest.mark.parametrize("name", ["reference", "native"])
@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_no_number_is_no_vector(make: MakeBackend, tmp_path: Path, name: str, pooling: Pooling) -> None:
    """A damaged model's answer is none; others, and the next in the same slot, are what they are."""
    path = write_tiny_llama(tmp_path / "damaged.gguf", embedding="F32", output="Q8_0")
    table = GGUFFile(path).tensors["token_embd.weight"]
    with path.open("r+b") as file:
        file.seek(table.offset + 50 * table.nbytes // table.shape[0])  # token 50
        file.write(np.array([np.nan], np.float32).tobytes())
    backend = make(name, path)
    healthy, damaged = (Ask(ids, pooling=pooling) for ids in ((60, 61, 62), (60, 50, 62)))
    (alone,) = run(backend, [healthy])
    assert run(backend, [damaged, healthy, healthy, damaged]) == [
        Told((), ((TokenSample(-1),),)),
        alone,
        alone,
        Told((), ((TokenSample(-1),),)),
    ]
    assert run(backend, [healthy]) == [alone]


def test_a_vector_takes_no_heap_memory(make: MakeBackend, tiny_model_path: Path) -> None:
    """All that a sum needs was allocated with the backend."""
    backend = make("native", tiny_model_path)
    assert isinstance(backend, NativeBackend)
    for pooling in get_args(Pooling):
        run(backend, [ask(70, pooling)])
        assert backend.counters()["allocations"] == 0
