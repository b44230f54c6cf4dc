"""The forward pass again, naively: float64, whole matrices, no cache, no program. What backends are compared with."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from octavo.models.gguf import GGUFFile
from octavo.models.spec import ModelSpec

__all__ = ["naive_hidden", "naive_logprobs"]

Doubles = NDArray[np.float64]


def _weight(file: GGUFFile, name: str) -> Doubles:
    info = file.tensors[name]
    raw = file.data(name).reshape(*info.shape[:-1], -1)
    return np.asarray(gguf.dequantize(raw, gguf.GGMLQuantizationType(info.type.id)), np.float64)


def naive_hidden(spec: ModelSpec, path: Path, ids: tuple[int, ...], windows: dict[int, int]) -> Doubles:
    """What the head reads of each token, [len(ids), hidden]. `windows`: of the layers that have one."""
    file = GGUFFile(path)
    weight = partial(_weight, file)

    def bias(name: str) -> Doubles | float:
        return weight(name) if name in file.tensors else 0.0

    def norm(x: Doubles, name: str) -> Doubles:
        return np.asarray(x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * weight(name))

    angles = np.arange(len(ids))[:, None] * spec.rope.theta ** (
        -np.arange(0, spec.rope.dim, 2) / spec.rope.dim
    )
    if spec.rope.factors is not None:
        angles = angles / np.array(spec.rope.factors)
    turn = np.exp(1j * angles)[:, None]

    def rotated(x: Doubles) -> Doubles:
        """Neighbours are a complex number; multiply it by e^(i·angle)."""
        pairs = (x[..., 0::2] + 1j * x[..., 1::2]) * turn
        return np.stack([pairs.real, pairs.imag], -1).reshape(x.shape)

    x = weight("token_embd.weight")[list(ids)]
    distance = np.arange(len(ids))[:, None] - np.arange(len(ids))
    for layer in range(spec.layers):
        block = f"blk.{layer}."
        h = norm(x, block + "attn_norm.weight")
        q, k, v = (
            (h @ weight(f"{block}attn_{part}.weight").T + bias(f"{block}attn_{part}.bias")).reshape(
                len(ids), -1, spec.head_dim
            )
            for part in "qkv"
        )
        q, k = rotated(q), rotated(k)
        k, v = (np.repeat(kv, spec.heads // spec.kv_heads, axis=1) for kv in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / spec.head_dim**0.5
        hidden = (distance < 0) | (distance >= windows.get(layer, len(ids)))
        p = np.exp(np.where(hidden, -np.inf, scores))
        a = np.einsum("hqk,khd->qhd", p / p.sum(-1, keepdims=True), v).reshape(len(ids), -1)
        x = x + a @ weight(block + "attn_output.weight").T
        h = norm(x, block + "ffn_norm.weight")
        gate, up = h @ weight(block + "ffn_gate.weight").T, h @ weight(block + "ffn_up.weight").T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ weight(block + "ffn_down.weight").T
    return norm(x, "output_norm.weight")


def naive_logprobs(spec: ModelSpec, path: Path, ids: tuple[int, ...], windows: dict[int, int]) -> Doubles:
    """[len(ids), vocab]"""
    file = GGUFFile(path)
    head = "output.weight" if "output.weight" in file.tensors else "token_embd.weight"
    logits = naive_hidden(spec, path, ids, windows) @ _weight(file, head).T
    logprobs: Doubles = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return logprobs
