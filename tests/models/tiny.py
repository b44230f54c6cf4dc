"""A tiny random llama model as a GGUF file, for every room's tests. Knows the format only through `gguf`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import gguf
import numpy as np
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray

__all__ = [
    "CHAT_TEMPLATE",
    "CONTROL",
    "MERGES",
    "WeightType",
    "byte_letters",
    "tiny_tokens",
    "write_tiny_llama",
]

WeightType = Literal[
    "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "F16", "BF16", "F32"
]  # fmt: skip

_RANDOM: dict[str, tuple[int, int, int | None, float]] = {
    "Q2_K": (80, 84, 82, 1.5),
    "Q3_K": (108, 110, None, 0),
    "Q4_K": (0, 144, 2, 7.5),
    "Q5_K": (0, 176, 2, 15.5),
    "Q6_K": (208, 210, None, 0),
    "IQ4_NL": (0, 18, None, 0),
}
"""Types that `gguf` reads but does not write: where a block's fp16 scale is, the block's bytes, where the scale of
the minima is, and how many times the scale that must be for the weights' mean to be 0."""

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Ids 0, 1, 2, as in SmolLM2: text end, turn start (BOS), turn end (EOS)."""

MERGES = (
    "Ġ t", "h e", "Ġt he", "i n", "e r", "Ġ a", "o n", "r e", "a n", "Ġ s", "a t", "o r", "e n", "l l", "o u",
    "Ġ w", "Ġw or", "l d", "Ġwor ld", "i s", "in g", "H e", "ll o", "He llo", "Ġa n", "n d", "Ġa nd", "Ã ©",
)  # fmt: skip
"""Byte-level merges, best first; each adds one token."""

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] }}"
    "{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_letters() -> list[str]:
    """The printable letter that byte-level BPE writes for each byte 0…255 (the GPT-2 convention)."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    letters = {byte: chr(byte) for byte in printable}
    for byte in range(256):
        letters.setdefault(byte, chr(256 + len(letters) - len(printable)))
    return [letters[byte] for byte in range(256)]


def tiny_tokens() -> list[str]:
    """The vocabulary in id order: control tokens, the 256 bytes, the merges' results (287 tokens)."""
    return [*CONTROL, *byte_letters(), *(merge.replace(" ", "") for merge in MERGES)]


def write_tiny_llama(
    path: Path,
    *,
    weights: WeightType | Sequence[WeightType] = "Q4_1",
    embedding: WeightType = "Q8_0",
    output: WeightType | None = None,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 32,
    hidden: int = 128,
    ffn: int = 192,
    context: int = 512,
    rope_factors: Sequence[float] | None = None,
    biases: bool = False,
    seed: int = 0,
    metadata: dict[str, Any] | None = None,
) -> Path:
    """Write the model and return `path`. The same arguments give the same bytes.

    `weights`: the type of the layers' matrices; several types are dealt out in turn.
    `output`: the type of an own output matrix, or None for one tied to the embedding.
    `rope_factors`: head_dim/2 divisors, written as `rope_freqs.weight`.
    `biases`: give q, k and v a bias each.
    `metadata`: more keys (`str`, `int` as uint32, `float`, `bool`, lists), replacing equal keys; None leaves a
    key out. Other tokens there make another vocabulary.

    Logits have a standard deviation of about 2, and the model does not simply repeat its input.
    """
    random = np.random.default_rng(seed)
    types = [weights] if isinstance(weights, str) else list(weights)
    tokens = (metadata or {}).get("tokenizer.ggml.tokens") or tiny_tokens()

    fields: dict[str, Any] = {
        "general.architecture": "llama",
        "general.name": "tiny",
        "llama.block_count": layers,
        "llama.context_length": context,
        "llama.embedding_length": hidden,
        "llama.feed_forward_length": ffn,
        "llama.attention.head_count": heads,
        "llama.attention.head_count_kv": kv_heads,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
        "llama.rope.dimension_count": head_dim,
        "llama.vocab_size": len(tokens),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * len(CONTROL) + [1] * (len(tokens) - len(CONTROL)),
        "tokenizer.ggml.merges": list(MERGES),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }
    if heads * head_dim != hidden:
        fields |= {"llama.attention.key_length": head_dim, "llama.attention.value_length": head_dim}
    fields |= metadata or {}
    writer = gguf.GGUFWriter(path, fields.pop("general.architecture"))  # which writes that key
    for key, value in fields.items():
        if value is not None:
            _add_field(writer, key, value)

    def normal(shape: tuple[int, ...], deviation: float) -> NDArray[np.float32]:
        return random.normal(0.0, deviation, shape).astype(np.float32)

    matrices = 0

    def matrix(name: str, rows: int, cols: int) -> None:
        nonlocal matrices
        _add_tensor(writer, name, normal((rows, cols), cols**-0.5), types[matrices % len(types)])
        matrices += 1

    vocabulary_deviation = 2.0 * hidden**-0.5
    _add_tensor(writer, "token_embd.weight", normal((len(tokens), hidden), vocabulary_deviation), embedding)
    if rope_factors is not None:
        writer.add_tensor("rope_freqs.weight", np.asarray(rope_factors, np.float32))
    for layer in range(layers):
        block = f"blk.{layer}."
        writer.add_tensor(f"{block}attn_norm.weight", 1 + normal((hidden,), 0.1))
        for letter, rows in (("q", heads * head_dim), ("k", kv_heads * head_dim), ("v", kv_heads * head_dim)):
            matrix(f"{block}attn_{letter}.weight", rows, hidden)
            if biases:
                writer.add_tensor(f"{block}attn_{letter}.bias", normal((rows,), 0.5))
        matrix(f"{block}attn_output.weight", hidden, heads * head_dim)
        writer.add_tensor(f"{block}ffn_norm.weight", 1 + normal((hidden,), 0.1))
        matrix(f"{block}ffn_gate.weight", ffn, hidden)
        matrix(f"{block}ffn_up.weight", ffn, hidden)
        matrix(f"{block}ffn_down.weight", hidden, ffn)
    writer.add_tensor("output_norm.weight", 1 + normal((hidden,), 0.1))
    if output is not None:
        _add_tensor(writer, "output.weight", normal((len(tokens), hidden), vocabulary_deviation), output)

    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_field(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def _add_tensor(writer: gguf.GGUFWriter, name: str, values: NDArray[np.float32], kind: WeightType) -> None:
    """Add float32 [rows, cols] quantised to `kind`."""
    if kind == "F32":
        writer.add_tensor(name, values)
    elif kind == "F16":
        writer.add_tensor(name, values.astype(np.float16))
    elif kind in _RANDOM:
        ggml_type = gguf.GGMLQuantizationType[kind]
        writer.add_tensor(name, _random_blocks(kind, values), raw_dtype=ggml_type)
    else:
        ggml_type = gguf.GGMLQuantizationType[kind]
        writer.add_tensor(name, quantize(values, ggml_type), raw_dtype=ggml_type)


def _random_blocks(kind: str, values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Random blocks [rows, bytes] whose weights have about the deviation of `values`, which also seed them."""
    scale_at, nbytes, minimum_at, ratio = _RANDOM[kind]
    block = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][0]
    rows, cols = values.shape
    random = np.random.default_rng(values.view(np.uint32)[0, 0])
    blocks = random.integers(0, 256, (rows, cols // block, nbytes), np.uint8)

    def write(scale: float) -> NDArray[np.float32]:
        blocks[..., scale_at : scale_at + 2] = np.array([scale], np.float16).view(np.uint8)
        if minimum_at is not None:
            blocks[..., minimum_at : minimum_at + 2] = np.array([scale * ratio], np.float16).view(np.uint8)
        return dequantize(blocks.reshape(rows, -1), gguf.GGMLQuantizationType[kind])

    write(float(values.std() / write(1.0).std()))
    return blocks.reshape(rows, -1)
