"""What can be served at all: checked at the edge, and again where it would hurt. Knows sizes, not state."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from octavo.errors import CapacityError, InvalidParameter
from octavo.sampling.params import SamplingParams
from octavo.scheduling.inputs import Add

__all__ = ["Capacity"]


class Capacity(msgspec.Struct, frozen=True):
    """The sizes that decide whether a request can ever run."""

    vocab_size: int
    max_model_len: int
    """Tokens of one sequence, prompt and output; never more than the KV memory holds."""
    max_running: int
    kv_tokens: int
    """Tokens that the whole KV memory holds."""
    block_size: int = 16
    forks: bool = True
    """Whether sequences may share blocks, as beams must."""

    def check(self, prompt: Sequence[int], params: SamplingParams, name: str = "prompt") -> None:
        """Raise InvalidParameter or CapacityError, with the numbers, for what can never be served. `name`: the
        prompt's among several."""
        subject = "The prompt" if name in ("prompt", "messages") else name
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
                name.partition("[")[0],
            )
        if params.min_tokens > room:
            raise CapacityError(
                f"min_tokens is {params.min_tokens}, but a prompt of {len(prompt)} tokens leaves room for {room}; "
                "lower it or shorten the prompt.",
                "min_tokens",
            )
        if params.attempts > self.max_running:
            name = "beam_width" if params.beam_width else "best_of" if params.attempts > params.n else "n"
            raise CapacityError(
                f"{name} is {params.attempts}, but at most {self.max_running} sequences run at once; lower it.",
                name,
            )
        if params.beam_width and not self.forks:
            raise InvalidParameter(
                "Beam search needs memory that its beams share, and this server's allocator shares none; it would have "
                "to be started with --allocator paged.",
                "beam_width",
            )
        if params.beam_width:
            longest = room if params.max_tokens is None else min(room, params.max_tokens)
            needed = params.beam_width * -(-(len(prompt) + longest) // self.block_size) * self.block_size
            if needed > self.kv_tokens:
                raise CapacityError(
                    f"{params.beam_width} beams of {len(prompt) + longest} tokens may need {needed} tokens of KV "
                    f"memory, and it holds {self.kv_tokens}; lower beam_width or max_tokens.",
                    "beam_width",
                )
        for name, ids in (("logit_bias", params.logit_bias or ()), ("stop_token_ids", params.stop_token_ids)):
            for token in ids:
                if token >= self.vocab_size:
                    raise InvalidParameter(
                        f"{name} names token {token}, which is outside the vocabulary of {self.vocab_size} tokens.",
                        name,
                    )

    def check_message(self, add: Add) -> None:
        """The same for a message as it came over the wire, which may say what no client of ours says: what is not
        refused here can be computed. Raises InvalidParameter or CapacityError."""
        params, service = add.params, add.service
        self.check(add.prompt, params)
        times = (add.arrival_s, service.ttft_s or 0.0, service.tbt_s or 0.0)
        if not all(map(math.isfinite, times)):
            raise InvalidParameter(f"The times of request {add.request_id[:60]!r} are no finite numbers.")
        if service.prediction:
            self._check_tokens(service.prediction, "prediction")
        if add.pooling is not None and (
            params.max_tokens != 0 or params.attempts != 1 or params.grammar is not None
        ):
            raise InvalidParameter(
                "A request with a pooling chooses no token: max_tokens is 0, n is 1.", "pooling"
            )
        if add.outputs and len(add.outputs) != params.n:
            raise InvalidParameter(
                f"There are {len(add.outputs)} beginnings of {params.n} answers.", "outputs"
            )
        finished = set(add.finished)
        if not finished < set(range(params.n)):
            raise InvalidParameter("The finished answers are not some of those asked for.", "finished")
        if (add.outputs or finished) and (params.attempts > params.n or params.beam_width):
            raise InvalidParameter(
                "Answers that are chosen at the end have no beginnings before it.", "outputs"
            )
        room = self.max_model_len - len(add.prompt)
        most = room if params.max_tokens is None else min(room, params.max_tokens)
        for child, tokens in enumerate(add.outputs):
            if tokens and child not in finished:
                self._check_tokens(tokens, "outputs")
                if len(tokens) >= most:
                    raise CapacityError(
                        f"An answer of {len(tokens)} tokens, of {most} at most, is to go on.", "outputs"
                    )

    def _check_tokens(self, tokens: Sequence[int], name: str) -> None:
        if min(tokens) < 0 or max(tokens) >= self.vocab_size:
            raise InvalidParameter(f"{name} holds a token outside the vocabulary of {self.vocab_size}.", name)
