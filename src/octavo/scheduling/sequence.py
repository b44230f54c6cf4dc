"""A request's sequences and where each of them stands. Knows tokens and tables, not when they run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.backends.base import ChoiceRule, TokenSample
from octavo.memory.prefix import Chain
from octavo.memory.table import BlockTable
from octavo.sampling.stops import StopAutomaton, StopMatcher
from octavo.scheduling.inputs import Add
from octavo.scheduling.profiles import Targets

if TYPE_CHECKING:
    from octavo.scheduling.contest import Contest

__all__ = ["Request", "Sequence"]

_SEED_MODULUS = 1 << 64
PATIENCE_S = 10.0
"""What a request without a target is taken to wait for its first token, beside those that have one."""
_SENTENCE_ENDS = frozenset(b".!?\n")


class Request:
    """What a client asked for, compiled once: shared by its sequences."""

    def __init__(
        self, add: Add, number: int, end_ids: frozenset[int], max_model_len: int, targets: Targets
    ) -> None:
        self.add = add
        self.id = add.request_id
        self.number = number
        """Order of arrival."""
        self.targets = targets
        self.tenant = (add.service.tenant, add.service.user)
        self.deadline_s = add.arrival_s + (PATIENCE_S if targets.ttft_s is None else targets.ttft_s)
        """When its first token is due, Unix time."""
        self.params = params = add.params
        self.pooling = add.pooling
        self.stops = StopAutomaton([stop.encode() for stop in params.stop])
        self.stop_ids = frozenset(params.stop_token_ids)
        self.end_ids = frozenset() if params.ignore_eos else end_ids
        self.free = not (params.stop or params.grammar is not None or targets.slack_only)
        """No string ends it, no grammar leads it, and it takes what it wants."""
        room = max_model_len - len(add.prompt)
        self.max_output = room if params.max_tokens is None else min(room, params.max_tokens)
        self.between_s = tuple(
            targets.between_s(self.max_output, in_first_sentence=first) for first in (False, True)
        )
        """How long a step should be at most in which it decodes: otherwise, and in the first sentence."""
        self.sequences: list[Sequence] = []
        """Those that have not finished, by child number."""
        self.unforked: list[Sequence] = []
        """Children that wait for a sibling to compute the prompt they share."""
        self.contest: Contest | None = None
        """Where more answers are tried than are given."""
        self.prompt_samples: dict[int, TokenSample] = {}
        """By prompt position: the log-probability of the token there."""
        self.scores_prompt = params.prompt_logprobs is not None
        """Prompt log-probabilities are still to be delivered."""

    @property
    def reads_cache(self) -> bool:
        """It may begin with what others computed: not where something is wanted of each token of the prompt."""
        return not self.scores_prompt and self.pooling != "mean"

    def hides(self, token: int) -> bool:
        """A control token is not part of the text."""
        return self.params.skip_special_tokens and token not in self.params.shown_token_ids

    def rule(self, child: int) -> ChoiceRule:
        """The choice rule of one child. Child i equals `seed + i` asked alone."""
        params = self.params
        return ChoiceRule(
            prompt_tokens=len(self.add.prompt),
            seed=((params.seed or 0) + child) % _SEED_MODULUS,
            temperature=0.0 if params.beam_width else params.temperature,
            top_k=max(params.top_k, 0),
            top_p=params.top_p,
            min_p=params.min_p,
            repetition=params.repetition_penalty,
            frequency=params.frequency_penalty,
            presence=params.presence_penalty,
            bias=tuple(sorted((params.logit_bias or {}).items())),
            min_tokens=params.min_tokens,
            banned_early=tuple(sorted(self.end_ids | self.stop_ids)) if params.min_tokens else (),
            logprobs=self._ranked_logprobs(),
        )

    def _ranked_logprobs(self) -> int:
        """How many of the most likely tokens each answer has: as asked for, and what a ranking needs."""
        params = self.params
        wanted = -1 if params.logprobs is None else params.logprobs
        if params.beam_width:
            passed_over = len(self.end_ids | self.stop_ids) if params.min_tokens else 0
            return max(wanted, 2 * params.beam_width + passed_over)
        return max(wanted, 0) if params.attempts > params.n else wanted


class Sequence:
    """One stream of tokens: `tokens` are known, and `total` counts those too that plans in flight are choosing."""

    def __init__(
        self, request: Request, child: int, outputs: tuple[int, ...] = (), *, block_size: int
    ) -> None:
        self.request = request
        self.child = child
        self.order = (request.deadline_s, request.number, child)
        """Its place among those of the same tenant and priority (see `order`)."""
        self.tokens = [*request.add.prompt, *outputs]
        self.prompt_tokens = len(request.add.prompt)
        self.total = len(self.tokens)
        self.computed = 0
        """Tokens whose KV is stored, counting those of plans in flight."""
        self.writable = 0
        """Tokens that its tables have room for, in blocks that nobody shares."""
        self.chain = Chain(request.add.cache_salt.encode(), block_size)
        self.stored = 0
        """Computed tokens, whole blocks, that the prefix cache has been told of."""
        self.asked = 0
        """Blocks of its beginning that it has asked the disk for: each once, so that it never waits for ever."""
        self.begun = False
        """Has run before."""
        self.preempted = 0
        """How often."""
        self.in_first_sentence = request.targets.sentence_tbt_s is not None
        """Its answer has no whole sentence yet, where that matters."""
        self.cached_tokens = 0
        """Prompt tokens that it found computed when it began."""
        self.told = 0
        """Tokens that the backend knows of; 0 before the slot is opened."""
        self.drafted = 0
        """Guessed tokens that plans in flight compute for it; they count nowhere until they are verified."""
        self.tried = self.accepted = 0
        """Guessed tokens that were computed for it, and those of them that were right."""
        self.slot: int | None = None
        self.tables: tuple[BlockTable, ...] = ()
        """One per KV group; empty while waiting."""
        self.stop = StopMatcher(request.stops)
        self.finished = False

    @property
    def pending(self) -> int:
        """Tokens that plans in flight are choosing."""
        return self.total - len(self.tokens)

    @property
    def gap(self) -> int:
        """Tokens that a step could compute. 0 once the last token it may have is known or being chosen."""
        if self.computed >= self.prompt_tokens <= self.total - self.request.max_output:
            return 0
        return self.total - self.computed

    @property
    def slack_only(self) -> bool:
        """It takes what others leave."""
        return self.request.targets.slack_only

    @property
    def between_s(self) -> float | None:
        """How long a step that it decodes in should be at most, seconds."""
        return self.request.between_s[self.in_first_sentence]

    def follow(self, other: Sequence) -> None:
        """Become what `other` is, to go on by another token. Tables are not part of it."""
        self.tokens = list(other.tokens)
        self.total = other.total
        self.stop = other.stop.copy()
        self.in_first_sentence = other.in_first_sentence

    def learn(self, token: int, piece: bytes) -> None:
        """`token`, which is `piece` in the text, was chosen."""
        self.tokens.append(token)
        if self.in_first_sentence:
            self.in_first_sentence = not _SENTENCE_ENDS & frozenset(piece)

    @property
    def output_tokens(self) -> int:
        """Tokens of the answer, known or being chosen."""
        return self.total - self.prompt_tokens
