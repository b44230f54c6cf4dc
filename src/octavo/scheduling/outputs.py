"""What a step gives back, per sequence. Tokens, not text; ends are decided here, inside the step."""

from __future__ import annotations

from typing import Literal

import msgspec

from octavo.backends.base import TokenSample

__all__ = ["FinishReason", "SequenceOutput", "joined"]

FinishReason = Literal["stop", "length", "abort", "error"]


class SequenceOutput(msgspec.Struct, frozen=True, array_like=True):
    """New tokens of one sequence (child `child` of request `request_id`)."""

    request_id: str
    child: int
    samples: tuple[TokenSample, ...] = ()
    """The new tokens, with log-probabilities if asked for."""
    held_bytes: int = 0
    """How many bytes at the end of the text so far may still become a stop string: do not show them yet."""
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    """The stop token id or stop string that ended it; None for the model's own end token."""
    cut_bytes: int = 0
    """At a finish: how many bytes at the end of the text are not part of the answer (a stop string)."""
    prompt_samples: tuple[TokenSample | None, ...] = ()
    """Log-probabilities of the prompt tokens, all at once, with child 0's first tokens. The first entry is None."""
    cached_tokens: int = 0
    """Prompt tokens whose KV was reused from the prefix cache."""
    error: str | None = None
    """With finish_reason "error": one sentence for the client."""
    refused: bool = False
    """The error is the client's: what was asked for cannot be done."""
    accepted_tokens: int = 0
    rejected_tokens: int = 0
    """At a finish: how many tokens were guessed for it and were right, and how many were not."""
    vector: bytes = b""
    """At the finish of a request with a pooling: float32, little-endian."""


def joined(outputs: list[SequenceOutput]) -> list[SequenceOutput]:
    """The same with neighbours of one sequence as one: several tokens of a step."""
    result: list[SequenceOutput] = []
    for output in outputs:
        last = result[-1] if result else None
        if last is None or (last.request_id, last.child) != (output.request_id, output.child):
            result.append(output)
            continue
        result[-1] = msgspec.structs.replace(
            output,
            samples=last.samples + output.samples,
            prompt_samples=last.prompt_samples or output.prompt_samples,
        )
    return result
