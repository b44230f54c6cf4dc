"""Small SentencePiece models for tests, trained in a second, and their files as GGUF metadata.

Reads the model's protobuf by hand: the fields are few, and protobuf is no dependency.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sentencepiece

__all__ = ["corpus", "metadata_of", "train"]

_REPOSITORY = Path(__file__).resolve().parents[2]


def corpus() -> list[str]:
    """Prose and code of this repository, and sentences with other scripts."""
    names = ("CONTRIBUTING.md", "Makefile", "src/octavo/errors.py", "src/octavo/backends/base.py", "LICENSE")
    lines = [line for name in names for line in (_REPOSITORY / name).read_text("utf-8").splitlines()]
    other = [
        "Les trois mousquetaires étaient quatre, n'est-ce pas ? Où ça ?",
        "Größe, Straße, Übermut und Ärger",
        "中文文本没有空格 但是 有时 有",
        "ภาษาไทยไม่มีช่องว่าง",
        "اللغة العربية تكتب من اليمين",
        "1234567890 3.14159 2,718 0x1F",
    ]
    return [line for line in lines + other * 4 if line.strip()]


def train(kind: str, **options: Any) -> tuple[sentencepiece.SentencePieceProcessor, bytes]:
    """A `bpe` or `unigram` model and its file. The same options give the same model."""
    model = io.BytesIO()
    settings = {"vocab_size": 900, "character_coverage": 0.999, "byte_fallback": True, "num_threads": 1}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus()),
        model_writer=model,
        model_type=kind,
        minloglevel=2,
        **(settings | options),
    )
    data = model.getvalue()
    return sentencepiece.SentencePieceProcessor(model_proto=data), data


def metadata_of(model: bytes, family: str) -> dict[str, Any]:
    """What a converter writes into a GGUF file."""
    texts, scores, types = [], [], []
    rules: dict[int, Any] = {}
    for field, value in _fields(model):
        if field == 1:
            piece = dict(_fields(value))
            texts.append(piece[1].decode())
            scores.append(struct.unpack("<f", piece[2])[0])
            types.append(piece.get(3, 1))
        elif field == 3:
            rules = dict(_fields(value))
    return {
        "tokenizer.ggml.model": family,
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.add_space_prefix": bool(rules.get(3, 1)),
        "tokenizer.ggml.remove_extra_whitespaces": bool(rules.get(4, 1)),
        "tokenizer.ggml.precompiled_charsmap": list(rules.get(2, b"")),
    }


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """(field number, value) of a protobuf message: int, four raw bytes, or bytes."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        if key & 7 == 0:
            value: int | bytes
            value, at = _varint(message, at)
        else:
            size = 4 if key & 7 == 5 else 8
            if key & 7 == 2:
                size, at = _varint(message, at)
            value, at = message[at : at + size], at + size
        yield key >> 3, value


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if byte < 0x80:
            return value, at
