"""What guessed tokens are worth: the same requests with and without, in turns, and how often guesses are right.

    python -m benchmarks.speculation [--pairs 10] [--outputs 200] [--streams 1 8 32] [--forced 4] [--json FILE]

Two engines in this process answer the same prompts, one that guesses and one that does not, a step of each in turns;
the answers must be equal, token for token. Work that copies (text that is edited, extracted from, code that is gone on
with) stands beside free prose. What loops at its end is left out: small models loop, and a loop guesses itself.
--forced tries so many tokens in every step, beside which to see what the control does. --json writes the profile: by
work, how often the guess at a place was right.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.engine import processor
from octavo.config import EngineConfig
from octavo.engine.build import build_engine
from octavo.engine.engine import Engine
from octavo.models.store import StoredModel, open_model
from octavo.sampling.params import SamplingParams
from octavo.scheduling.inputs import Add
from octavo.speculation.registry import DRAFTERS
from octavo.text.chat import ChatTemplate
from octavo.text.conversation import encode_conversation

STORY = (
    "The lighthouse keeper had a dog called Bramble. Every evening at six they climbed the ninety steps to the lamp. "
    "The keeper cleaned the glass while Bramble watched the ships. On the third of March a fog came in from the north, "
    "and for two days nobody saw the harbour. On the second night the lamp went out. The keeper found that the oil had "
    "been stolen, and only one footprint was left on the floor. Bramble sniffed at it and ran down to the boats. "
)
CODE = """class Account:
    def __init__(self, owner, balance):
        self.owner = owner
        self.balance = balance

    def deposit(self, amount):
        if amount <= 0:
            raise ValueError("amount must be positive")
        self.balance = self.balance + amount
        return self.balance

    def withdraw(self, amount):
        if amount <= 0:
            raise ValueError("amount must be positive")
        if amount > self.balance:
            raise ValueError("balance is too small")
        self.balance = self.balance - amount
        return self.balance
"""
RECORDS = "\n".join(
    f"Order {1040 + 7 * number}: {name}, {2 + number} pieces, to {town}, {'paid' if number % 3 else 'not paid'}."
    for number, (name, town) in enumerate(
        [
            ("blue lantern", "Hull"),
            ("rope of twenty metres", "Leeds"),
            ("brass compass", "Dover"),
            ("storm glass", "Whitby"),
            ("oilskin coat", "Grimsby"),
            ("sounding lead", "Hull"),
            ("signal flag", "Dover"),
        ]
    )
)
WORKS: dict[str, list[str]] = {
    "edit": [
        f"Correct the spelling of this text and repeat all of it:\n\n{STORY}",
        f"Repeat this text, but write Rex instead of Bramble:\n\n{STORY}",
        f"Repeat this text word for word:\n\n{STORY}",
    ],
    "extract": [
        f"Copy every order that goes to Hull or Dover:\n\n{RECORDS}",
        f"List all the orders that are paid, in the same words:\n\n{RECORDS}",
        f"Repeat the list of orders, sorted by number:\n\n{RECORDS}",
    ],
    "code": [
        f"Repeat this class and add a method transfer(self, other, amount):\n\n```python\n{CODE}```",
        f"Rename Account to Wallet in this code and show all of it:\n\n```python\n{CODE}```",
        f"Add docstrings to every method of this class and show all of it:\n\n```python\n{CODE}```",
    ],
    "prose": [
        "Write a short story about a painter who loses her sight.",
        "Explain why the sky is blue to a child.",
        "What should a person think about before moving to another country?",
        "Describe a busy market in the morning.",
    ],
}
COPYING = ("edit", "extract", "code")
LOOP = 64
"""Tokens at the end of an answer in which nothing may repeat itself."""


def loops(tokens: list[int]) -> bool:
    """Do the last tokens consist of one run, again and again?"""
    end = tokens[-LOOP:]
    return any(end[period:] == end[:-period] for period in range(1, len(end) // 2 + 1))


@dataclass
class Answer:
    tokens: list[int] = field(default_factory=list)
    seconds: float = 0.0
    steps: int = 0


class Asked:
    """Requests on one engine, all at once. Seconds and steps are of the decoding, from the last first token on."""

    def __init__(self, engine: Engine, adds: list[Add]) -> None:
        self.engine = engine
        self.answers = {add.request_id: Answer() for add in adds}
        for add in adds:
            engine.add(add)

    def step(self) -> None:
        decoding = all(answer.tokens for answer in self.answers.values())
        began = time.perf_counter()
        items = self.engine.step().items
        taken = time.perf_counter() - began
        for item in items:
            self.answers[item.request_id].tokens.extend(sample.token for sample in item.samples)
        if decoding:
            for answer in self.answers.values():
                answer.seconds += taken
                answer.steps += 1


def ask(engines: tuple[Engine, Engine], adds: list[Add]) -> list[dict[str, Answer]]:
    """The same of both, a step of the one and a step of the other in turns: so the machine is as fast for both."""
    asked = [Asked(engine, adds) for engine in engines]
    while not all(one.engine.idle for one in asked):
        for one in asked:
            if not one.engine.idle:
                one.step()
    return [one.answers for one in asked]


def speed(answers: dict[str, Answer], streams: int) -> float:
    """Output tokens a second, of all that were decoded together."""
    some = next(iter(answers.values()))
    return (sum(len(answer.tokens) for answer in answers.values()) - streams) / some.seconds


class Bench:
    """Engines that guess and one that does not, over one model."""

    def __init__(self, model: StoredModel, streams: int, outputs: int) -> None:
        self._outputs = outputs
        self._tokenizer, self._template = model.tokenizer(), ChatTemplate(model.spec.chat_template)
        blocks = streams * 128
        self._shared: dict[str, Any] = {
            "model_dir": str(model.dir),
            "num_blocks": blocks,
            "max_running": max(streams, 1),
            "max_model_len": 2048 if model.spec.context_tokens >= 2048 else None,
            "prefix_cache": False,
        }
        self.plain = self.engine("off")

    def engine(self, speculation: str, tokens: int | None = None) -> Engine:
        return build_engine(EngineConfig(speculation=speculation, speculation_tokens=tokens, **self._shared))

    def add(self, name: str, question: str, temperature: float = 0.0) -> Add:
        ids = encode_conversation(self._tokenizer, self._template, [{"role": "user", "content": question}])
        params = SamplingParams(temperature=temperature, max_tokens=self._outputs, seed=1, ignore_eos=False)
        return Add(name, tuple(ids), params, 0.0)


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """Mean of the logarithms and its 95 % interval, as ratios."""
    logs = [math.log(ratio) for ratio in ratios]
    middle = statistics.fmean(logs)
    wide = 2.262 * statistics.stdev(logs) / len(logs) ** 0.5 if len(logs) > 1 else 0.0
    return math.exp(middle - wide), math.exp(middle), math.exp(middle + wide)


def compare(
    bench: Bench, guessing: Engine, adds: list[Add], pairs: int, streams: int
) -> dict[str, Any] | None:
    """The same requests on both in turns; None where an answer loops at its end."""
    ratios, before = [], guessing.stats()
    plain: dict[str, Answer] = {}
    for number in range(pairs):
        first = number % 2
        told = ask((guessing, bench.plain) if first else (bench.plain, guessing), adds)
        plain, guessed = told[first], told[1 - first]
        for name, answer in plain.items():
            assert guessed[name].tokens == answer.tokens, f"{name}: the answer changed"
        if streams == 1 and (
            loops(next(iter(plain.values())).tokens) or len(next(iter(plain.values())).tokens) < LOOP
        ):
            return None
        ratios.append(speed(guessed, streams) / speed(plain, streams))
    after = guessing.stats()
    drafts, tokens = after.drafts - before.drafts, after.draft_tokens - before.draft_tokens
    at = [now - then for now, then in zip(after.accepted_at, before.accepted_at, strict=True)]
    return {
        "ratios": ratios,
        "tokens": sum(len(answer.tokens) for answer in plain.values()),
        "drafts": drafts / pairs,
        "draft_tokens": tokens / pairs,
        "accepted_tokens": (after.accepted_tokens - before.accepted_tokens) / pairs,
        "accepted_at": [count / drafts if drafts else 0.0 for count in at],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="smollm2", help="alias, path or hf: reference")
    parser.add_argument("--pairs", type=int, default=10, help="turns of each comparison")
    parser.add_argument("--outputs", type=int, default=200, help="tokens of each answer, at most")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--forced", type=int, metavar="TOKENS", help="guess so many in every step")
    parser.add_argument(
        "--speculation",
        default="ngram",
        choices=DRAFTERS,
        help="suffix and auto find the answers of the turns before: as if everything were asked again",
    )
    parser.add_argument("--works", nargs="+", choices=WORKS, default=list(WORKS))
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the profile there")
    options = parser.parse_args()
    model = open_model(options.model)
    title = f"{model.spec.name}, {processor()}"
    table = Table("work", "streams", "times as fast (95 %)", "guessed, of them right", "answers", title=title)
    profile: dict[str, Any] = {}
    for streams in options.streams:
        bench = Bench(model, streams, options.outputs)
        guessing = bench.engine(options.speculation, options.forced)
        for work in track(options.works, f"{streams} streams", transient=True):
            questions = WORKS[work]
            groups = (
                [
                    [bench.add(f"{work}{number}", question, options.temperature)]
                    for number, question in enumerate(questions)
                ]
                if streams == 1
                else [
                    [
                        bench.add(f"{work}{number}", questions[number % len(questions)], options.temperature)
                        for number in range(streams)
                    ]
                ]
            )
            found = [
                one for adds in groups if (one := compare(bench, guessing, adds, options.pairs, streams))
            ]
            if not found:
                table.add_row(work, str(streams), "every answer loops", "", "0")
                continue
            each = [statistics.fmean(pair) for pair in zip(*(one["ratios"] for one in found), strict=True)]
            low, middle, high = interval(each)
            guessed = sum(one["draft_tokens"] for one in found)
            right = sum(one["accepted_tokens"] for one in found)
            share = f"{guessed:.0f}, {100 * right / guessed:.0f} %" if guessed else "none"
            table.add_row(
                work,
                str(streams),
                f"{middle:.2f} ({low:.2f} to {high:.2f})",
                share,
                str(len(found) * streams),
            )
            profile[f"{work} {streams}"] = {"streams": streams, "work": work, "answers": found}
        guessing.close()
        bench.plain.close()
    Console(width=120).print(table)
    if options.json:
        options.json.write_text(
            json.dumps({"model": model.spec.name, "forced": options.forced, "works": profile}, indent=1)
        )


if __name__ == "__main__":
    main()
