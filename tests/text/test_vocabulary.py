"""Token bytes: both ways of writing them undone, and the file that holds them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.errors import ModelError
from octavo.text.vocabulary import Vocabulary, byte_alphabet
from tests.models.tiny import CONTROL, byte_letters, tiny_tokens


def byte_level(tokens: list[str], types: list[int]) -> Vocabulary:
    return Vocabulary.from_gguf(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": types,
        }
    )


def test_byte_alphabet_is_gpt2s() -> None:
    assert byte_alphabet() == {letter: byte for byte, letter in enumerate(byte_letters())}


def test_byte_level_tokens() -> None:
    tokens = tiny_tokens()
    vocabulary = byte_level(tokens, [3] * len(CONTROL) + [1] * (len(tokens) - len(CONTROL)))
    assert vocabulary.size == len(tokens)
    assert vocabulary.special == {0, 1, 2}
    assert vocabulary.pieces[:3] == (b"<|endoftext|>", b"<|im_start|>", b"<|im_end|>")
    assert vocabulary.pieces[3:259] == tuple(bytes([byte]) for byte in range(256))
    assert vocabulary.pieces[tokens.index("Ġthe")] == b" the"
    assert vocabulary.pieces[tokens.index("Ã©")] == "é".encode()


def test_user_defined_tokens_are_ordinary_text_and_stand_for_themselves() -> None:
    vocabulary = byte_level(["<think>", "é", "Ġa"], [4, 4, 1])
    assert vocabulary.pieces == (b"<think>", "é".encode(), b" a")
    assert vocabulary.special == frozenset()


def test_letters_outside_the_byte_alphabet_stand_for_themselves() -> None:
    assert byte_level(["Ġ中"], [1]).pieces == (" 中".encode(),)


def test_sentencepiece_tokens() -> None:
    vocabulary = Vocabulary.from_gguf(
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": ["<unk>", "</s>", "<0x0A>", "▁▁the", "<0x0A>", "  "],
            "tokenizer.ggml.token_type": [2, 3, 6, 1, 1, 4],
        }
    )
    assert vocabulary.pieces == (b"<unk>", b"</s>", b"\n", b"  the", b"<0x0A>", b"  ")
    assert vocabulary.special == {0, 1}


def test_bytes_of() -> None:
    vocabulary = Vocabulary([b"<s>", b"a"], [0])
    assert vocabulary.bytes_of(0, skip_special=True) == b""
    assert vocabulary.bytes_of(0, skip_special=False) == b"<s>"
    assert vocabulary.bytes_of(1, skip_special=True) == b"a"
    assert vocabulary.bytes_of(2, skip_special=False) == vocabulary.bytes_of(-1, skip_special=False) == b""
    assert vocabulary.join([0, 1, 1]) == b"aa"


@given(st.lists(st.binary(max_size=9), max_size=40), st.data())
def test_saved_and_loaded_is_equal(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes], data: st.DataObject
) -> None:
    special = data.draw(st.sets(st.integers(0, len(pieces) - 1))) if pieces else set()
    path = tmp_path_factory.mktemp("vocabulary") / "vocabulary.bin"
    Vocabulary(pieces, special).save(path)
    loaded = Vocabulary.load(path)
    assert loaded.pieces == tuple(pieces)
    assert loaded.special == special


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "vocabulary.bin"
    Vocabulary([b"one", b"two"], [1]).save(path)
    whole = path.read_bytes()
    for damage in (b"", whole[:20], whole[:-1], whole + b"x", b"X" + whole[1:]):
        path.write_bytes(damage)
        with pytest.raises(ModelError, match="damaged"):
            Vocabulary.load(path)
    offsets_at = len(whole) - 6 - 12
    path.write_bytes(whole[: offsets_at + 4] + b"\xff\0\0\0" + whole[offsets_at + 8 :])
    with pytest.raises(ModelError, match="damaged"):
        Vocabulary.load(path)
    with pytest.raises(ModelError, match="cannot be read"):
        Vocabulary.load(tmp_path / "absent.bin")


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({}, "no tokens"),
        ({"tokenizer.ggml.tokens": []}, "no tokens"),
        (
            {"tokenizer.ggml.tokens": ["a", "b"], "tokenizer.ggml.token_type": [1]},
            "2 tokens but 1 token types",
        ),
    ],
)
def test_damaged_metadata_is_refused(metadata: dict[str, object], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        Vocabulary.from_gguf(metadata)


def test_the_engine_loads_it_without_the_tokenizer_library() -> None:
    code = "import sys, octavo.text.vocabulary; print('tokenizers' in sys.modules, 'jinja2' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "False False\n"
