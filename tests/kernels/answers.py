"""A digest of every kernel's answers to fixed questions, to compare processors of different kinds. Knows no test.

The questions are made of integers by exact operations: NumPy's normal deviates end in the C library's logarithm, whose
last bit is not the same everywhere.

python -m tests.kernels.answers LIBRARY INSTRUCTION_SETS
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def bell(*shape: int, seed: int, size: float = 1.0) -> Floats:
    """Sums of four uniform integers, scaled by a power of two."""
    whole = np.random.default_rng(seed).integers(-(1 << 20), 1 << 20, (4, *shape)).sum(axis=0)
    values: Floats = whole.astype(np.float32) * np.float32(2.0**-20 * size)
    return values


def raw_bytes(kind: int, rows: int, cols: int) -> NDArray[np.uint8]:
    """A tensor with scales from 2⁻¹⁰ to 1."""
    from tests.kernels.packed import LAYOUTS

    rng = np.random.default_rng(kind)
    layout = LAYOUTS.get(kind)
    if layout is None:
        bits = bell(rows, cols, seed=kind).view(np.uint32)
        return (bits if kind == 0 else (bits >> 16).astype(np.uint16)).view(np.uint8).reshape(-1)
    blocks = rng.integers(0, 256, (rows, cols // layout.block, layout.block_bytes), dtype=np.uint8)
    for at in layout.halves:
        blocks[..., at + 1] = (
            blocks[..., at + 1] & 0x83 | rng.integers(5, 15, blocks.shape[:2], dtype=np.uint8) << 2
        )
    return blocks.reshape(-1)


def answers(kernels: Any, isa: str) -> Iterator[tuple[str, Any]]:
    """Each question's name and answer."""
    from tests.kernels.packed import CONTAINERS, columns

    ops = kernels.ops
    for kind in CONTAINERS:
        cols = columns(kind, 160)
        container, zero_point, has_min, packed = kernels.pack_matrix(
            raw_bytes(kind, 45, cols), kind, 45, cols
        )
        w, x = ops.Matrix(packed, container, 45, cols, zero_point, has_min), rows_of(cols)
        yield f"pack {kind}", packed
        yield f"linear {kind}", ops.linear(w, x, bias=bell(45, seed=1), scale=0.3, isa=isa)
        yield f"gated {kind}", ops.gated(w, w, x[:9] * np.float32(2**-8), isa=isa)
        yield f"dequantize_row {kind}", ops.dequantize_row(w, 44, 1.7, isa=isa)
    x = rows_of(160)
    yield "quantize", ops.quantize(x, isa=isa)
    yield "rms_norm", ops.rms_norm(x, bell(160, seed=2), 1e-5, 1.0, isa=isa)
    for interleaved in (False, True):
        turned = ops.rope(
            bell(3, 5, 64, seed=1), bell(3, 16, seed=2), bell(3, 16, seed=3), interleaved, isa=isa
        )
        yield f"rope {interleaved}", turned
    for kv in ("fp32", "bf16", "int8"):
        for dim in (64, 36):
            yield f"attention {kv} {dim}", attention(ops, kv, dim, isa)
    logits, history = bell(3000, seed=4, size=4), np.arange(40, dtype=np.int32) * 7 % 300
    for name, rule in RULES.items():
        chosen = [ops.choose(logits, history, prompt_tokens=20, seed=s, isa=isa, **rule) for s in range(50)]
        yield f"choose {name}", chosen
    yield "score", ops.score(logits, 5, 20, isa=isa)
    yield "random_words", ops.random_words(12345678901, 7, 1000, isa=isa)


def rows_of(cols: int) -> Floats:
    """35 rows from subnormal to large, the third with outliers."""
    x = np.concatenate([bell(rows, cols, seed=rows, size=size) for rows, size in SIZES])
    x[2, ::37] *= 4096
    return x


SIZES = ((4, 1.0), (5, 2.0**12), (3, 2.0**-60), (2, 2.0**-130), (21, 1.0))
RULES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "plain": {"temperature": 0.8},
    "kept": {"temperature": 1.1, "top_k": 50, "top_p": 0.9, "min_p": 0.01},
    "penalised": {"temperature": 0.7, "repetition": 1.2, "frequency": 0.1, "presence": 0.2, "top_p": 0.95},
}


def attention(ops: Any, kv: str, dim: int, isa: str) -> Any:
    tokens, heads, kv_heads = 530, 6, 2
    value_bytes = {"fp32": 4 * dim, "bf16": 2 * dim, "int8": dim + 4}[kv]
    blocks = -(-tokens // 16)
    memory = np.zeros((blocks, 2, 2 * 16 * kv_heads * value_bytes), np.uint8)
    table = np.arange(blocks, dtype=np.int32)[::-1].copy()
    keys, values = bell(tokens, kv_heads, dim, seed=1), bell(tokens, kv_heads, dim, seed=2)
    ops.kv_write(memory, 1, table, 0, keys, values, kv=kv, isa=isa)
    q = bell(30, heads, dim, seed=3, size=2)
    arguments = {"kv_heads": kv_heads, "scale": 0.125, "kv": kv, "isa": isa}
    return [memory, *(ops.attention(memory, 1, table, 500, q, split=split, **arguments) for split in (0, 1))]


def digest(answer: Any) -> str:
    parts = answer if isinstance(answer, list | tuple) else [answer]
    done = hashlib.sha256()
    for part in map(np.asarray, parts):
        assert part.dtype.kind != "f" or np.isfinite(part).all()  # the bits of NaN are the processor's own
        done.update(np.ascontiguousarray(part).tobytes())
    return done.hexdigest()[:16]


def digests(kernels: Any) -> dict[str, dict[str, str]]:
    """By instruction set and question's name."""
    return {isa: {name: digest(x) for name, x in answers(kernels, isa)} for isa in kernels.ops.isas()}


if __name__ == "__main__":
    from tests.kernels.other_build import use

    use(*sys.argv[1:3])
    print(json.dumps(digests(sys.modules["octavo._kernels"])))
