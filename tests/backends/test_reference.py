"""The reference backend: equal to a forward pass without cache, at depth 1, and strict about its contract."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from octavo.backends.arithmetic import bfloat16, matmul
from octavo.backends.base import (
    BlockCopy,
    ChoiceRule,
    Handle,
    Limits,
    Plan,
    PlanError,
    PlanRow,
    SampleRow,
    Samples,
    SlotOpen,
    TokenSample,
)
from octavo.backends.reference import ReferenceBackend
from octavo.errors import ModelError, SettingsError
from octavo.models.gguf import GGUFFile
from octavo.models.spec import KVGroup, ModelSpec
from octavo.models.store import open_model
from tests.backends.conftest import LIMITS, MakeBackend
from tests.backends.driver import Ask, run
from tests.backends.naive import naive_logprobs
from tests.backends.test_invariance import ASKS, BUSY, SEEDED, prompt
from tests.models.tiny import write_tiny_llama

Doubles = NDArray[np.float64]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"weights": ["Q4_0", "Q8_0", "F16", "BF16", "F32"], "embedding": "F16", "output": "Q8_0"},
        {"biases": True, "rope_factors": [1.0, 1.5, 2.0, 4.0] * 4, "heads": 6, "kv_heads": 3},
    ],
    ids=["plain", "formats", "biases-factors"],
)
def test_equals_a_naive_forward_pass(make: MakeBackend, tmp_path: Path, options: dict[str, Any]) -> None:
    path = write_tiny_llama(tmp_path / "model.gguf", **options)
    backend = make("reference", path)
    ids = prompt(50)
    expected = naive_logprobs(backend.spec, path, ids, {})
    (told,) = run(backend, [Ask(ids, 1, prompt_top=backend.spec.vocab_size)], chunk=20)
    assert len(told.prompt) == 49
    for position, sample in enumerate(told.prompt):
        assert sample.logprob == pytest.approx(expected[position, ids[position + 1]], abs=1e-4)
        got = np.array([logprob for _, logprob in sorted(sample.top)])
        assert np.abs(got - expected[position]).max() < 1e-4
    assert told.tokens == (int(expected[-1].argmax()),)


@dataclass
class Windowed:
    """The tiny model as if layer 1 had a sliding window, in a KV group of its own."""

    spec: ModelSpec
    source: Path


def test_kv_groups_have_tables_and_windows_of_their_own(tiny_model_path: Path) -> None:
    stored = open_model(tiny_model_path, packed=False)
    full, sliding = (KVGroup((0,), 2, 32), KVGroup((1,), 2, 32, window=20))
    first, second = stored.spec.program.layers
    program = msgspec.structs.replace(
        stored.spec.program,
        layers=(
            first,
            tuple(
                msgspec.structs.replace(op, group=1) if type(op).__name__ == "Attention" else op
                for op in second
            ),
        ),
    )
    spec = msgspec.structs.replace(stored.spec, kv_groups=(full, sliding), program=program)
    backend = ReferenceBackend(Windowed(spec, stored.source), LIMITS)
    ids = prompt(70)
    expected = naive_logprobs(spec, stored.source, ids, {1: 20})

    got: list[float] = []
    tables = ((4, 8, 15, 16, 23), (42, 3, 1, 2, 7))
    for step, (start, count) in enumerate([(0, 33), (33, 2), (35, 35)]):
        opens = () if step else (SlotOpen(0, ids, tables, ChoiceRule(70)),)
        targets = [(i, ids[start + i + 1]) for i in range(count) if start + i + 1 < len(ids)]
        row = PlanRow(0, start, count)
        if start == 35:  # position 35 sees 16 … 35: block 0 is behind the window and may be anything
            row = PlanRow(0, start, count, (), (0, 0), (tables[0], (9,)))
        answers = play(
            backend, Plan(step, opens, (), (row,), tuple(SampleRow(0, i, 0, t) for i, t in targets))
        )
        got += [answer.logprob for answer in answers if answer.logprob is not None]
    assert len(got) == 69
    assert got == pytest.approx([expected[i, ids[i + 1]] for i in range(69)], abs=1e-4)


def test_a_product_adds_in_the_written_order() -> None:
    random = np.random.default_rng(1)
    x = random.standard_normal((5, 70), dtype=np.float32)
    w = random.standard_normal((70, 2050), dtype=np.float32)
    expected = np.zeros((5, 2050), np.float32)
    for i in range(70):
        expected += x[:, i : i + 1] * w[i]
    assert (matmul(x, w) == expected).all()
    assert (matmul(x[3:4], w)[0] == expected[3]).all()


def test_bfloat16_rounds_as_gguf_does() -> None:
    x = np.random.default_rng(2).standard_normal(10_000).astype(np.float32)
    x[:4] = [1 + 2**-8, 1 + 3 * 2**-8, -(1 + 2**-8), 0.0]  # ties go to even
    kind = gguf.GGMLQuantizationType.BF16
    assert (bfloat16(x) == gguf.dequantize(gguf.quantize(x, kind), kind)).all()
    assert bfloat16(x)[:3].tolist() == [1.0, 1 + 2**-6, -1.0]


def test_kv_types_differ_but_little(make: MakeBackend, tiny_model_path: Path) -> None:
    scores: list[NDArray[np.float64]] = []
    for kv_dtype in ("fp32", "bf16"):
        backend = make("reference", tiny_model_path, kv_dtype=kv_dtype)
        assert isinstance(backend, ReferenceBackend)
        (told,) = run(backend, [Ask(prompt(40), prompt_top=0)])
        scores.append(np.array([sample.logprob for sample in told.prompt]))
        low_bits = backend._kv[0].view(np.uint32) & 0xFFFF
        assert low_bits.any() == (kv_dtype == "fp32")
    assert 0 < np.abs(scores[0] - scores[1]).max() < 0.05


def test_depth_1_gives_the_answers_of_depth_0(make: MakeBackend, tiny_model_path: Path) -> None:
    """Tokens are references to samples that were not collected yet."""
    asks = [*ASKS, Ask(prompt(17), 20, SEEDED, n=3), Ask(prompt(30), 9, BUSY, arrive=4)]
    shallow = run(make("reference", tiny_model_path), asks, chunk=32)
    deep = make("reference", tiny_model_path, depth=1)
    assert run(deep, asks, chunk=32, depth=1) == shallow
    assert run(deep, asks, chunk=7, depth=1, seed=5) == shallow


SCRIPT = """
import sys
from tests.backends.conftest import make_backend
from tests.backends.naive import naive_logprobs
from tests.backends.driver import run
from tests.backends.test_invariance import ASKS
print(run(make_backend("reference", sys.argv[1]), ASKS))
"""


def test_the_number_of_blas_threads_does_not_matter(tiny_model_path: Path) -> None:
    answers = set()
    for threads in "12":
        environment = os.environ | {"OPENBLAS_NUM_THREADS": threads, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, str(tiny_model_path)],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        answers.add(done.stdout)
    (answer,) = answers
    assert "TokenSample" in answer


def test_masks_reach_the_choice(make: MakeBackend, tiny_model_path: Path) -> None:
    backend = make("reference", tiny_model_path)
    rule = ChoiceRule(3)
    mask = np.zeros(9, np.int32)
    mask[4] = 1 << 5
    plan = Plan(
        0,
        (SlotOpen(0, (5, 6, 7), ((1,),), rule), SlotOpen(1, (5, 6, 7), ((1,),), rule)),
        (),
        (PlanRow(0, 0, 3),),
        (SampleRow(0, 2, 0), SampleRow(0, 2, 1)),
    )
    handle = backend.launch(plan)
    backend.sample(handle, [None, mask])
    free, masked = backend.collect(handle)
    assert (free.token != 133, masked.token) == (True, 133)


def test_a_damaged_number_ends_only_the_rows_that_see_it(make: MakeBackend, tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "damaged.gguf", embedding="F32", output="F32")
    table = GGUFFile(path).tensors["token_embd.weight"]
    with path.open("r+b") as file:
        file.seek(table.offset + 50 * table.nbytes // table.shape[0])  # token 50
        file.write(np.array([np.nan], np.float32).tobytes())
    healthy, damaged = Ask((60, 61, 62), 4), Ask((60, 50, 62), 3, prompt_top=2)
    backend = make("reference", path, depth=1)
    alone = run(backend, [healthy])[0]
    together = run(backend, [damaged, healthy, damaged], depth=1)
    assert together[1] == alone
    assert together[0].children[0] == (TokenSample(-1),) * 3
    assert together[0].prompt[0].token == 50
    assert together[0].prompt[1] == TokenSample(-1)


def test_rejected_drafts_are_overwritten(make: MakeBackend, tiny_model_path: Path) -> None:
    """Tokens written again from an earlier position replace all that came after."""
    backend = make("reference", tiny_model_path)
    ids = prompt(20)
    (told,) = run(backend, [Ask(ids, 6)])
    good = told.tokens
    wrong = (good[0], good[1], (good[2] + 1) % 287, 50)
    opened = SlotOpen(0, ids, ((9, 4),), ChoiceRule(20, logprobs=5))
    (sample,) = play(backend, Plan(0, (opened,), (), (PlanRow(0, 0, 20),), (SampleRow(0, 19, 0),)))
    drafts = Plan(1, (), (), (PlanRow(0, 20, 4, wrong),), tuple(SampleRow(0, i, 0) for i in range(4)))
    samples = [sample, *play(backend, drafts)[:2]]
    assert [s.token for s in samples] == list(good[:3])
    samples += play(backend, Plan(2, (), (), (PlanRow(0, 22, 1, good[2:3]),), (SampleRow(0, 0, 0),)))
    assert tuple(samples) == told.children[0][:4]


# The contract


def play(backend: Any, plan: Plan) -> Samples:
    handle = backend.launch(plan)
    backend.sample(handle)
    answers: Samples = backend.collect(handle)
    return answers


def opening(*rows: PlanRow, history: int = 20, blocks: tuple[int, ...] = (0, 1), **plan: Any) -> Plan:
    """A plan that opens slot 0."""
    return Plan(0, (SlotOpen(0, prompt(history), (blocks,), ChoiceRule(history)),), rows=rows, **plan)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (Plan(0, rows=(PlanRow(3, 0, 1, (5,)),)), "slot 3 was never opened"),
        (Plan(0, (SlotOpen(16, (1,), ((),), ChoiceRule(1)),)), "slot 16 does not exist"),
        (Plan(0, (SlotOpen(0, (1,), (), ChoiceRule(1)),)), "0 tables for 1 KV groups"),
        (Plan(0, (SlotOpen(0, (1, 287), ((),), ChoiceRule(1)),)), "token 287 is outside"),
        (opening(blocks=(0, 128)), "block 128 does not exist"),
        (Plan(0, copies=(BlockCopy(0, -1, 3),)), "block -1 does not exist"),
        (Plan(0, copies=(BlockCopy(1, 0, 3),)), "KV group 1"),
        (opening(PlanRow(0, 0, 0)), "computes nothing"),
        (opening(PlanRow(0, -1, 2)), "computes nothing"),
        (opening(PlanRow(0, 20, 1, (5, 6))), "more tokens than it computes"),
        (opening(PlanRow(0, 20, 1)), "need 21 known tokens"),
        (opening(PlanRow(0, 21, 1, (5,))), "need 21 known tokens"),
        (opening(PlanRow(0, 20, 1, (287,))), "token 287 is outside"),
        (opening(PlanRow(0, 20, 1, (-1,))), "token -1 refers"),
        (opening(PlanRow(0, 0, 20), PlanRow(0, 19, 1)), "the same slot"),
        (opening(PlanRow(0, 0, 20), blocks=(0,)), "20 tokens do not fit the 1 blocks"),
        (opening(PlanRow(0, 0, 20, (), (3,), ((5,),))), "leave a hole"),
        (opening(PlanRow(0, 0, 20, (), (2,), ((500,),))), "block 500 does not exist"),
        (opening(PlanRow(0, 500, 13), history=513), "513 tokens"),
        (opening(PlanRow(0, 0, 512), PlanRow(1, 0, 1)), "513 tokens"),
        (opening(PlanRow(0, 0, 20), samples=(SampleRow(1, 0, 0),)), "the plan has 1 rows"),
        (opening(PlanRow(0, 0, 20), samples=(SampleRow(0, 20, 0),)), "computes 20 tokens"),
        (opening(PlanRow(0, 0, 20), samples=(SampleRow(0, 19, 5),)), "slot 5 was never opened"),
        (opening(PlanRow(0, 0, 20), samples=(SampleRow(0, 19, 0, target=287),)), "token 287 is outside"),
    ],
)
def test_a_plan_that_breaks_the_contract_is_refused(
    make: MakeBackend, tiny_model_path: Path, plan: Plan, message: str
) -> None:
    with pytest.raises(PlanError, match=message):
        play(make("reference", tiny_model_path), plan)


def test_a_fork_must_know_the_position_it_samples_at(make: MakeBackend, tiny_model_path: Path) -> None:
    plan = opening(PlanRow(0, 0, 20), samples=(SampleRow(0, 19, 1),))
    short = SlotOpen(1, prompt(20)[:19], ((0, 1),), ChoiceRule(19))
    with pytest.raises(PlanError, match="slot 1 knows no token at position 19"):
        play(make("reference", tiny_model_path), msgspec.structs.replace(plan, opens=(*plan.opens, short)))


def collect_twice(backend: ReferenceBackend, handle: Handle) -> None:
    backend.sample(handle)
    backend.collect(handle)
    backend.collect(handle)


def sample_twice(backend: ReferenceBackend, handle: Handle) -> None:
    backend.sample(handle)
    backend.sample(handle)


def collect_unsampled(backend: ReferenceBackend, handle: Handle) -> None:
    backend.collect(handle)


def launch_unsampled(backend: ReferenceBackend, handle: Handle) -> None:
    backend.launch(Plan(1))


def launch_too_deep(backend: ReferenceBackend, handle: Handle) -> None:
    backend.sample(handle)
    backend.launch(Plan(1))


def masks_of_another_number(backend: ReferenceBackend, handle: Handle) -> None:
    backend.sample(handle, [None])


def launch_closed(backend: ReferenceBackend, handle: Handle) -> None:
    backend.close()
    backend.close()
    backend.launch(Plan(1))


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        (collect_twice, "collect each once"),
        (sample_twice, "sampled before"),
        (collect_unsampled, "never sampled"),
        (launch_unsampled, "was not sampled"),
        (launch_too_deep, "1 plans are in flight at depth 0"),
        (masks_of_another_number, "1 masks for 0 sample rows"),
        (launch_closed, "closed"),
    ],
)
def test_calls_out_of_order_are_refused(
    make: MakeBackend,
    tiny_model_path: Path,
    calls: Callable[[ReferenceBackend, Handle], None],
    message: str,
) -> None:
    backend = make("reference", tiny_model_path)
    assert isinstance(backend, ReferenceBackend)
    handle = backend.launch(opening(PlanRow(0, 0, 20)))
    with pytest.raises(PlanError, match=message):
        calls(backend, handle)


def test_plans_are_collected_in_launch_order(make: MakeBackend, tiny_model_path: Path) -> None:
    backend = make("reference", tiny_model_path, depth=1)
    first = backend.launch(Plan(0))
    backend.sample(first)
    second = backend.launch(Plan(1))
    backend.sample(second)
    with pytest.raises(PlanError, match="oldest"):
        backend.collect(second)
    assert backend.collect(first) == backend.collect(second) == ()


def test_without_gguf_the_error_says_what_to_install(
    make: MakeBackend, tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(SettingsError, match=r"octavo\[reference\]"):
        make("reference", tiny_model_path)


def test_a_type_that_gguf_cannot_dequantise_is_named(
    make: MakeBackend, tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(data: object, kind: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr(gguf, "dequantize", refuse)
    with pytest.raises(ModelError, match="which the package gguf cannot dequantise"):
        make("reference", tiny_model_path)


def test_the_arithmetic_id_tells_models_and_kv_types_apart(
    make: MakeBackend, tiny_model_path: Path, tmp_path: Path
) -> None:
    other = write_tiny_llama(tmp_path / "other.gguf", seed=1)
    limits = Limits(8, 16, 2, 32, 64)
    ids = {
        make("reference", tiny_model_path).arithmetic_id,
        make("reference", tiny_model_path, kv_dtype="bf16").arithmetic_id,
        make("reference", other).arithmetic_id,
    }
    assert len(ids) == 3
    assert make("reference", tiny_model_path, limits).arithmetic_id in ids
