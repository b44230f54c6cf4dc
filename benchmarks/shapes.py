"""Writes a GGUF file with the shape of a larger model and random weights, to measure speed where no such model is.

    python -m benchmarks.shapes 1b|3b q4_0|q4_1|q4_k|q8_0 OUT.gguf [--vocabulary 128256]

1b and 3b are Llama-3.2's shapes: hidden 2048 or 3072, 16 or 28 layers, 32 or 24 heads on 8 KV heads, head 64 or 128,
FFN 8192, an output matrix tied to the embedding in Q6_K as llama.cpp writes it (Q8_0 with --embedding q8_0). Random
bytes with one sane scale are written as quantised blocks, so a file takes seconds. The tokenizer is SmolLM2's, its
49,152 tokens followed by tokens that no text gives. Logits are noise: only times and memory mean something.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import dequantize
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from octavo.models.gguf import GGUFFile
from octavo.models.store import open_model

__all__ = ["FORMATS", "SHAPES", "Shape", "random_blocks", "write_shape"]


@dataclass(frozen=True)
class Shape:
    """Sizes of a llama model."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int

    def matrices(self) -> Iterator[tuple[str, int, int]]:
        """A layer's matrices: name, rows, columns."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        yield "attn_q", queries, self.hidden
        yield "attn_k", keys, self.hidden
        yield "attn_v", keys, self.hidden
        yield "attn_output", self.hidden, queries
        yield "ffn_gate", self.ffn, self.hidden
        yield "ffn_up", self.ffn, self.hidden
        yield "ffn_down", self.hidden, self.ffn


SHAPES = {
    "1b": Shape(2048, 16, 32, 8, 64, 8192),
    "3b": Shape(3072, 28, 24, 8, 128, 8192),
}
VOCABULARY = 128_256
CONTEXT = 8192
ROPE_BASE = 500_000.0

_BLOCKS: dict[str, tuple[int, int | None, float]] = {
    "q4_0": (0, None, 0),
    "q4_1": (0, 2, -7.5),
    "q8_0": (0, None, 0),
    "q4_k": (0, 2, 7.5),
    "q6_k": (208, None, 0),
}
"""Where a block's fp16 scale is, where that of the minima, and how many times the scale it must be for a mean of 0."""
FORMATS = tuple(_BLOCKS)
_DISTINCT = 1 << 20
"""Random weights that are made; a matrix repeats them. Many enough that no cache holds what it should not."""


def write_shape(
    path: Path,
    shape: Shape,
    form: str,
    *,
    vocabulary: int = VOCABULARY,
    embedding: str = "q6_k",
    seed: int = 0,
) -> Path:
    """Write the model and return `path`. The same arguments give the same bytes."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(f"random-{path.stem}")
    _sizes(writer, shape, vocabulary)
    _tokenizer(writer, vocabulary)
    random = np.random.default_rng(seed)
    names = ["token_embd.weight", "output_norm.weight"]
    _announce(writer, names[0], vocabulary, shape.hidden, embedding)
    writer.add_tensor_info(names[1], [shape.hidden], np.dtype(np.float32), 4 * shape.hidden)
    for layer in range(shape.layers):
        for norm in ("attn_norm", "ffn_norm"):
            name = f"blk.{layer}.{norm}.weight"
            names.append(name)
            writer.add_tensor_info(name, [shape.hidden], np.dtype(np.float32), 4 * shape.hidden)
        for matrix, rows, cols in shape.matrices():
            names.append(f"blk.{layer}.{matrix}.weight")
            _announce(writer, names[-1], rows, cols, form)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()

    sizes = {matrix: (rows, cols) for matrix, rows, cols in shape.matrices()}
    for name in track(names, f"{path.name}", console=Console(stderr=True), transient=True):
        kind = name.split(".")[-2]
        if kind.endswith("norm"):
            data: NDArray[Any] = np.ones(shape.hidden, np.float32)
        elif kind == "token_embd":
            data = random_blocks(random, embedding, vocabulary, shape.hidden, 2.0 * shape.hidden**-0.5)
        else:
            rows, cols = sizes[kind]
            data = random_blocks(random, form, rows, cols, cols**-0.5)
        writer.write_tensor_data(data)
    writer.close()
    return path


def _sizes(writer: gguf.GGUFWriter, shape: Shape, vocabulary: int) -> None:
    writer.add_block_count(shape.layers)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.ffn)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(vocabulary)


def _tokenizer(writer: gguf.GGUFWriter, vocabulary: int) -> None:
    """SmolLM2's, with tokens of type 5, unused, behind its own."""
    metadata = GGUFFile(open_model("smollm2", packed=False).source).metadata
    tokens, types = list(metadata["tokenizer.ggml.tokens"]), list(metadata["tokenizer.ggml.token_type"])
    if vocabulary < len(tokens):
        raise ValueError(f"the vocabulary has {len(tokens)} tokens at least, not {vocabulary}")
    unused = vocabulary - len(tokens)
    writer.add_tokenizer_model(metadata["tokenizer.ggml.model"])
    writer.add_tokenizer_pre(metadata["tokenizer.ggml.pre"])
    writer.add_token_list([*tokens, *(f"[unused{number}]" for number in range(unused))])
    writer.add_token_types([*types, *[5] * unused])
    writer.add_token_merges(metadata["tokenizer.ggml.merges"])
    writer.add_bos_token_id(metadata["tokenizer.ggml.bos_token_id"])
    writer.add_eos_token_id(metadata["tokenizer.ggml.eos_token_id"])
    writer.add_add_bos_token(False)


def _kind(form: str) -> gguf.GGMLQuantizationType:
    return gguf.GGMLQuantizationType[form.upper()]


def _announce(writer: gguf.GGUFWriter, name: str, rows: int, cols: int, form: str) -> None:
    block, nbytes = gguf.GGML_QUANT_SIZES[_kind(form)]
    size = cols // block * nbytes
    writer.add_tensor_info(name, [rows, size], np.dtype(np.uint8), rows * size, raw_dtype=_kind(form))


def random_blocks(
    random: np.random.Generator, form: str, rows: int, cols: int, deviation: float
) -> NDArray[np.uint8]:
    """Random blocks [rows, bytes] whose weights have this standard deviation and a mean near 0."""
    scale_at, minimum_at, ratio = _BLOCKS[form]
    block, nbytes = gguf.GGML_QUANT_SIZES[_kind(form)]
    made = random.integers(0, 256, (_DISTINCT // block, nbytes), np.uint8)

    def write(scale: float) -> NDArray[np.float32]:
        made[:, scale_at : scale_at + 2] = np.array([scale], np.float16).view(np.uint8)
        if minimum_at is not None:
            made[:, minimum_at : minimum_at + 2] = np.array([scale * ratio], np.float16).view(np.uint8)
        return dequantize(made.reshape(1, -1), _kind(form))

    unit = 2.0**-10  # an fp16 scale at which no format overflows or vanishes
    write(unit * deviation / float(write(unit).std()))
    count = rows * cols // block
    return np.resize(made, (count, nbytes)).reshape(rows, -1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shape", choices=tuple(SHAPES))
    parser.add_argument("format", choices=FORMATS, help="of the layers' matrices")
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--embedding", choices=FORMATS, default="q6_k", help="format of the embedding and output"
    )
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY, help="tokens, 49,152 at least")
    options = parser.parse_args()
    path = write_shape(
        options.out,
        SHAPES[options.shape],
        options.format,
        vocabulary=options.vocabulary,
        embedding=options.embedding,
    )
    print(f"{path}: {path.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
