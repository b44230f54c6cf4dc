"""Steps on paper machines: each bound by hand, what fits, and what tensor parallelism costs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.errors import CapacityError, InvalidParameter
from octavo.simulation.catalogue import Hardware, Shape, hardware, model
from octavo.simulation.pace import LinearPace, decodes_of
from octavo.simulation.roofline import EFFICIENCIES, Efficiency, Roofline
from octavo.timing.step_time import StepLoad

PERFECT = Efficiency(compute=1.0, bandwidth=1.0, link=1.0, per_step_s=0.0, per_exchange_s=0.0)
MACHINE = Hardware(
    name="round", bf16_tflops=100.0, int8_tops=200.0, memory_gb=10.0, bandwidth_gb_s=1000.0, link_gb_s=100.0,
    watts=100.0, idle_watts=10.0, source="the test", as_of="2026-11",
)  # fmt: skip
MODEL = Shape(
    layers=10, hidden=1000, heads=10, kv_heads=5, head_dim=100, parameters=1_010_000_000, embedding=5_000_000,
    vocabulary=5000, context=4096, source="the test",
)  # fmt: skip


def roofline(**changes: object) -> Roofline:
    return Roofline(**{"hardware": MACHINE, "shape": MODEL, "efficiency": PERFECT, **changes})  # type: ignore[arg-type]


def test_a_small_step_takes_what_reading_the_weights_takes() -> None:
    # 1.0e9 parameters of the body and 5e6 of the head, 2 bytes each, at 1e12 bytes/s
    assert roofline().seconds(StepLoad(1, 1, 0, 0)) == pytest.approx(2.000e-3 + 0.010e-3)
    assert roofline(weight_bits=4).seconds(StepLoad(1, 1, 0, 0)) == pytest.approx(0.5e-3 + 0.0025e-3)


def test_a_large_step_takes_what_multiplying_takes() -> None:
    # 2 × 1e9 operations a token at 1e14 a second: 20 µs each; the head for the one that is sampled
    assert roofline().seconds(StepLoad(1000, 1, 0, 0)) == pytest.approx(20e-3 + 0.010e-3)
    assert roofline(arithmetic="int8").seconds(StepLoad(1000, 0, 0, 0)) == pytest.approx(10e-3)


def test_the_critical_batch_is_where_both_are_equal() -> None:
    assert roofline().critical_batch == pytest.approx(100)
    body = StepLoad(100, 0, 0, 0)
    assert roofline().seconds(body) == pytest.approx(roofline().seconds(StepLoad(1, 0, 0, 0)))
    assert roofline().seconds(StepLoad(101, 0, 0, 0)) > roofline().seconds(body)
    a100 = Roofline(hardware=hardware("a100-80"), shape=model("llama-3-8b"), efficiency=PERFECT)
    assert a100.critical_batch == pytest.approx(312e12 / 2039e9)


def test_attention_reads_what_is_stored_and_multiplies_pairs() -> None:
    nothing = roofline().seconds(StepLoad(1, 0, 0, 0))
    # 2 × 10 layers × 5 heads × 100 × 2 bytes = 20,000 bytes a token
    assert roofline().kv_bytes_per_token == 20_000
    assert roofline().seconds(StepLoad(1, 0, 1_000_000, 0)) - nothing == pytest.approx(20e-3)
    # 4 × 10 × 10 × 100 = 40,000 operations a pair
    assert roofline().seconds(StepLoad(1, 0, 0, 10**9)) - nothing == pytest.approx(0.4)


def test_two_accelerators_halve_the_work_and_exchange_sums() -> None:
    two = roofline(tensor_parallel=2, efficiency=Efficiency(
        compute=1.0, bandwidth=1.0, link=1.0, per_step_s=0.0, per_exchange_s=1e-6,
    ))  # fmt: skip
    # 20 exchanges of 1000 tokens × 1000 × 2 bytes at 1e11 bytes/s, and a microsecond each
    assert two.seconds(StepLoad(1000, 0, 0, 0)) == pytest.approx(10e-3 + 20 * (20e-6 + 1e-6))


@pytest.mark.parametrize("bits", [4, 8, 16])
def test_fewer_bits_are_read_sooner_and_multiplied_alike(bits: int) -> None:
    """1.005e9 parameters are read in bits/16 of 2.01 ms; K and V of a million tokens in bits/16 of 20 ms. Arithmetic is
    that of bf16 unless it is said otherwise, so the critical batch falls with the weights."""
    few = roofline(weight_bits=bits, kv_bits=bits)
    assert few.seconds(StepLoad(1, 1, 0, 0)) == pytest.approx(2.01e-3 * bits / 16)
    stored = few.seconds(StepLoad(1, 1, 1_000_000, 0)) - few.seconds(StepLoad(1, 1, 0, 0))
    assert stored == pytest.approx(20e-3 * bits / 16)
    assert few.seconds(StepLoad(1000, 0, 0, 0)) == pytest.approx(20e-3)
    assert few.critical_batch == pytest.approx(100 * bits / 16)
    assert few.kv_tokens(0.9) == int((9e9 - 2.02e9 * bits / 16) / (20_000 * bits / 16))


def test_more_accelerators_than_kv_heads_keep_copies() -> None:
    """Five KV heads on two are three each, of which one is in both; on ten each is in two."""
    assert roofline(tensor_parallel=2).kv_bytes_per_token == 20_000 * 6 / 5
    assert roofline(tensor_parallel=5).kv_bytes_per_token == 20_000
    assert roofline(tensor_parallel=10).kv_bytes_per_token == 40_000


@given(sequences=st.integers(1, 300), kv=st.integers(1, 10**6), steps=st.integers(1, 40))
def test_many_decodes_at_once_take_what_each_takes_to_the_last_bit(
    sequences: int, kv: int, steps: int
) -> None:
    for pace in (roofline(), roofline(tensor_parallel=5), LinearPace(per_step_s=0.1, per_kv_token_s=1e-7)):
        loads = [StepLoad(sequences, sequences, kv + step * sequences, 0, sequences) for step in range(steps)]
        assert decodes_of(pace)(sequences, kv, steps) == [pace.seconds(load) for load in loads]


def test_what_fits_in_memory() -> None:
    assert roofline().kv_tokens(0.9) == int((9e9 - 2.02e9) / 20_000)
    assert roofline(tensor_parallel=5).kv_tokens(0.9) == int((45e9 - 2.02e9) / 20_000)
    with pytest.raises(
        CapacityError, match=r"141\.1 GB with 16 bits, and 90% of 1 × NVIDIA H100 SXM are 72\.0 GB"
    ):
        Roofline(hardware=hardware("h100"), shape=model("llama-3-70b")).kv_tokens()


def test_what_cannot_be_built_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="must divide the model's 10 heads"):
        roofline(tensor_parallel=3)
    with pytest.raises(InvalidParameter, match="is alone; take 1"):
        Roofline(hardware=hardware("laptop-cpu"), shape=MODEL, tensor_parallel=2)
    with pytest.raises(InvalidParameter, match="has no fp8"):
        Roofline(hardware=hardware("a100-80"), shape=MODEL, arithmetic="fp8")


@given(
    tokens=st.integers(1, 4096), samples=st.integers(0, 256), kv=st.integers(0, 10**6), pairs=st.integers(0, 10**7)
)  # fmt: skip
def test_more_work_never_takes_less_and_the_range_holds_the_typical(
    tokens: int, samples: int, kv: int, pairs: int
) -> None:
    load = StepLoad(tokens, samples, kv, pairs)
    high, typical, low = (
        Roofline(hardware=hardware("l4"), shape=model("mistral-7b"), efficiency=EFFICIENCIES[name])
        for name in ("high", "typical", "low")
    )
    assert high.seconds(load) <= typical.seconds(load) <= low.seconds(load)
    for at in range(4):
        more = StepLoad(*(value + (place == at) for place, value in enumerate(load)))
        assert typical.seconds(more) >= typical.seconds(load)


@pytest.mark.parametrize(
    ("name", "at_peak"),
    [("a100-80", 312e12 / 2039e9), ("h100", 989.4e12 / 3350e9), ("laptop-cpu", 0.9e12 / 100e9)],
)
def test_the_critical_batch_of_machines_of_the_catalogue_with_its_formula(name: str, at_peak: float) -> None:
    """B* = FLOP/s ÷ bytes/s × bytes of a weight ÷ 2 operations: 153 on an A100 and 295 on an H100 in bf16."""
    for efficiency, share in ((PERFECT, 1.0), (EFFICIENCIES["typical"], 0.55 / 0.75)):
        one = Roofline(hardware=hardware(name), shape=model("llama-3-8b"), efficiency=efficiency)
        assert one.critical_batch == pytest.approx(share * at_peak)
        assert one.critical_sum.startswith(
            f"B* = {100 * efficiency.compute:g} % of {hardware(name).bf16_tflops:,g} T"
        )
        assert one.critical_sum.endswith(f"÷ 2 = {share * at_peak:.0f} tokens a step")
        # At it the matrices of the body take as long to multiply by as to read, and on two accelerators too.
        assert one.seconds(StepLoad(int(share * at_peak), 0, 0, 0)) == pytest.approx(
            one.seconds(StepLoad(1, 0, 0, 0))
        )
        assert one.seconds(StepLoad(int(share * at_peak) + 1, 0, 0, 0)) > one.seconds(StepLoad(1, 0, 0, 0))
    if hardware(name).link_gb_s:
        two = Roofline(
            hardware=hardware(name), shape=model("llama-3-8b"), tensor_parallel=2, efficiency=PERFECT
        )
        assert two.critical_batch == pytest.approx(at_peak)
