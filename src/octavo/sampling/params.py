"""What a client may ask of the choice of tokens. Knows ranges, not how a token is chosen."""

from __future__ import annotations

import msgspec

from octavo.errors import InvalidParameter
from octavo.sampling.beam import EarlyStopping
from octavo.sampling.grammar import Grammar
from octavo.sampling.ranges import MAX_BEAMS, MAX_LOGPROBS, MAX_N, RANGES, Range

__all__ = ["EMBEDDING", "MAX_BEAMS", "MAX_LOGPROBS", "MAX_N", "MAX_STOPS", "MAX_STOP_BYTES", "SamplingParams"]

MAX_STOPS = 64
MAX_STOP_BYTES = 1024
_BIAS = Range(-100.0, 100.0)
_TOKEN = Range(0, 2**31 - 1, whole=True)


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the tokens of one request are chosen. Raises InvalidParameter when built out of range.

    Filters act in this order: penalties, logit_bias, mask, temperature, top_k, top_p, min_p.
    Log-probabilities are natural logarithms of the raw model distribution, taken before all of them.
    """

    n: int = 1
    """How many sequences to make from the prompt. Sequence i equals `seed + i` asked alone."""
    best_of: int | None = None
    """Make so many, and give the n whose tokens are the most likely on average. None: n."""
    beam_width: int = 0
    """Beam search with so many beams, instead of a choice by chance; the n best answers. 0: none."""
    length_penalty: float = 1.0
    """Of beam search: a score is divided by length ** this; above 0 favours long answers."""
    early_stopping: EarlyStopping = False
    """Of beam search: end as soon as there are beam_width answers (true), when no better one is likely (false), or when
    none is possible ("never")."""
    temperature: float = 1.0
    """0 chooses the most likely token (ties go to the lowest id)."""
    top_k: int = 0
    """Keep the k most likely tokens; 0 or -1 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of tokens whose probability reaches p."""
    min_p: float = 0.0
    """Keep tokens at least this fraction as likely as the most likely one."""
    repetition_penalty: float = 1.0
    """Divide positive, multiply negative logits of tokens in prompt or output (CTRL, Keskar 2019)."""
    frequency_penalty: float = 0.0
    """Subtract this times the count of the token in the output."""
    presence_penalty: float = 0.0
    """Subtract this from every token in the output."""
    logit_bias: dict[int, float] | None = None
    """Add to the logit of a token id, -100 to 100."""
    seed: int | None = None
    """int64. None lets the server choose one, once per request."""
    stop: tuple[str, ...] = ()
    """Strings that end a sequence; the text ends before them."""
    stop_token_ids: tuple[int, ...] = ()
    """Token ids that end a sequence, besides the model's own end tokens."""
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    """End tokens, stop ids and stop strings cannot end a sequence before this many tokens."""
    max_tokens: int | None = 16
    """None means the rest of the context."""
    logprobs: int | None = None
    """None: none. k ≥ 0: the chosen token's, and the k most likely ones' of each position."""
    prompt_logprobs: int | None = None
    """The same for each prompt token (the first has none)."""
    skip_special_tokens: bool = True
    """Leave control tokens out of the text."""
    grammar: Grammar | None = None
    """What the answer must look like; it ends where that is fulfilled."""
    shown_token_ids: tuple[int, ...] = ()
    """Control tokens that stay in the text all the same, such as the marks of a call."""

    @property
    def attempts(self) -> int:
        """Sequences that run at once for it."""
        return self.beam_width or self.best_of or self.n

    def __post_init__(self) -> None:
        for name, allowed in RANGES.items():
            if (value := getattr(self, name)) is not None:
                allowed.check(name, value)
        if self.beam_width:
            self._check_beams()
        if self.grammar is not None:
            self._check_guided()
        if self.attempts < self.n:
            name = "beam_width" if self.beam_width else "best_of"
            raise InvalidParameter(
                f"{name} is {self.attempts}, less than n, which is {self.n}; raise it.", name
            )
        if self.logit_bias is not None:
            for token, bias in self.logit_bias.items():
                if not 0 <= token < 2**31:
                    raise InvalidParameter(
                        f"logit_bias has the key {token}; keys are token ids, 0 … {2**31 - 1}.", "logit_bias"
                    )
                _BIAS.check(f"logit_bias[{token}]", bias)
        if len(self.stop) > MAX_STOPS:
            raise InvalidParameter(
                f"stop has {len(self.stop)} strings; at most {MAX_STOPS} are allowed.", "stop"
            )
        for s in self.stop:
            if s == "":
                raise InvalidParameter(
                    "stop holds an empty string, which would end every answer at once; leave it out.",
                    "stop",
                )
            if len(s.encode()) > MAX_STOP_BYTES:
                raise InvalidParameter(
                    f"stop holds a string of {len(s.encode())} bytes; at most {MAX_STOP_BYTES} are allowed.",
                    "stop",
                )
        if len(self.stop_token_ids) > MAX_STOPS:
            raise InvalidParameter(
                f"stop_token_ids has {len(self.stop_token_ids)} ids; at most {MAX_STOPS} are allowed.",
                "stop_token_ids",
            )
        for token in self.stop_token_ids:
            _TOKEN.check("stop_token_ids", token)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidParameter(
                f"min_tokens {self.min_tokens} is larger than max_tokens {self.max_tokens}.", "min_tokens"
            )

    def _check_guided(self) -> None:
        for name, usual in (("ignore_eos", False), ("min_tokens", 0), ("beam_width", 0)):
            if (value := getattr(self, name)) != usual:
                raise InvalidParameter(
                    f"{name} is {value} for an answer with a grammar, and the grammar says when it ends; leave one out."
                    if name != "beam_width"
                    else "Beam search follows no grammar; leave one of the two out.",
                    name,
                )

    def _check_beams(self) -> None:
        if self.early_stopping not in (True, False, "never"):
            raise InvalidParameter(
                f'early_stopping is {self.early_stopping!r}; it is true, false or "never".', "early_stopping"
            )
        if self.max_tokens == 0:
            raise InvalidParameter(
                "max_tokens is 0, and a beam search is for tokens; raise it.", "max_tokens"
            )
        ranked = "beam search ranks by the model's own log-probabilities; leave it out"
        usual = {
            "best_of": (None, self.beam_width),
            "temperature": (0.0,),
            "top_k": (0, -1),
            "top_p": (1.0,),
            "min_p": (0.0,),
            "repetition_penalty": (1.0,),
            "frequency_penalty": (0.0,),
            "presence_penalty": (0.0,),
            "logit_bias": (None,),
        }
        for name, values in usual.items():
            value = getattr(self, name)
            if value not in values:
                raise InvalidParameter(f"{name} is {value}; {ranked}.", name)


EMBEDDING = SamplingParams(max_tokens=0, temperature=0.0, seed=0)
"""Of a request for its prompt's vector: no token is chosen."""
