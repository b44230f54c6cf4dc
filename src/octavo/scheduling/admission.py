"""What can be served at all: checked at the edge, and again where it would hurt. Knows sizes, not state."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from octavo.errors import CapacityError, InvalidParameter
from octavo.sampling.params import SamplingParams

__all__ = ["Capacity"]


class Capacity(msgspec.Struct, frozen=True):
    """The sizes that decide whether a request can ever run."""

    vocab_size: int
    max_model_len: int
    """Tokens of one sequence, prompt and output; never more than the KV memory holds."""
    max_running: int
    kv_tokens: int
    """Tokens that the whole KV memory holds."""

    def check(self, prompt: Sequence[int], params: SamplingParams, name: str = "prompt") -> None:
        """Raise InvalidParameter or CapacityError, with the numbers, for what can never be served. `name`: the
        prompt's among several."""
        subject = "The prompt" if name == "prompt" else name
        if not prompt:
            raise InvalidParameter(f"{subject} has no tokens; give at least one.", name)
        if min(prompt) < 0 or max(prompt) >= self.vocab_size:
            place, token = next((i, t) for i, t in enumerate(prompt) if not 0 <= t < self.vocab_size)
            raise InvalidParameter(
                f"{name}[{place}] is {token}, which is outside the vocabulary of {self.vocab_size} tokens.",
                name,
            )
        room = self.max_model_len - len(prompt)
        if room < 0 or (room == 0 and params.max_tokens != 0):
            raise CapacityError(
                f"{subject} has {len(prompt)} tokens, and the limit for prompt and answer together is "
                f"{self.max_model_len} (the KV memory holds {self.kv_tokens}); shorten the prompt.",
                "prompt",
            )
        if params.min_tokens > room:
            raise CapacityError(
                f"min_tokens is {params.min_tokens}, but a prompt of {len(prompt)} tokens leaves room for {room}; "
                "lower it or shorten the prompt.",
                "min_tokens",
            )
        if params.n > self.max_running:
            raise CapacityError(
                f"n is {params.n}, but at most {self.max_running} sequences run at once; lower n.", "n"
            )
        for name, ids in (("logit_bias", params.logit_bias or ()), ("stop_token_ids", params.stop_token_ids)):
            for token in ids:
                if token >= self.vocab_size:
                    raise InvalidParameter(
                        f"{name} names token {token}, which is outside the vocabulary of {self.vocab_size} tokens.",
                        name,
                    )
