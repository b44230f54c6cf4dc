"""The llama architecture: the spec of good files, and the reason for every bad one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import msgspec
import numpy as np
import pytest

from octavo.errors import ModelError
from octavo.models.architectures import compile_model
from octavo.models.gguf import GGUFFile
from octavo.models.program import Attention, Embed, Gated, Head, Linear, Norm, RopeOp
from octavo.models.spec import KVGroup, ModelSpec, Rope
from tests.models.tiny import CHAT_TEMPLATE, CONTROL, tiny_tokens, write_tiny_llama


def compiled(path: Path) -> ModelSpec:
    return compile_model(GGUFFile(path), "0" * 64)


def tiny(tmp_path: Path, **arguments: Any) -> ModelSpec:
    return compiled(write_tiny_llama(tmp_path / "m.gguf", **arguments))


def test_the_tiny_model(tmp_path: Path) -> None:
    spec = tiny(tmp_path)
    assert (spec.name, spec.architecture) == ("tiny", "llama")
    assert spec.vocab_size == len(tiny_tokens())
    assert (spec.layers, spec.hidden, spec.ffn, spec.context_tokens) == (2, 128, 192, 512)
    assert (spec.heads, spec.kv_heads, spec.head_dim) == (4, 2, 32)
    assert (spec.bos_id, spec.eos_ids, spec.add_bos) == (1, (0, 2), False)
    assert spec.chat_template == CHAT_TEMPLATE
    assert spec.rope == Rope(theta=10000.0, dim=32, interleaved=True)
    assert spec.kv_groups == (KVGroup(layers=(0, 1), kv_heads=2, head_dim=32),)
    assert spec.weights_hash == "0" * 64


def test_the_program(tmp_path: Path) -> None:
    program = tiny(tmp_path).program
    eps = float(np.float32(1e-5))
    assert program.start == (Embed(table="token_embd.weight"),)
    assert program.layers[1] == (
        Norm(source="x", target="h", weight="blk.1.attn_norm.weight", eps=eps),
        Linear(
            source="h",
            targets=("q", "k", "v"),
            weights=("blk.1.attn_q.weight", "blk.1.attn_k.weight", "blk.1.attn_v.weight"),
        ),
        RopeOp(),
        Attention(layer=1, group=0, scale=32**-0.5),
        Linear(source="a", targets=("x",), weights=("blk.1.attn_output.weight",), add=True),
        Norm(source="x", target="h", weight="blk.1.ffn_norm.weight", eps=eps),
        Gated(source="h", target="g", gate="blk.1.ffn_gate.weight", up="blk.1.ffn_up.weight"),
        Linear(source="g", targets=("x",), weights=("blk.1.ffn_down.weight",), add=True),
    )
    assert program.end == (
        Norm(source="x", target="h", weight="output_norm.weight", eps=eps),
        Head(source="h", weight="token_embd.weight"),
    )


def test_an_own_output_matrix_biases_and_wide_heads(tmp_path: Path) -> None:
    spec = tiny(tmp_path, output="Q8_0", biases=True, head_dim=64)
    assert spec.program.end[-1] == Head(source="h", weight="output.weight")
    assert spec.head_dim == 64
    linear = spec.program.layers[0][1]
    assert isinstance(linear, Linear)
    assert linear.biases == ("blk.0.attn_q.bias", "blk.0.attn_k.bias", "blk.0.attn_v.bias")


def test_weights_are_every_tensor_once_in_the_order_of_use(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "m.gguf", biases=True, rope_factors=[1.0] * 16)
    names = compiled(path).program.weights()
    assert names[:3] == ("token_embd.weight", "blk.0.attn_norm.weight", "blk.0.attn_q.weight")
    assert names[-1] == "output_norm.weight"
    assert sorted(names) == sorted(set(GGUFFile(path).tensors) - {"rope_freqs.weight"})


def test_rope_factors_and_linear_scaling(tmp_path: Path) -> None:
    factors = [1.0] * 8 + [8.0] * 8
    assert tiny(tmp_path, rope_factors=factors).rope.factors == tuple(factors)
    scaling = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    assert tiny(tmp_path, metadata=scaling).rope.factors == (4.0,) * 16
    both = tiny(tmp_path, metadata=scaling, rope_factors=factors).rope.factors
    assert both == (4.0,) * 8 + (32.0,) * 8
    assert tiny(tmp_path, metadata={"llama.rope.dimension_count": 16}).rope.dim == 16


def test_end_tokens(tmp_path: Path) -> None:
    tokens = tiny_tokens()
    tokens[10], tokens[11], tokens[12] = "<|eot_id|>", "</s>", "<|end|>"
    types = [3] * len(CONTROL) + [1] * (len(tokens) - len(CONTROL))
    types[10], types[12] = 3, 4  # 11 stays ordinary text
    keys = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
    assert tiny(tmp_path, metadata=keys).eos_ids == (0, 2, 10, 12)
    more = {"tokenizer.ggml.eot_token_id": 20, "tokenizer.ggml.eom_token_id": 21}
    assert tiny(tmp_path, metadata=more).eos_ids == (0, 2, 20, 21)


def test_bos_rules(tmp_path: Path) -> None:
    assert tiny(tmp_path, metadata={"tokenizer.ggml.add_bos_token": True}).add_bos
    absent = {"tokenizer.ggml.add_bos_token": None}
    assert not tiny(tmp_path, metadata=absent).add_bos
    assert tiny(tmp_path, metadata=absent | {"tokenizer.ggml.pre": "llama-bpe"}).add_bos
    assert tiny(tmp_path, metadata=absent | {"tokenizer.ggml.model": "llama"}).add_bos
    no_bos = tiny(
        tmp_path, metadata={"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": None}
    )
    assert (no_bos.bos_id, no_bos.add_bos) == (None, False)


def test_optional_keys(tmp_path: Path) -> None:
    names = ("general.name", "tokenizer.chat_template", "llama.vocab_size", "llama.rope.dimension_count")
    spec = tiny(tmp_path, metadata=dict.fromkeys((*names, "tokenizer.ggml.token_type")))
    assert (spec.name, spec.chat_template, spec.rope.dim) == ("m", None, 32)
    per_layer = {"llama.attention.head_count_kv": [2, 2], "llama.feed_forward_length": [192, 192]}
    assert tiny(tmp_path, metadata=per_layer).kv_heads == 2


def test_the_spec_survives_json(tmp_path: Path) -> None:
    spec = tiny(tmp_path, biases=True, rope_factors=[2.0] * 16)
    assert msgspec.json.decode(msgspec.json.encode(spec), type=ModelSpec) == spec


def test_the_default_model(model_path: Path, shared_dir: Path) -> None:
    spec = compiled(model_path)
    assert (spec.layers, spec.hidden, spec.ffn, spec.vocab_size) == (30, 576, 1536, 49152)
    assert (spec.heads, spec.kv_heads, spec.head_dim) == (9, 3, 64)
    assert spec.context_tokens == 8192
    assert (spec.bos_id, spec.add_bos) == (1, False)
    assert spec.rope == Rope(theta=100000.0, dim=64, interleaved=True)
    ends = {
        prompt["greedy_ids"][-1]
        for prompt in json.loads((shared_dir / "oracle" / "smollm2-135m.json").read_text())
        if len(prompt["greedy_ids"]) < 48
    }
    assert ends <= set(spec.eos_ids) == {0, 2}


BAD_KEYS: dict[str, dict[str, Any]] = {
    "its architecture is 'mamba', Octavo supports llama": {"general.architecture": "mamba"},
    "no llama.block_count": {"llama.block_count": None},
    "llama.block_count is 0, it must be 1 to": {"llama.block_count": 0},
    "tensor 'blk.2.attn_norm.weight' is missing": {"llama.block_count": 3},
    "tensor 'blk.1.attn_norm.weight' and 8 more has no place": {"llama.block_count": 1},
    "llama.block_count is 'two', it must be an integer": {"llama.block_count": "two"},
    "llama.block_count is True, it must be an integer": {"llama.block_count": True},
    "llama.context_length is 4294967295": {"llama.context_length": 2**32 - 1},
    "the hyperparameters ask for (287, 64)": {"llama.embedding_length": 64},
    "the hyperparameters ask for (96, 128)": {"llama.feed_forward_length": 96},
    "4 attention heads cannot share 3 KV heads": {"llama.attention.head_count_kv": 3},
    "only one size for all 2 layers": {"llama.attention.head_count_kv": [2, 1]},
    "only one size for all 2 layers is": {"llama.feed_forward_length": [192]},
    "llama.attention.head_count_kv is 0": {"llama.attention.head_count_kv": [0, 0]},
    "keys of 32 and values of 16": {"llama.attention.value_length": 16},
    "llama.expert_count is 8": {"llama.expert_count": 8},
    "llama.vocab_size is 288, the file has 287 tokens": {"llama.vocab_size": 288},
    "llama.context_length is 1, a prompt and an answer need at least 2": {"llama.context_length": 1},
    "epsilon is nan": {"llama.attention.layer_norm_rms_epsilon": float("nan")},
    "epsilon is 0.0": {"llama.attention.layer_norm_rms_epsilon": 0.0},
    "freq_base is inf": {"llama.rope.freq_base": float("inf")},
    "freq_base is '1', it must be a number": {"llama.rope.freq_base": "1"},
    "dimension_count is 34": {"llama.rope.dimension_count": 34},
    "dimension_count is 15": {"llama.rope.dimension_count": 15},
    "scaling.type is 'yarn'": {"llama.rope.scaling.type": "yarn"},
    "no llama.rope.scaling.factor": {"llama.rope.scaling.type": "linear"},
    "no tokenizer.ggml.tokens": {"tokenizer.ggml.tokens": None},
    "tokenizer.ggml.tokens is [1, 2], it must be an array of str": {"tokenizer.ggml.tokens": [1, 2]},
    "tokenizer.ggml.token_type has 2 elements, it must have 287": {"tokenizer.ggml.token_type": [1, 1]},
    "eos_token_id is 287, the vocabulary has ids 0 to 286": {"tokenizer.ggml.eos_token_id": 287},
    "chat_template is 7, it must be a string": {"tokenizer.chat_template": 7},
    "add_bos_token is 1, it must be a bool": {"tokenizer.ggml.add_bos_token": 1},
}


@pytest.mark.parametrize("reason", BAD_KEYS)
def test_bad_keys(tmp_path: Path, reason: str) -> None:
    path = write_tiny_llama(tmp_path / "m.gguf", metadata=BAD_KEYS[reason])
    with pytest.raises(ModelError) as raised:
        compiled(path)
    assert reason in str(raised.value)
    assert str(path) in str(raised.value)


def test_tensors_of_the_wrong_type_or_value(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="holds values that are not finite and above 0"):
        tiny(tmp_path, rope_factors=[0.0] * 16)
    with pytest.raises(ModelError, match=r"rope_freqs.weight' has shape \(15,\)"):
        tiny(tmp_path, rope_factors=[1.0] * 15)

    def alone(name: str, values: Any, raw: Any = None) -> GGUFFile:
        writer = gguf.GGUFWriter(tmp_path / "one.gguf", "llama")
        writer.add_token_list(["a"])
        for key, value in (("block_count", 1), ("embedding_length", 32), ("feed_forward_length", 32)):
            writer.add_uint32(f"llama.{key}", value)
        writer.add_uint32("llama.attention.head_count", 1)
        writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
        writer.add_tensor(name, values, raw_dtype=raw)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return GGUFFile(tmp_path / "one.gguf")

    with pytest.raises(ModelError, match="has type I32, it must be one of F32, F16"):
        compile_model(alone("token_embd.weight", np.zeros((1, 32), np.int32)), "")
    with pytest.raises(ModelError, match=r"'token_embd.weight' is missing"):
        compile_model(alone("other.weight", np.zeros((1, 32), np.float32)), "")
