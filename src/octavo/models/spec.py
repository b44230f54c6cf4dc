"""What a model is: sizes, token rules, KV groups, the program. Knows no file format and no arithmetic."""

from __future__ import annotations

import msgspec

from octavo.models.program import Program

__all__ = ["KVGroup", "ModelSpec", "Rope"]


class KVGroup(msgspec.Struct, frozen=True):
    """Layers whose K and V are stored alike and share one block table per sequence."""

    layers: tuple[int, ...]
    """Layer numbers, ascending; a layer's place in this tuple is its place inside a block."""
    kv_heads: int
    head_dim: int
    window: int = 0
    """Sliding window in tokens; 0 means the whole context."""


class Rope(msgspec.Struct, frozen=True):
    """Rotary position embedding (Su et al. 2021, arXiv:2104.09864)."""

    theta: float
    dim: int
    """How many of the head's components are rotated."""
    interleaved: bool
    """True: pairs are (2i, 2i+1) (GGUF's llama layout); False: pairs are (i, i + dim/2)."""
    factors: tuple[float, ...] | None = None
    """dim/2 divisors of the frequencies (Llama 3.1's `rope_freqs`), or None."""


class ModelSpec(msgspec.Struct, frozen=True):
    """One model, compiled: everything a backend, a scheduler and a tokenizer need beside the tensors."""

    name: str
    architecture: str
    vocab_size: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    context_tokens: int
    """The longest sequence the model was trained for."""
    bos_id: int | None
    eos_ids: tuple[int, ...]
    """Every token that ends a turn or a text; any of them finishes a sequence."""
    add_bos: bool
    chat_template: str | None
    rope: Rope
    kv_groups: tuple[KVGroup, ...]
    program: Program
    weights_hash: str
    """sha256 (hex) of the source file's bytes."""
