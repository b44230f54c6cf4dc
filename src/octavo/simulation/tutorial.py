"""A lesson's model of batching, small enough for a blackboard, and what is wrong with it. Knows no scheduler.

32 requests; a prompt's token takes so many milliseconds, a step of decoding 12 ms, of which a batch of 4 or 8 pays
a part for each step (0.45, 0.28). `static`: a batch begins together and ends with its longest answer. `continuous`: who
ends makes room for the next, whose whole prompt is computed while all others wait.
"""

from __future__ import annotations

import random
from typing import Literal, NamedTuple

__all__ = ["BATCHES", "PROMPT_TOKEN_MS", "Charge", "Outcome", "Pair", "continuous", "requests", "static"]

Charge = Literal["longest", "each"]
"""What a static batch pays for its prompts: only the longest, as the lesson has it, or each, as a machine does."""
BATCHES = (1, 4, 8)
PROMPT_TOKEN_MS = (0.25, 2.0)
"""The lesson's, and one with dear prompts."""
_STEP_MS = 12.0
_PART = {1: 1.0, 4: 0.45, 8: 0.28}


class Pair(NamedTuple):
    """A request."""

    prompt_tokens: int
    output_tokens: int


class Outcome(NamedTuple):
    """Of all requests together."""

    seconds: float
    tokens_s: float
    prompts_s: float
    """Of `seconds`, what went into prompts."""


def requests(count: int = 32, seed: int = 42) -> tuple[Pair, ...]:
    """The lesson's own: Python's `random` with its seed, a prompt and an output for each request in turn."""
    random_ = random.Random(seed)
    return tuple(Pair(random_.randint(50, 800), random_.randint(30, 300)) for _ in range(count))


def static(
    pairs: tuple[Pair, ...], batch: int, prompt_token_ms: float, charge: Charge = "longest"
) -> Outcome:
    """A batch after the other, each as long as its longest answer."""
    prompts_ms = steps_ms = 0.0
    for at in range(0, len(pairs), batch):
        group = pairs[at : at + batch]
        sizes = [one.prompt_tokens for one in group]
        prompts_ms += prompt_token_ms * (max(sizes) if charge == "longest" else sum(sizes))
        steps_ms += _STEP_MS * _PART[batch] * max(one.output_tokens for one in group)
    return _outcome(pairs, prompts_ms, steps_ms)


def continuous(pairs: tuple[Pair, ...], batch: int, prompt_token_ms: float) -> Outcome:
    """A place that is free is taken at once, and the prompt of the one who takes it is computed in full."""
    waiting = list(reversed(pairs))
    running: list[int] = []
    prompts_ms = steps_ms = 0.0
    while waiting or running:
        while waiting and len(running) < batch:
            one = waiting.pop()
            prompts_ms += prompt_token_ms * one.prompt_tokens
            running.append(one.output_tokens)
        steps_ms += _STEP_MS * _PART[batch]
        running = [left - 1 for left in running if left > 1]
    return _outcome(pairs, prompts_ms, steps_ms)


def _outcome(pairs: tuple[Pair, ...], prompts_ms: float, steps_ms: float) -> Outcome:
    seconds = (prompts_ms + steps_ms) / 1e3
    return Outcome(seconds, sum(one.output_tokens for one in pairs) / seconds, prompts_ms / 1e3)
