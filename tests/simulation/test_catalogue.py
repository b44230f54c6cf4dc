"""The catalogue's rows make sense together, and unknown names are answered with near ones."""

from __future__ import annotations

import pytest

from octavo.errors import InvalidParameter
from octavo.simulation.catalogue import Shape, hardware, hardware_names, model, model_names
from octavo.simulation.roofline import Roofline
from octavo.timing.step_time import StepLoad

every_model = pytest.mark.parametrize("name", model_names())


@pytest.mark.parametrize("name", hardware_names())
def test_an_accelerator_s_numbers_are_of_one_kind(name: str) -> None:
    row = hardware(name)
    assert 1.9 <= row.int8_tops / row.bf16_tflops <= 4.1
    assert 5 < row.bf16_tflops * 1e12 / (row.bandwidth_gb_s * 1e9) < 450, "operations a byte"
    assert row.idle_watts < row.watts
    assert row.source and row.as_of


@every_model
def test_a_model_s_parameters_are_those_of_its_shape(name: str) -> None:
    """Attention and a feed-forward part of usual width make up the rest: between 6 and 16 hidden² beside attention."""
    shape = model(name)
    table = shape.vocabulary * shape.hidden
    inner = shape.parameters - shape.embedding - table
    attention = shape.hidden * shape.head_dim * (2 * shape.heads + 2 * shape.kv_heads)
    rest = inner / shape.layers - attention
    assert 5.5 < rest / shape.hidden**2 < 16.7
    assert shape.heads % shape.kv_heads == 0
    assert shape.head_dim * shape.heads == shape.hidden


@pytest.mark.parametrize(
    ("name", "kib"),
    [("opt-13b", 800), ("llama-7b", 512), ("llama-3-8b", 128), ("llama-3-70b", 320), ("smollm2-135m", 22.5)],
)
def test_kv_bytes_a_token(name: str, kib: float) -> None:
    """800 KB for OPT-13B: Kwon et al. 2023, section 3."""
    assert model(name).kv_bytes_per_token() == kib * 1024
    assert model(name).kv_bytes_per_token(8) == kib * 512


def test_unknown_names_are_answered_with_near_ones() -> None:
    with pytest.raises(InvalidParameter, match=r"hardware 'h1000' is unknown; did you mean h100"):
        hardware("h1000")
    with pytest.raises(InvalidParameter, match="model 'gpt' is unknown; there are opt-13b, "):
        model("gpt")
    assert isinstance(model("LLaMA-3-8B"), Shape)


def test_what_people_ask_for_is_there() -> None:
    assert {
        "a100-40", "a100-80", "h100", "h200", "b200", "l4", "l40s", "a10g", "t4", "rtx3090", "rtx4090", "mi300x",
        "laptop-cpu",
    } <= set(hardware_names())  # fmt: skip
    assert {
        "opt-13b", "opt-66b", "opt-175b", "llama-7b", "llama-13b", "llama-3-8b", "llama-3-70b", "mistral-7b",
        "yi-34b", "falcon-180b", "qwen2.5-7b", "smollm2-135m",
    } <= set(model_names())  # fmt: skip


@every_model
@pytest.mark.parametrize("bits", [4, 8, 16])
def test_every_model_runs_somewhere_with_every_width(name: str, bits: int) -> None:
    """On as many H100 as its weights need: a step of one token takes what reading them takes, or more."""
    shape = model(name)
    counts = [count for count in range(1, 17) if shape.heads % count == 0]
    needed = next(count for count in counts if shape.parameters * bits / 8 < 0.85 * count * 80e9)
    pace = Roofline(
        hardware=hardware("h100"), shape=shape, weight_bits=bits, kv_bits=bits, tensor_parallel=needed
    )
    read_s = (shape.parameters - shape.embedding) * bits / 8 / (3350e9 * needed)
    assert pace.kv_tokens() > shape.context / 2
    assert read_s < pace.seconds(StepLoad(1, 1, 1, 0)) < 2 * read_s + 0.006
