"""A model file is a stranger's bytes: whatever they are, the loader loads or raises ModelError."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import msgspec

from octavo.errors import ModelError
from octavo.models.architectures import compile_model
from octavo.models.gguf import GGUFFile
from octavo.models.spec import ModelSpec
from octavo.text.tokenizer import Tokenizer
from tests.models.tiny import write_tiny_llama

CASES = 4000
EDGES = (
    0,
    1,
    2,
    7,
    8,
    9,
    31,
    32,
    255,
    2**15,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**32,
    2**53,
    2**63 - 1,
    2**63,
    2**64 - 1,
)


def mutated(random: random.Random, original: bytes, header: int) -> bytes:
    """One to three changes of the first `header` bytes, of the kinds that damage, age or malice make."""
    data = bytearray(original)
    for _ in range(random.randint(1, 3)):
        at = random.randrange(min(header, len(data)))
        match random.randrange(7):
            case 0:
                data[at] = random.randrange(256)
            case 1:
                data[at] ^= 1 << random.randrange(8)
            case 2:
                data[at : at + 8] = struct.pack("<Q", random.choice(EDGES))
            case 3:
                data[at : at + 4] = struct.pack("<I", random.choice(EDGES) % 2**32)
            case 4:
                del data[at : at + random.randint(1, 40)]
            case 5:
                other = random.randrange(header)
                data[at:at] = original[other : other + random.randint(1, 40)]
            case 6:
                del data[at + 1 :]
    return bytes(data)


def load(path: Path) -> ModelSpec:
    """Everything that reads the file when a model is opened. Raises ModelError."""
    file = GGUFFile(path)
    spec = compile_model(file, "")
    Tokenizer.from_gguf(file.metadata)
    for tensor in file.tensors.values():  # all of them can be read
        assert file.data(tensor.name).nbytes == tensor.nbytes
    return spec


def test_only_model_errors_come_out(tmp_path: Path) -> None:
    # Small, so that most changes hit a length, a type, a size or a name, and not the inside of a token.
    path = write_tiny_llama(
        tmp_path / "m.gguf",
        layers=1,
        hidden=32,
        heads=2,
        kv_heads=1,
        head_dim=16,
        ffn=32,
        rope_factors=[1.0] * 8,
        metadata={
            "tokenizer.ggml.tokens": ["a", "b", "ab", "<|im_end|>"],
            "tokenizer.ggml.token_type": [1, 1, 1, 3],
            "tokenizer.ggml.merges": ["a b"],
            "tokenizer.chat_template": "{{ messages }}",
            "an.array": [0.5, 1.5],
        },
    )
    original = path.read_bytes()
    header = min(tensor.offset for tensor in GGUFFile(path).tensors.values())
    generator = random.Random(0)
    messages = []
    for case in range(CASES):
        path.write_bytes(mutated(generator, original, header))
        try:
            spec = load(path)
            assert msgspec.json.decode(msgspec.json.encode(spec), type=ModelSpec) == spec
        except ModelError as error:
            messages.append(str(error))
        except Exception as error:
            raise AssertionError(f"case {case} let {error!r} out") from error
    assert not [message for message in messages if "\n" in message or not message.endswith(".")]
    # Other names, and numbers that stay in range, are no damage. All or nothing refused would test nothing.
    assert CASES // 2 < len(messages) < CASES * 49 // 50
