"""The files of random weights: what `benchmarks.shapes` writes, Octavo reads, computes with, and gguf agrees on."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest
from gguf.quants import dequantize

from benchmarks.shapes import FORMATS, Shape, write_shape
from octavo.models.store import open_model

SMALL = Shape(hidden=256, layers=1, heads=4, kv_heads=2, head_dim=64, ffn=512)


@pytest.mark.usefixtures("model_dir")
@pytest.mark.parametrize(
    "form", [*FORMATS[:1], *(pytest.param(form, marks=pytest.mark.slow) for form in FORMATS[1:])]
)
def test_every_format_has_weights_of_a_sane_size_and_opens(form: str, tmp_path: Path) -> None:
    path = write_shape(tmp_path / "small.gguf", SMALL, form, vocabulary=49_280, embedding="q8_0")
    model = open_model(path, cache=tmp_path / "cache")
    assert model.spec.vocab_size == 49_280
    for tensor in gguf.GGUFReader(path).tensors:
        if tensor.name.startswith("blk.0.attn_q"):
            values = dequantize(tensor.data, tensor.tensor_type)
            assert values.shape == (256, 256)
            assert values.std() == pytest.approx(256**-0.5, rel=0.05)
            assert abs(values.mean()) < 0.15 * values.std()  # Q4_0 has one value more below 0 than above
