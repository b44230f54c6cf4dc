"""The layer program: the operations of a forward pass, as data. Knows no family's name and no tensors' bytes.

`native`, `reference` and (later) `torch` interpret the same program. Values flow through named buffers;
each is float32 [rows, width]:

    x       the residual stream            [rows, hidden]
    h       the normalised input           [rows, hidden]
    q k v   projections                    [rows, heads·head_dim] / [rows, kv_heads·head_dim]
    a       attention's output             [rows, heads·head_dim]
    g       the gated activation           [rows, ffn]

A backend may fuse neighbours (norm + quantise, linear + add) as long as the result is the program's.
Weights are named as in the source file; a backend looks them up in the store's tensor table. A linear weight
is [outputs, inputs] and computes y = W·x (+ bias).
"""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["Attention", "Embed", "Gated", "Head", "Linear", "Norm", "Op", "Program", "RopeOp"]

Buffer = Literal["x", "h", "q", "k", "v", "a", "g"]


class Embed(msgspec.Struct, frozen=True, tag="embed"):
    """x = scale · table[token]."""

    table: str
    scale: float = 1.0


class Norm(msgspec.Struct, frozen=True, tag="norm"):
    """target = source / sqrt(mean(source²) + eps) · (weight + offset)  (RMSNorm, arXiv:1910.07467)."""

    source: Buffer
    target: Buffer
    weight: str
    eps: float
    offset: float = 0.0


class Linear(msgspec.Struct, frozen=True, tag="linear"):
    """Matrices on one input. targets[i] = W_i · source + b_i, or, with `add`, targets[i] += scale · (…)."""

    source: Buffer
    targets: tuple[Buffer, ...]
    weights: tuple[str, ...]
    biases: tuple[str | None, ...] = ()
    """() or one entry per weight."""
    add: bool = False
    scale: float = 1.0


class Gated(msgspec.Struct, frozen=True, tag="gated"):
    """target = activation(W_gate · source) · (W_up · source)  (GLU variants, arXiv:2002.05202)."""

    source: Buffer
    target: Buffer
    gate: str
    up: str
    activation: Literal["silu"] = "silu"


class RopeOp(msgspec.Struct, frozen=True, tag="rope"):
    """Rotate q and k in place by the sequence position, with the spec's Rope."""


class Attention(msgspec.Struct, frozen=True, tag="attention"):
    """Write k and v of these tokens to the cache, then a = softmax(scale · q·Kᵀ)·V over positions 0…own."""

    layer: int
    group: int
    """Index into the spec's kv_groups."""
    scale: float


class Head(msgspec.Struct, frozen=True, tag="head"):
    """logits = scale · W · h, only for rows that choose or score a token."""

    source: Buffer
    weight: str
    scale: float = 1.0


Op = Embed | Norm | Linear | Gated | RopeOp | Attention | Head


class Program(msgspec.Struct, frozen=True):
    """The whole pass: `start` once, the operations of each layer in order, then `end` (ends with Head)."""

    start: tuple[Op, ...]
    layers: tuple[tuple[Op, ...], ...]
    end: tuple[Op, ...]

    def weights(self) -> tuple[str, ...]:
        """Every tensor the program names, once, in the order of its first use."""
        names: dict[str, None] = {}
        for op in (*self.start, *(op for layer in self.layers for op in layer), *self.end):
            match op:
                case Embed(table=weight) | Norm(weight=weight) | Head(weight=weight):
                    names[weight] = None
                case Linear(weights=weights, biases=biases):
                    names |= dict.fromkeys(weights) | dict.fromkeys(bias for bias in biases if bias)
                case Gated(gate=gate, up=up):
                    names |= {gate: None, up: None}
                case RopeOp() | Attention():
                    pass
        return tuple(names)
