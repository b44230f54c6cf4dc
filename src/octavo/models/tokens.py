"""The token rules of a model file: BOS, every end token, the chat template. Knows no text and no tensors."""

from __future__ import annotations

from typing import NamedTuple

from octavo.models.source import Source

__all__ = ["END_TOKENS", "TokenRules", "read_token_rules"]

END_TOKENS = frozenset(
    {
        "</s>",
        "<eos>",
        "<EOT>",
        "[EOS]",
        "[EOT]",
        "<|end|>",
        "<|eot|>",
        "<|eom|>",
        "<|return|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|end_of_turn|>",
        "<end_of_turn>",
        "<end_of_utterance>",
        "<|END_OF_TURN_TOKEN|>",
        "<｜end▁of▁sentence｜>",
    }
)
"""Control tokens that end a turn or a text in the published chat formats. Many files name only one of theirs
as EOS, and a model that says another would run on to the limit."""

_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
_CONTROL, _USER_DEFINED = 3, 4


class TokenRules(NamedTuple):
    """As in ModelSpec."""

    vocab_size: int
    bos_id: int | None
    eos_ids: tuple[int, ...]
    """Ascending."""
    add_bos: bool
    chat_template: str | None


def read_token_rules(source: Source) -> TokenRules:
    """Read the `tokenizer.*` keys. Raises ModelError."""
    tokens = source.array("tokenizer.ggml.tokens", str)
    if not tokens:
        raise source.error("its metadata has no tokenizer.ggml.tokens")
    size = len(tokens)
    types = source.array("tokenizer.ggml.token_type", int, size) or [_CONTROL] * size
    ends = {
        number
        for number, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if token in END_TOKENS and kind in (_CONTROL, _USER_DEFINED)
    }
    for key in _END_KEYS:
        end = source.token(f"tokenizer.ggml.{key}", size)
        if end is not None:
            ends.add(end)
    bos = source.token("tokenizer.ggml.bos_token_id", size)
    # Files from before `add_bos_token` was written: Llama 1 to 3 were trained with a BOS.
    by_default = (
        source.text("tokenizer.ggml.model", "") == "llama"
        or source.text("tokenizer.ggml.pre", "") == "llama-bpe"
    )
    return TokenRules(
        vocab_size=size,
        bos_id=bos,
        eos_ids=tuple(sorted(ends)),
        add_bos=bos is not None and source.flag("tokenizer.ggml.add_bos_token", by_default),
        chat_template=source.maybe_text("tokenizer.chat_template"),
    )
