"""Claims about the scheduler: the chunks of prompts, and prefixes that were computed before."""

from __future__ import annotations

from collections import defaultdict
from contextlib import ExitStack
from statistics import median

from benchmarks.claims.finding import (
    Finding,
    Setting,
    finish,
    first_token_s,
    graded,
    ratio,
    rounds,
    timed_step,
)
from benchmarks.engine import add
from octavo.sampling.params import SamplingParams
from octavo.scheduling.inputs import Add

__all__ = ["chunks", "prefix"]

TURNS = 10


def chunks(setting: Setting) -> Finding:
    """Prefill in larger chunks has more throughput, up to some 512 tokens (Agrawal et al. 2024, Sarathi-Serve)."""
    budgets = (64, 128, 256, 512) if setting.quick else (64, 128, 256, 512, 1024)
    tokens, vocabulary = budgets[-1], setting.model.spec.vocab_size
    seconds: dict[int, list[float]] = defaultdict(list)
    with ExitStack() as stack:
        limits = {"max_running": 8, "num_blocks": tokens // 16 + 8, "max_model_len": tokens + 16}
        engines = {
            budget: stack.enter_context(setting.engine(max_step_tokens=budget, **limits))
            for budget in budgets
        }
        for engine in engines.values():
            engine.add(add("warm", 64, 1, vocabulary))
            finish(engine)
        for turn in rounds(6, 10 if setting.quick else 40):
            for budget in budgets if turn % 2 else budgets[::-1]:
                engines[budget].add(add("prompt", tokens, 1, vocabulary))
                seconds[budget].append(first_token_s(engines[budget]))
    gains = {budget: ratio(seconds[budgets[0]], seconds[budget]) for budget in budgets}
    gain = max(gains.values())
    return Finding(
        "Larger chunks of a prompt give more throughput",
        ", ".join(
            f"{budget}: {tokens / median(seconds[budget]):.0f} tokens/s ({gains[budget]:.2f} ×)"
            for budget in budgets
        ),
        graded(gain >= 1.2, gain >= 1.05),
        f"One prompt of {tokens} tokens. A GPU needs hundreds of rows until its multipliers are busy, a CPU few: "
        + ("64 are many. " if gain < 1.2 else "64 should do, but each step has its own waiting for threads. ")
        + "Holds from 1.2 × the throughput of the smallest budget, partly from 1.05.",
        {"seconds": seconds, "gains": gains},
    )


def prefix(setting: Setting) -> Finding:
    """A chat's later turns find 75 to 95 % of their prompts in the prefix cache, earlier answers included."""
    first, user, answer = (200, 32, 24) if setting.quick else (200, 40, 48)
    vocabulary = setting.model.spec.vocab_size
    history = add("system", first, 1, vocabulary).prompt
    prompts, found, computed = [], [], []
    with setting.engine(prefix_cache=True, num_blocks=256, max_model_len=2048) as engine:
        for turn in range(TURNS):
            prompt = history + add(f"user {turn}", user, 1, vocabulary).prompt
            params = SamplingParams(temperature=0.0, max_tokens=answer, ignore_eos=True, seed=0)
            engine.add(Add(f"turn {turn}", prompt, params, 0.0))
            chosen: list[int] = []
            cached, prompt_passes = 0, 0
            while not engine.idle:
                _, told = timed_step(engine)
                if not chosen:
                    prompt_passes += told.stats.step_tokens
                for item in told.items:
                    cached = max(cached, item.cached_tokens)
                    chosen += [sample.token for sample in item.samples]
            prompts.append(len(prompt))
            found.append(cached)
            computed.append(prompt_passes)
            history = prompt + tuple(chosen)
    hits = sum(found[1:]) / sum(prompts[1:])
    earlier = sum(size - user for size in prompts[1:])
    reused = sum(found[1:]) / earlier
    exact = all(
        cached + passes == size for cached, passes, size in zip(found, computed, prompts, strict=True)
    )
    return Finding(
        f"A chat of {TURNS} turns finds 75 to 95 % of its prompts in the prefix cache",
        f"{100 * hits:.0f} % of the prompt tokens of turns 2 to {TURNS} ({100 * found[1] / prompts[1]:.0f} % in "
        f"turn 2, {100 * found[-1] / prompts[-1]:.0f} % in the last); {100 * reused:.1f} % of all earlier turns",
        graded(exact and hits >= 0.75, hits >= 0.5),
        f"Prompts of {first} tokens, then {user} of the user and {answer} of the model a turn. Whole blocks of 16 are "
        "found, those of answers too; what is left is the user's new words and at most a block. "
        + (
            "Found and computed tokens add up in each turn. "
            if exact
            else "Found and computed tokens do NOT add up. "
        )
        + "Holds from 75 %, partly from 50 %.",
        {"prompt_tokens": prompts, "cached_tokens": found, "computed_tokens": computed},
    )
