"""The native backend: near the reference, equal bits however it runs, bad plans refused."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
from octavo.errors import ModelError, SettingsError
from octavo.models.program import Norm, RopeOp
from octavo.models.store import StoredModel, open_model
from tests.backends.conftest import LIMITS, MakeBackend
from tests.backends.driver import Ask, Told, run
from tests.backends.test_invariance import ASKS, GREEDY, SEEDED, prompt
from tests.models.tiny import write_tiny_llama

ISAS: list[str] = pytest.importorskip("octavo._kernels", reason="the kernels are not built").ops.isas()
LONG = Limits(num_blocks=300, block_size=16, max_slots=16, max_step_tokens=512, max_model_len=2048)


def play(backend: Any, plan: Plan) -> Samples:
    handle = backend.launch(plan)
    backend.sample(handle)
    answers: Samples = backend.collect(handle)
    return answers


def scores(backend: Any, ids: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.float64]]:
    (told,) = run(backend, [Ask(ids, prompt_top=0)])
    return np.array([sample.logprob for sample in told.prompt])


# Near the reference


@pytest.mark.parametrize(
    "options",
    [
        {"weights": "F32", "embedding": "F32"},
        {"weights": "BF16", "embedding": "F16", "output": "F32"},
        {"weights": "F32", "embedding": "F32", "biases": True, "rope_factors": [1.0 + i for i in range(16)]},
        {
            "weights": "F32",
            "embedding": "F32",
            "heads": 5,
            "kv_heads": 1,
            "head_dim": 24,
            "hidden": 104,
            "ffn": 72,
        },
    ],
    ids=["f32", "mixed floats", "biases and factors", "odd sizes"],
)
def test_float_weights_are_exact(make: MakeBackend, tmp_path: Path, options: dict[str, Any]) -> None:
    """No activation is quantised for them: what differs is the order of sums."""
    path = write_tiny_llama(tmp_path / "floats.gguf", **options)
    native, reference = (make(name, path, kv_dtype="fp32") for name in ("native", "reference"))
    assert scores(native, prompt(300)) == pytest.approx(scores(reference, prompt(300)), abs=2e-4)


LONG_BLOCKS = {"hidden": 256, "head_dim": 64, "ffn": 256}
"""Sizes that blocks of 256 divide."""


@pytest.mark.parametrize(
    "options",
    [
        {"weights": "Q4_0", "embedding": "Q4_0"},
        {"weights": "Q4_1", "biases": True},
        {"weights": "Q8_0", "output": "Q4_1"},
        {"weights": ("Q4_0", "F32", "Q8_0", "BF16", "Q4_1"), "heads": 3, "kv_heads": 1, "hidden": 96},
        {"weights": ("Q4_K", "Q6_K", "Q5_0", "Q8_0"), "embedding": "Q6_K"} | LONG_BLOCKS,
        {"weights": ("Q5_K", "Q5_1", "IQ4_NL", "Q2_K", "Q3_K"), "output": "Q4_K"} | LONG_BLOCKS,
    ],
    ids=["Q4_0", "Q4_1", "Q8_0", "mixed", "as in a Q4_K_M", "all other types"],
)
@pytest.mark.parametrize("kv_dtype", ["fp32", "bf16", "int8"])
def test_quantised_weights_are_near(
    make: MakeBackend, tmp_path: Path, options: dict[str, Any], kv_dtype: str
) -> None:
    path = write_tiny_llama(tmp_path / "quantised.gguf", **options)
    native, reference = (make(name, path, kv_dtype=kv_dtype) for name in ("native", "reference"))
    errors = np.abs(scores(native, prompt(200)) - scores(reference, prompt(200)))
    assert 0 < errors.mean() < 0.05
    assert errors.max() < 0.3


# Equal bits


@pytest.fixture(scope="module")
def alone(tiny_model_path: Path) -> dict[str, list[Told]]:
    """Each request alone on one thread, per KV type."""
    told = {}
    for kv_dtype in ("fp32", "bf16", "int8"):
        backend = NativeBackend(open_model(tiny_model_path), LIMITS, kv_dtype=kv_dtype, threads=1)
        told[kv_dtype] = [run(backend, [ask])[0] for ask in ASKS]
        backend.close()
    return told


@pytest.mark.parametrize("kv_dtype", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("isa", ISAS)
def test_instruction_sets_give_equal_bits(
    make: MakeBackend, tiny_model_path: Path, alone: dict[str, list[Told]], kv_dtype: str, isa: str
) -> None:
    backend = make("native", tiny_model_path, kv_dtype=kv_dtype, isa=isa)
    assert run(backend, ASKS, chunk=50) == alone[kv_dtype]


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_threads_give_equal_bits(
    make: MakeBackend, tiny_model_path: Path, alone: dict[str, list[Told]], threads: int
) -> None:
    backend = make("native", tiny_model_path, threads=threads)
    assert [run(backend, [ask])[0] for ask in ASKS] == alone["bf16"]
    assert run(backend, ASKS, chunk=50) == alone["bf16"]


@pytest.mark.parametrize("depth", [1, 3])
def test_tokens_may_refer_to_the_plan_before(
    make: MakeBackend, tiny_model_path: Path, alone: dict[str, list[Told]], depth: int
) -> None:
    assert run(make("native", tiny_model_path), ASKS, depth=depth, chunk=33) == alone["bf16"]


def test_long_sequences_are_divided_by_segments(make: MakeBackend, tmp_path: Path) -> None:
    """Alone, a long sequence's segments go to several workers and are merged; among others they do not."""
    path = write_tiny_llama(tmp_path / "long.gguf", context=2048)
    long = Ask(prompt(1500), 20, SEEDED)
    short = [Ask(prompt(10 + i), 24, GREEDY) for i in range(12)]
    one = make("native", path, LONG, threads=1)
    (alone,) = run(one, [long])
    for threads in (2, 4):
        many = make("native", path, LONG, threads=threads)
        assert run(many, [long]) == [alone]
        assert run(many, [*short, long], chunk=100)[-1] == alone


def test_stale_memory_does_not_matter(make: MakeBackend, tmp_path: Path) -> None:
    """K and V that a failed sequence left behind are NaN; who gets its blocks must not see them."""
    path = poisoned(tmp_path)
    clean = run(make("native", path), [Ask(prompt_without_7(40), 10, SEEDED)])
    backend = make("native", path, Limits(8, 16, 4, 128, 128))
    for _ in range(4):
        run(backend, [Ask((7,) * 33, 1)])
        assert run(backend, [Ask(prompt_without_7(40), 10, SEEDED)]) == clean


def test_a_row_that_fails_says_so_and_spoils_no_other(make: MakeBackend, tmp_path: Path) -> None:
    """A NaN in the embedding of token 7 makes that sequence's logits NaN."""
    path = poisoned(tmp_path)
    good = Ask(prompt_without_7(20), 8, GREEDY, prompt_top=2)
    alone = run(make("native", path), [good])[0]
    backend = make("native", path)
    bad, other = run(backend, [Ask((5, 7, 9), 4, SEEDED, prompt_top=1), good])
    assert other == alone
    assert min(sample.token for sample in other.children[0]) >= 0
    (child,) = bad.children
    assert [(sample.token, sample.logprob, sample.top) for sample in child] == [(-1, None, ())] * 4
    assert [sample.token for sample in bad.prompt] == [7, -1]


def poisoned(folder: Path) -> Path:
    """A model in which token 7 has no finite embedding."""
    path = write_tiny_llama(folder / "poisoned.gguf", embedding="F32", output="Q8_0")
    (tensor,) = (t for t in gguf.GGUFReader(path, "r+").tensors if t.name == "token_embd.weight")
    tensor.data[7] = np.nan
    tensor.data.flush()  # type: ignore[attr-defined]
    return path


def prompt_without_7(length: int) -> tuple[int, ...]:
    return tuple(8 if token == 7 else token for token in prompt(length))


# What it tells


def test_progress_and_times(make: MakeBackend, tiny_model_path: Path) -> None:
    backend = make("native", tiny_model_path)
    assert isinstance(backend, NativeBackend)
    play(backend, msgspec.structs.replace(opening(PlanRow(0, 0, 20)), step=41))
    assert backend.progress() == (41, backend.spec.layers - 1)
    assert set(backend.times().values()) == {0.0}
    backend.measure(True)
    play(backend, opening(PlanRow(0, 0, 20), samples=(SampleRow(0, 19, 0),)))
    times = backend.times()
    assert (
        min(times[name] for name in ("embed", "norm", "qkv", "attention", "out", "gated", "down", "head")) > 0
    )


# The contract


def opening(*rows: PlanRow, history: int = 20, blocks: tuple[int, ...] = (0, 1), **plan: Any) -> Plan:
    """A plan that opens slot 0."""
    return Plan(0, (SlotOpen(0, prompt(history), (blocks,), ChoiceRule(history)),), rows=rows, **plan)


def ruled(**rule: Any) -> Plan:
    opened = SlotOpen(0, prompt(20), ((0, 1),), msgspec.structs.replace(ChoiceRule(20), **rule))
    return Plan(0, (opened,), rows=(PlanRow(0, 0, 20),), samples=(SampleRow(0, 19, 0),))


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (Plan(0, rows=(PlanRow(3, 0, 1, (5,)),)), "slot 3 was never opened"),
        (Plan(0, (SlotOpen(16, (1,), ((),), ChoiceRule(1)),)), "slot is 16"),
        (Plan(0, (SlotOpen(0, (1,), (), ChoiceRule(1)),)), "tables has 0 entries"),
        (Plan(0, (SlotOpen(0, (1, 287), ((),), ChoiceRule(1)),)), "token id of history is 287"),
        (Plan(0, (SlotOpen(0, (1, 2**40), ((),), ChoiceRule(1)),)), "is 1099511627776"),
        (Plan(0, (SlotOpen(0, ("a",), ((),), ChoiceRule(1)),)), "integer"),  # type: ignore[arg-type]
        (Plan(0, (SlotOpen(0, 5, ((),), ChoiceRule(1)),)), "neither a tuple nor a list"),  # type: ignore[arg-type]
        (Plan(0, (SlotOpen(0, prompt(513), ((),), ChoiceRule(1)),)), "length of history is 513"),
        (opening(blocks=(0, 128)), "block id is 128"),
        (opening(blocks=tuple(range(33))), "length of a block table is 33"),
        (Plan(0, copies=(BlockCopy(0, -1, 3),)), "source is -1"),
        (Plan(0, copies=(BlockCopy(0, 3, 128),)), "target is 128"),
        (Plan(0, copies=(BlockCopy(0, 3, 3),)), "onto itself"),
        (Plan(0, copies=(BlockCopy(1, 0, 3),)), "group is 1"),
        (opening(PlanRow(0, 0, 0)), "count is 0"),
        (opening(PlanRow(0, -1, 2)), "start is -1"),
        (opening(PlanRow(0, 20, 1, (5, 6))), "number of new tokens is 2"),
        (opening(PlanRow(0, 20, 1)), "knows 20 tokens"),
        (opening(PlanRow(0, 21, 1, (5,))), "knows 20 tokens"),
        (opening(PlanRow(0, 20, 1, (287,))), "token id is 287"),
        (opening(PlanRow(0, 20, 1, (-1,))), "sample of the plan before is 0"),
        (opening(PlanRow(0, 0, 20), PlanRow(0, 19, 1)), "appears twice"),
        (opening(PlanRow(0, 0, 20), blocks=(0,)), "1 blocks in group 0; 20 tokens need 2"),
        (opening(PlanRow(0, 0, 20), blocks=(4, 4)), "block 4 is written twice"),
        (opening(PlanRow(0, 0, 20, (), (3,), ((5,),))), "tables_at is 3"),
        (opening(PlanRow(0, 0, 20, (), (2,), ((500,),))), "block id is 500"),
        (opening(PlanRow(0, 0, 20, (), (2, 2), ((5,), (5,)))), "tables_at has 2 entries"),
        (opening(PlanRow(0, 500, 13), history=512), "start is 500"),
        (opening(PlanRow(0, 0, 513), history=512), "count is 513"),
        (opening(PlanRow(0, 0, 20), samples=(SampleRow(1, 0, 0),)), "row is 1"),
        (opening(PlanRow(0, 0, 20), samples=(SampleRow(0, 20, 0),)), "offset is 20"),
        (opening(PlanRow(0, 0, 20), samples=(SampleRow(0, 19, 5),)), "slot 5 knows -1 tokens"),
        (opening(PlanRow(0, 0, 20), samples=(SampleRow(0, 18, 0),)), "inside its prompt"),
        (opening(PlanRow(0, 0, 20), samples=(SampleRow(0, 19, 0, target=287),)), "target is 287"),
        (opening(PlanRow(0, 0, 20), samples=(SampleRow(0, 19, 0, target=5, top=288),)), "top is 288"),
        (opening(PlanRow(0, 0, 20), samples=(SampleRow(0, 19, 0),) * 529), "their number is 529"),
        (ruled(temperature=-1.0), "temperature is -1"),
        (ruled(temperature=float("nan")), "temperature is nan"),
        (ruled(top_p=1.5), "top_p is 1.5"),
        (ruled(repetition=0.0), "repetition is 0"),
        (ruled(bias=((5, 1.0), (5, 2.0))), "bias id is 5"),
        (ruled(bias=((287, 1.0),)), "bias id is 287"),
        (ruled(bias=((5,),)), "bias has 1 parts"),
        (ruled(banned_early=(-1,)), "banned id is -1"),
        (ruled(logprobs=288), "logprobs is 288"),
        (ruled(prompt_tokens=21), "inside its prompt of 21"),
    ],
)
def test_a_plan_that_breaks_the_contract_is_refused(
    make: MakeBackend, tiny_model_path: Path, alone: dict[str, list[Told]], plan: Plan, message: str
) -> None:
    backend = make("native", tiny_model_path)
    with pytest.raises(PlanError, match=message):
        play(backend, plan)
    assert run(backend, ASKS[:3]) == alone["bf16"][:3]


GOOD = msgspec.to_builtins(
    Plan(
        3,
        (
            SlotOpen(0, prompt(30), ((4, 9),), ChoiceRule(30, 7, 1.0)),
            SlotOpen(1, prompt(30), ((4, 9),), ChoiceRule(30)),
        ),
        (BlockCopy(0, 4, 5),),
        (PlanRow(0, 20, 11, (6,), (1,), ((9, 2),)),),
        (SampleRow(0, 10, 0), SampleRow(0, 9, 1), SampleRow(0, 3, 0, 5, 2)),
    )
)


def leaves(value: Any, path: tuple[int, ...] = ()) -> list[tuple[int, ...]]:
    if not isinstance(value, list):
        return [path]
    return [leaf for i, child in enumerate(value) for leaf in leaves(child, (*path, i))]


@pytest.fixture(scope="module")
def endured(tiny_model_path: Path) -> NativeBackend:
    return NativeBackend(open_model(tiny_model_path), LIMITS)


@settings(max_examples=300)
@given(data=st.data())
def test_no_plan_ends_the_process(
    endured: NativeBackend, alone: dict[str, list[Told]], data: st.DataObject
) -> None:
    """Numbers of a good plan replaced by any others: an answer or PlanError, and the next plan is as ever."""
    plan: Any = msgspec.json.decode(msgspec.json.encode(GOOD))
    for path in data.draw(st.lists(st.sampled_from(leaves(plan)), min_size=1, max_size=3)):
        at = plan
        for index in path[:-1]:
            at = at[index]
        edges = st.sampled_from([-1, 0, 1, 2, 15, 16, 17, 31, 127, 128, 286, 287, 511, 512, 513])
        at[path[-1]] = data.draw(edges | st.integers(-(2**63), 2**63 - 1))
    try:
        mutant = msgspec.convert(plan, Plan)
    except msgspec.ValidationError:
        return
    try:
        play(endured, mutant)
    except PlanError:
        if endured._flight.last is not None and endured._flight.last.samples is None:
            endured.sample(endured._flight.last)
    endured._flight.clear()
    assert run(endured, ASKS[1:2]) == alone["bf16"][1:2]


def test_masks_are_checked(make: MakeBackend, tiny_model_path: Path) -> None:
    plan = ruled()
    mask = np.zeros(9, np.int32)
    mask[4] = 1 << 5
    for wrong, message in (
        (mask[:8], "8 words; the vocabulary needs 9"),
        (mask.astype(np.int64), "contiguous int32"),
        (np.zeros(18, np.int32)[::2], "contiguous int32"),
    ):
        backend = make("native", tiny_model_path)
        handle = backend.launch(plan)
        with pytest.raises(PlanError, match=message):
            backend.sample(handle, [wrong])  # type: ignore[list-item]
        backend.sample(handle, [mask])
        assert backend.collect(handle)[0].token == 133
    backend = make("native", tiny_model_path)
    handle = backend.launch(plan)
    backend.sample(handle, [np.zeros(9, np.int32)])  # nothing is allowed
    assert backend.collect(handle)[0].token == -1


# Construction


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"block_size": 32}, {}, "block_size is 32"),
        ({"num_blocks": 0}, {}, "num_blocks is 0"),
        ({"num_blocks": 2**31 - 1}, {}, "num_blocks is 2147483647"),
        ({"max_slots": 0}, {}, "max_slots is 0"),
        ({"max_step_tokens": 0}, {}, "max_step_tokens is 0"),
        ({"max_model_len": -5}, {}, "max_model_len is -5"),
        ({}, {"threads": 0}, "threads is 0"),
        ({}, {"threads": 5000}, "threads is 5000"),
        ({}, {"kv_dtype": "int4"}, "kv_dtype is 'int4'"),
        ({}, {"isa": "mmx"}, "'mmx'"),
    ],
)
def test_limits_that_cannot_be_kept(
    make: MakeBackend, tiny_model_path: Path, changes: dict[str, int], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        make("native", tiny_model_path, msgspec.structs.replace(LIMITS, **changes), **options)


def test_programs_that_the_kernels_cannot_run(tiny_model_path: Path) -> None:
    model = open_model(tiny_model_path)
    spec, program = model.spec, model.spec.program
    window = msgspec.structs.replace(spec.kv_groups[0], window=64)
    late_rope = (RopeOp(), *program.layers[0])
    early_norm = (
        *program.layers[0][:2],
        Norm("q", "q", "blk.0.attn_norm.weight", 1e-5),
        *program.layers[0][2:],
    )
    swapped = (*program.layers[0][4:], *program.layers[0][:4])
    for changed, message in (
        ({"kv_groups": (window,)}, "sliding window of 64"),
        ({"program": msgspec.structs.replace(program, layers=(late_rope,))}, "rope reads 'q'"),
        ({"program": msgspec.structs.replace(program, layers=(early_norm,))}, "norm goes from 'q' to 'q'"),
        ({"program": msgspec.structs.replace(program, layers=(swapped,))}, "linear reads 'a'"),
        ({"program": msgspec.structs.replace(program, start=())}, "does not start with an embedding"),
        ({"program": msgspec.structs.replace(program, end=())}, "does not end with a head"),
        ({"vocab_size": 288}, "table of 287"),
    ):
        with pytest.raises(ModelError, match=f"native backend.*{message}"):
            NativeBackend(with_spec(model, **changed), LIMITS)


def with_spec(model: StoredModel, **changes: Any) -> StoredModel:
    return replace(model, spec=msgspec.structs.replace(model.spec, **changes))


def test_a_tensor_table_that_does_not_fit_the_weights(tiny_model_path: Path) -> None:
    model = open_model(tiny_model_path)
    name = "blk.1.ffn_down.weight"
    for changes, message in (
        ({"offset": 1 << 40}, "not inside"),
        ({"offset": -64}, "not inside"),
        ({"offset": model.tensors[name].offset + 4}, "not aligned"),
        ({"nbytes": 64}, "should have"),
        ({"rows": 112}, "should have"),
        ({"container": "u8"}, "should have"),
        ({"zero_point": 900}, "zero"),
    ):
        tensor = msgspec.structs.replace(model.tensors[name], **changes)
        with pytest.raises(ModelError, match=message):
            NativeBackend(replace(model, tensors=model.tensors | {name: tensor}), LIMITS)


def test_without_the_kernels_the_error_says_what_to_do(
    tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = open_model(tiny_model_path)
    monkeypatch.setitem(sys.modules, "octavo._kernels", None)
    with pytest.raises(SettingsError, match="--backend reference"):
        NativeBackend(model, LIMITS)


def test_the_arithmetic_id_tells_models_and_kv_types_apart(
    make: MakeBackend, tiny_model_path: Path, tmp_path: Path
) -> None:
    other = write_tiny_llama(tmp_path / "other.gguf", seed=1)
    ids = {
        make("native", tiny_model_path).arithmetic_id,
        make("native", tiny_model_path, kv_dtype="fp32").arithmetic_id,
        make("native", other).arithmetic_id,
    }
    assert len(ids) == 3
    assert make("native", tiny_model_path, isa="scalar", threads=1).arithmetic_id in ids


def test_closed(make: MakeBackend, tiny_model_path: Path) -> None:
    backend = make("native", tiny_model_path)
    backend.close()
    backend.close()
    with pytest.raises(PlanError, match="closed"):
        backend.launch(Plan(0))


def test_calls_out_of_order_are_refused(make: MakeBackend, tiny_model_path: Path) -> None:
    backend = make("native", tiny_model_path)
    first = backend.launch(opening(PlanRow(0, 0, 20), samples=(SampleRow(0, 19, 0),)))
    with pytest.raises(PlanError, match="was not sampled"):
        backend.launch(Plan(1))
    with pytest.raises(PlanError, match="never sampled"):
        backend.collect(first)
    with pytest.raises(PlanError, match="2 masks for 1"):
        backend.sample(first, [None, None])
    backend.sample(first)
    with pytest.raises(PlanError, match="sampled before"):
        backend.sample(first)
    second = backend.launch(Plan(1))
    backend.sample(second)
    with pytest.raises(PlanError, match="oldest"):
        backend.collect(second)
    backend.collect(first)
    with pytest.raises(PlanError, match="oldest"):
        backend.collect(first)
    assert backend.collect(second) == ()


def test_a_large_and_mixed_batch_equals_its_parts(make: MakeBackend, tiny_model_path: Path) -> None:
    """Random lengths, rules and arrivals, in a small pool of permuted blocks."""
    dice = random.Random(3)
    asks = [
        Ask(
            prompt(dice.randint(1, 90)),
            dice.randint(1, 12),
            dice.choice([GREEDY, SEEDED]),
            arrive=dice.randint(0, 9),
        )
        for _ in range(16)
    ]
    backend = make("native", tiny_model_path)
    singles = [run(backend, [ask], seed=9)[0] for ask in asks]
    for chunk in (5, 64):
        assert run(backend, asks, chunk=chunk, seed=chunk) == singles


# Where the weights lie


def test_copied_weights_give_equal_bits_and_no_mapping(make: MakeBackend, tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf", seed=5)
    told = []
    for copied in (True, False):
        backend = make("native", path, copy_weights=copied, threads=2)
        told.append(run(backend, [Ask(prompt(40), 8, rule, prompt_top=2) for rule in (GREEDY, SEEDED)]))
        folder = open_model(path).dir.name
        assert (f"{folder}/weights.bin" in Path("/proc/self/maps").read_text()) is not copied
    assert told[0] == told[1]
