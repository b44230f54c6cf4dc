"""The GGUF reader: equal to gguf's on honest files, one clear sentence on all others."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from octavo.errors import ModelError
from octavo.models.gguf import GGUFFile
from tests.models.gguf_bytes import U32, U64, entry, key, string, write_file
from tests.models.tiny import WeightType, write_tiny_llama

STRING, ARRAY = 8, 9


def assert_same_as_gguf(path: Path) -> None:
    ours, theirs = GGUFFile(path), gguf.GGUFReader(path)
    fields = {name: field.contents() for name, field in theirs.fields.items() if name[:5] != "GGUF."}
    assert list(ours.metadata) == list(fields)
    for name, value in fields.items():
        assert ours.metadata[name] == value, name
        assert type(ours.metadata[name]) is type(value), name
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        mine = ours.tensors[tensor.name]
        assert mine.shape == tuple(tensor.shape[::-1].tolist())
        assert mine.type.id == tensor.tensor_type
        assert mine.offset == tensor.data_offset
        assert mine.nbytes == tensor.n_bytes
        np.testing.assert_array_equal(ours.data(tensor.name), tensor.data.reshape(-1).view(np.uint8))


def test_a_tiny_model_reads_as_gguf_reads_it(tmp_path: Path) -> None:
    more: dict[str, Any] = {"a.list": [1.5, -2.5], "a.flags": [True, False], "a.words": ["ä", ""], "a.n": 7}
    types: tuple[WeightType, ...] = ("Q4_0", "Q4_1", "Q8_0", "F16", "BF16", "F32")
    path = write_tiny_llama(tmp_path / "m.gguf", weights=types, output="F16", metadata=more)
    assert_same_as_gguf(path)


@pytest.mark.slow
def test_the_default_model_reads_as_gguf_reads_it(model_path: Path) -> None:
    assert_same_as_gguf(model_path)


def test_every_value_type(tmp_path: Path) -> None:
    numbers = [("<B", 0, 255), ("<b", 1, -128), ("<H", 2, 65535), ("<h", 3, -1), ("<I", 4, 2**32 - 1)]
    numbers += [("<i", 5, -(2**31)), ("<Q", 10, 2**64 - 1), ("<q", 11, -(2**63))]
    keys = [key(f"k{kind}", kind, struct.pack(form, value)) for form, kind, value in numbers]
    keys += [key("half", 6, struct.pack("<f", 0.5)), key("third", 12, struct.pack("<d", 1 / 3))]
    keys += [key("yes", 7, b"\1"), key("text", STRING, string("naïve 🙂"))]
    file = GGUFFile(write_file(tmp_path / "m.gguf", keys))
    assert file.metadata == {f"k{kind}": value for _, kind, value in numbers} | {
        "half": 0.5,
        "third": 1 / 3,
        "yes": True,
        "text": "naïve 🙂",
    }


@pytest.mark.parametrize("version", [2, 3])
def test_arrays_nest(tmp_path: Path, version: int) -> None:
    inner = U32.pack(4) + U64.pack(2) + U32.pack(1) + U32.pack(2)
    empty = U32.pack(STRING) + U64.pack(0)
    path = write_file(
        tmp_path / "m.gguf", [key("a", ARRAY, U32.pack(ARRAY) + U64.pack(2) + inner + empty)], version=version
    )
    assert GGUFFile(path).metadata == {"a": [[1, 2], []]}


def test_alignment_moves_the_data(tmp_path: Path) -> None:
    keys = [key("general.alignment", 4, U32.pack(128))]
    path = write_file(tmp_path / "m.gguf", keys, [entry("t", [4], 24, 0)], b"abcd", alignment=128)
    file = GGUFFile(path)
    assert file.tensors["t"].offset == 128
    assert file.data("t").tobytes() == b"abcd"


def test_data_is_a_read_only_view(tiny_model_path: Path) -> None:
    data = GGUFFile(tiny_model_path).data("output_norm.weight")
    assert not data.flags.writeable
    assert not data.flags.owndata


def nested(depth: int) -> bytes:
    return (U32.pack(ARRAY) + U64.pack(1)) * depth + U32.pack(0) + U64.pack(0)


BAD_KEYS = {
    "value type 99": [key("a", 99, b"")],
    "elements' type 99": [key("a", ARRAY, U32.pack(99) + U64.pack(0))],
    "key 'a': the key is there twice": [key("a", 0, b"\0"), key("a", 0, b"\0")],
    "bool is 2": [key("a", 7, b"\2")],
    "one of its bools is 7": [key("a", ARRAY, U32.pack(7) + U64.pack(2) + b"\1\7")],
    "nested more than": [key("a", ARRAY, nested(9))],
    "18446744073709551615 strings need": [key("a", ARRAY, U32.pack(STRING) + U64.pack(2**64 - 1))],
    "18446744073709551615 arrays need": [key("a", ARRAY, U32.pack(ARRAY) + U64.pack(2**64 - 1))],
    "9223372036854775808 elements need": [key("a", ARRAY, U32.pack(10) + U64.pack(2**63))],
    "has 18446744073709551615 bytes": [key("a", STRING, U64.pack(2**64 - 1))],
    "'a': string 0 is not UTF-8": [key("a", STRING, string(b"\xff"))],
    "string 1 is not UTF-8": [key("a", ARRAY, U32.pack(STRING) + U64.pack(2) + string("") + string(b"\xc3"))],
    "key 0 of 1: string 0 is not UTF-8": [key(b"\xff", 0, b"\0")],
    "has 1001 characters": [key("a" * 1001, 0, b"\0")],
    "general.alignment is 0": [key("general.alignment", 4, U32.pack(0))],
    "general.alignment is 24": [key("general.alignment", 4, U32.pack(24))],
    "general.alignment is '32'": [key("general.alignment", STRING, string("32"))],
    "general.alignment is True": [key("general.alignment", 7, b"\1")],
}


@pytest.mark.parametrize("reason", BAD_KEYS)
def test_bad_keys(tmp_path: Path, reason: str) -> None:
    path = write_file(tmp_path / "m.gguf", BAD_KEYS[reason])
    with pytest.raises(ModelError) as raised:
        GGUFFile(path)
    assert reason in str(raised.value)
    assert str(path) in str(raised.value)


BAD_TENSORS = {
    "ggml type 4 is not known": [entry("t", [32], 4, 0)],
    "ggml type 4294967295": [entry("t", [32], 2**32 - 1, 0)],
    "has 0 dimensions": [entry("t", [], 0, 0)],
    "has 5 dimensions": [entry("t", [1] * 5, 0, 0)],
    "dimension of 0": [entry("t", [4, 0], 0, 0)],
    "rows have 33 values": [entry("t", [33], 2, 0)],
    "offset 4 is no multiple of the alignment 32": [entry("t", [4], 24, 4)],
    "tensor 't': the name is there twice": [entry("t", [4], 24, 0), entry("t", [4], 24, 32)],
    "it may be truncated": [entry("t", [100], 24, 0)],
    "ends at byte 850705917302346158658436518579420": [entry("t", [2**63, 2**63], 24, 0)],
    "inside tensor 'a'": [entry("a", [40], 24, 0), entry("b", [4], 24, 32)],
    "tensor 'o'": [entry("o", [4], 24, 2**64 - 32)],
}


@pytest.mark.parametrize("reason", BAD_TENSORS)
def test_bad_tensors(tmp_path: Path, reason: str) -> None:
    path = write_file(tmp_path / "m.gguf", [], BAD_TENSORS[reason], bytes(64))
    with pytest.raises(ModelError) as raised:
        GGUFFile(path)
    assert reason in str(raised.value)


@pytest.mark.parametrize(
    ("reason", "arguments"),
    [
        ("begins with b'GGML'", {"magic": b"GGML"}),
        ("version is 1 (Octavo reads 2 and 3)", {"version": 1}),
        ("a big-endian file", {"version": 3 << 24}),
        ("tensors need at least", {"counts": (2**60, 0)}),
        ("metadata keys need at least", {"counts": (0, 2**60)}),
        ("inside metadata key 1 of 2", {"counts": (0, 2)}),
    ],
)
def test_bad_headers(tmp_path: Path, reason: str, arguments: dict[str, Any]) -> None:
    keys = [key("a", STRING, string("a" * 50))]
    with pytest.raises(ModelError) as raised:
        GGUFFile(write_file(tmp_path / "m.gguf", keys, **arguments))
    assert reason in str(raised.value)


def test_no_file_a_folder_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    for name, reason in [("none", "No such file"), (".", "Is a directory"), ("empty", "has 0 bytes")]:
        with pytest.raises(ModelError, match=reason):
            GGUFFile(tmp_path / name)


def test_a_file_cut_anywhere_is_refused(tmp_path: Path, tiny_model_path: Path) -> None:
    whole = tiny_model_path.read_bytes()
    path = tmp_path / "cut.gguf"
    for size in [*range(0, 4000, 7), *range(4000, len(whole), 9973), len(whole) - 1]:
        path.write_bytes(whole[:size])
        with pytest.raises(ModelError, match=r"cut\.gguf"):
            GGUFFile(path)
