"""The `llama` architecture (Llama 1–3, SmolLM, Mistral and others): GGUF keys and tensors to a ModelSpec.

Touvron et al. 2023, arXiv:2302.13971: RMSNorm before attention and before a gated SiLU feed-forward, rotary
positions, grouped heads. The files hold the rows of Q and K permuted so that rotary pairs are neighbours.
"""

from __future__ import annotations

from octavo.models.program import Attention, Embed, Gated, Head, Linear, Norm, Op, Program, RopeOp
from octavo.models.source import Source
from octavo.models.spec import KVGroup, ModelSpec, Rope
from octavo.models.tokens import read_token_rules

__all__ = ["compile_llama"]


def compile_llama(source: Source, weights_hash: str) -> ModelSpec:
    """Check every key and tensor and return the spec. Raises ModelError."""
    tokens = read_token_rules(source)
    layers = source.size("llama.block_count")
    hidden = source.size("llama.embedding_length")
    ffn = source.layer_size("llama.feed_forward_length", layers)
    heads = source.layer_size("llama.attention.head_count", layers)
    kv_heads = source.layer_size("llama.attention.head_count_kv", layers, heads)
    eps = source.number("llama.attention.layer_norm_rms_epsilon")
    if heads % kv_heads:
        raise source.error(f"{heads} attention heads cannot share {kv_heads} KV heads evenly")
    head_dim = source.size("llama.attention.key_length", max(hidden // heads, 1))
    value_dim = source.size("llama.attention.value_length", head_dim)
    if value_dim != head_dim:
        raise source.error(f"keys of {head_dim} and values of {value_dim} per head are not supported")
    if experts := source.count("llama.expert_count", 0):
        raise source.error(f"llama.expert_count is {experts}, mixtures of experts are not supported yet")
    if source.size("llama.vocab_size", tokens.vocab_size) != tokens.vocab_size:
        raise source.error(
            f"llama.vocab_size is {source.size('llama.vocab_size')}, the file has {tokens.vocab_size} tokens"
        )

    embedding = source.matrix("token_embd.weight", tokens.vocab_size, hidden)
    tied = not source.has("output.weight")
    program = Program(
        start=(Embed(table=embedding),),
        layers=tuple(
            _layer(source, layer, hidden, ffn, heads * head_dim, kv_heads * head_dim, head_dim, eps)
            for layer in range(layers)
        ),
        end=(
            Norm(source="x", target="h", weight=source.vector("output_norm.weight", hidden), eps=eps),
            Head(
                source="h",
                weight=embedding if tied else source.matrix("output.weight", tokens.vocab_size, hidden),
            ),
        ),
    )
    rope = _rope(source, head_dim)
    source.refuse_unused()
    context_tokens = source.size("llama.context_length")
    if context_tokens < 2:
        raise source.error(
            f"llama.context_length is {context_tokens}, a prompt and an answer need at least 2"
        )
    return ModelSpec(
        name=source.maybe_text("general.name") or source.stem,
        architecture="llama",
        vocab_size=tokens.vocab_size,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=ffn,
        context_tokens=context_tokens,
        bos_id=tokens.bos_id,
        eos_ids=tokens.eos_ids,
        add_bos=tokens.add_bos,
        chat_template=tokens.chat_template,
        rope=rope,
        kv_groups=(KVGroup(layers=tuple(range(layers)), kv_heads=kv_heads, head_dim=head_dim),),
        program=program,
        weights_hash=weights_hash,
    )


def _layer(
    source: Source, layer: int, hidden: int, ffn: int, q_width: int, kv_width: int, head_dim: int, eps: float
) -> tuple[Op, ...]:
    def matrix(part: str, rows: int, cols: int) -> str:
        return source.matrix(f"blk.{layer}.{part}.weight", rows, cols)

    def biases(*parts: tuple[str, int]) -> tuple[str | None, ...]:
        found = tuple(source.maybe_vector(f"blk.{layer}.{part}.bias", rows) for part, rows in parts)
        return found if any(found) else ()

    def norm(part: str) -> Norm:
        weight = source.vector(f"blk.{layer}.{part}.weight", hidden)
        return Norm(source="x", target="h", weight=weight, eps=eps)

    return (
        norm("attn_norm"),
        Linear(
            source="h",
            targets=("q", "k", "v"),
            weights=(
                matrix("attn_q", q_width, hidden),
                matrix("attn_k", kv_width, hidden),
                matrix("attn_v", kv_width, hidden),
            ),
            biases=biases(("attn_q", q_width), ("attn_k", kv_width), ("attn_v", kv_width)),
        ),
        RopeOp(),
        Attention(layer=layer, group=0, scale=head_dim**-0.5),
        Linear(
            source="a",
            targets=("x",),
            weights=(matrix("attn_output", hidden, q_width),),
            biases=biases(("attn_output", hidden)),
            add=True,
        ),
        norm("ffn_norm"),
        Gated(source="h", target="g", gate=matrix("ffn_gate", ffn, hidden), up=matrix("ffn_up", ffn, hidden)),
        Linear(
            source="g",
            targets=("x",),
            weights=(matrix("ffn_down", hidden, ffn),),
            biases=biases(("ffn_down", hidden)),
            add=True,
        ),
    )


def _rope(source: Source, head_dim: int) -> Rope:
    dim = source.size("llama.rope.dimension_count", head_dim)
    if dim > head_dim or dim % 2:
        raise source.error(
            f"llama.rope.dimension_count is {dim}, it must be even and at most the head's {head_dim}"
        )
    factors = source.floats("rope_freqs.weight", dim // 2) if source.has("rope_freqs.weight") else None
    scaling = source.text("llama.rope.scaling.type", "none")
    if scaling not in ("none", "linear"):
        raise source.error(f"llama.rope.scaling.type is {scaling!r}, 'none' and 'linear' are supported")
    # Linear scaling divides positions, which is the same as dividing every frequency. Older files have the
    # first key, and no type.
    factor = source.number("llama.rope.scale_linear", 1.0)
    if scaling == "linear":
        factor = source.number("llama.rope.scaling.factor")
    if factor != 1.0:
        factors = tuple(factor * each for each in factors or (1.0,) * (dim // 2))
    return Rope(
        theta=source.number("llama.rope.freq_base", 10000.0), dim=dim, interleaved=True, factors=factors
    )
