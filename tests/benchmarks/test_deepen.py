"""The deeper model that benchmarks verify a draft model with: the same answers from more layers."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.deepen import write_deeper
from octavo.config import EngineConfig
from octavo.engine.build import build_engine
from octavo.models.store import open_model
from tests.fakes import request, run, tokens
from tests.models.tiny import write_tiny_llama


def answer(path: Path) -> tuple[int, list[int]]:
    """How many layers it has, and what it answers."""
    model = open_model(path, packed=True)
    engine = build_engine(EngineConfig(model_dir=str(model.dir), num_blocks=40, speculation="off"))
    asked = request("r", range(20, 40), max_tokens=30, temperature=0.0, ignore_eos=True)
    [items] = run(engine, asked).values()
    engine.close()
    return model.spec.layers, tokens(items)


def test_copies_without_strength_change_nothing(tiny_model_path: Path, tmp_path: Path) -> None:
    layers, plain = answer(tiny_model_path)
    same = write_deeper(tiny_model_path, tmp_path / "same.gguf", 3, 0.0)
    assert answer(same) == (3 * layers, plain)
    other = write_deeper(tiny_model_path, tmp_path / "other.gguf", 3, 0.7)
    assert answer(other)[1] != plain


def test_weights_that_it_cannot_multiply(tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "m.gguf", weights="F16")
    with pytest.raises(ValueError, match="is F16; this multiplies Q4_1"):
        write_deeper(model, tmp_path / "out.gguf", 2, 0.5)
