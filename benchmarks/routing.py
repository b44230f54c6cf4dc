"""How long a decision takes, what the hand-made prompts are sent to, and the numbers of the starting policies.

    python -m benchmarks.routing LABELS [--policy plain.npz] [--policy embedded.npz] [--threads 1] [--starting]

Times are of one decision after the other, one prompt each, over prompts of LABELS that are drawn with a seed; the
policy is loaded, the model too; with `--threads 1` the processor's time is what a decision takes on a free core.
`--starting` fits the two starting policies that come from labels (rows of the tasks that are named here; signs alone)
and prints their files; the essay's is written by hand, and so are the conditions of all three.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table

from octavo.routing.curve import curves, prices_of, summaries
from octavo.routing.duplicates import folds, groups_of
from octavo.routing.embedding import Embedder
from octavo.routing.labels import Labels, read_labels
from octavo.routing.policy import Decision, Policy
from octavo.routing.signs import SIGNS, signs
from octavo.routing.starting import begin

HAND = Path(__file__).with_name("routing_hand.jsonl")
FACTUAL = (
    "mmlu_miscellaneous", "mmlu_high_school_geography", "mmlu_prehistory", "mmlu_nutrition", "mmlu_world_religions",
    "mmlu_marketing", "mmlu_human_aging", "mmlu_sociology", "mmlu_global_facts", "mmlu_astronomy", "mmlu_virology",
    "mmlu_anatomy", "mmlu_high_school_biology", "mmlu_management", "mmlu_us_foreign_policy", "mmlu_philosophy",
    "mmlu_international_law", "mmlu_computer_security", "mmlu_clinical_knowledge", "mmlu_college_biology",
)  # fmt: skip
"""Tasks of MMLU that ask for something one knows or does not."""
FACTUAL_SIGNS = (
    "log_words", "word_chars", "distinct_words", "log_numbers", "digit_share", "upper_share", "negated_loud",
    "negations", "quoted", "years", "asks_why", "asks_what", "conditions", "symbol_share", "person", "other_letters",
)  # fmt: skip
"""Those that do not come from a question's being a multiple choice."""
MATHEMATICS_SIGNS = (
    "log_words", "log_sentences", "log_numbers", "digit_share", "dollar", "percent", "asks_quantity", "quantities",
    "conditions", "person", "distinct_words", "word_chars",
)  # fmt: skip
STRENGTH = 0.05
"""scikit-learn's C: these must hold for other prompts than those that they were fitted on."""


def timed(name: str, prompts: Sequence[str], decide: Callable[[str], Decision], table: Table) -> None:
    """One row, in milliseconds: the median of the processor's time, and the median and 95th percentile of all time."""
    for prompt in prompts[:20]:
        decide(prompt)
    taken, worked = [], []
    for prompt in prompts:
        began, idle = time.perf_counter(), time.process_time()
        decide(prompt)
        worked.append(1e3 * (time.process_time() - idle))
        taken.append(1e3 * (time.perf_counter() - began))
    late = sorted(taken)[int(0.95 * len(taken))]
    table.add_row(name, f"{statistics.median(worked):.2f}", f"{statistics.median(taken):.2f}", f"{late:.2f}")


def by_hand(name: str, decide: Callable[[str], Decision], table: Table) -> None:
    """One row for each family of the hand-made prompts: how often the decision is the one that was meant."""
    rows = [msgspec.json.decode(line) for line in HAND.read_bytes().splitlines()]
    for family in dict.fromkeys(row["family"] for row in rows):
        mine = [row for row in rows if row["family"] == family]
        decided = [decide(row["prompt"]) for row in mine]
        large = [one.tier in ("large", "strong") for one in decided]
        meant = [row["enough"] == "large" for row in mine]
        under = sum(want and not got for want, got in zip(meant, large, strict=True))
        over = sum(got and not want for want, got in zip(meant, large, strict=True))
        table.add_row(
            name, family, str(len(mine)), str(len(mine) - under - over), str(under), str(over),
            str(sum(one.abstained for one in decided)),
        )  # fmt: skip


def fitted(name: str, rows: Labels, chosen: Sequence[str], given: dict[str, Any]) -> dict[str, Any]:
    """A starting policy's file. `given`: what is written by hand."""
    from sklearn.linear_model import LogisticRegression

    places = [SIGNS.index(one) for one in chosen]
    values = signs(rows.prompts)[:, places]
    mean, deviation = values.mean(axis=0), values.std(axis=0)
    deviation[deviation < 1e-9] = 1.0
    scaled = np.clip((values - mean) / deviation, -3, 3)

    def models(inside: Any) -> list[Any]:
        return [
            LogisticRegression(C=STRENGTH, max_iter=500).fit(scaled[inside], rows.correct[inside, tier])
            for tier in range(2)
        ]

    groups = groups_of(rows.prompts)
    parts = folds(groups, 5, 0)
    held_out = np.zeros(rows.correct.shape)
    for part in range(5):
        for tier, model in enumerate(models(parts != part)):
            held_out[parts == part, tier] = model.predict_proba(scaled[parts == part])[:, 1]
    curve = curves(held_out, rows.correct, prices_of(None, 2))
    numbers = summaries(curve)
    wanted = 0.95 * rows.correct[:, 1].mean()
    threshold = float(curve.thresholds[np.argmax(curve.qualities[:, 0] >= wanted)])
    whole = models(np.arange(len(rows)))
    return {
        "format": 1,
        "name": name,
        **given,
        "source": f"{len(rows):,} rows of RouteLLM's published evaluations (Mixtral-8x7B, GPT-4). Held out by "
        f"groups of near duplicates: APGR {numbers.apgr[0]:.3f}, {numbers.at_quality[0]:.0%} of calls to the "
        "strong model for 95 % of its accuracy.",
        "tiers": ["small", "large"],
        "threshold": round(threshold, 4),
        "bias": [round(float(model.intercept_[0]), 4) for model in whole],
        "terms": {
            one: {
                "mean": round(float(mean[at]), 4),
                "deviation": round(float(deviation[at]), 4),
                "weights": [round(float(model.coef_[0][at]), 4) for model in whole],
            }
            for at, one in enumerate(chosen)
        },
    }


def starting(labels: Labels) -> None:
    """Write the two files that come from labels to the terminal."""
    assert labels.tasks is not None
    tasks = np.array(labels.tasks)
    factual = fitted(
        "factual",
        labels.take(np.flatnonzero(np.isin(tasks, FACTUAL))),
        FACTUAL_SIGNS,
        {
            "about": "Factual lookup: a short question for something that one knows or does not.",
            "applies": [[
                {"sign": "asks_what", "least": 1}, {"sign": "log_words", "most": 4.4},
                {"sign": "asks_writing", "most": 0}, {"sign": "code", "most": 0}, {"sign": "asks_why", "most": 0},
            ]],
        },
    )  # fmt: skip
    mathematics = fitted(
        "mathematics",
        labels.take(np.flatnonzero(tasks == "gsm8k")),
        MATHEMATICS_SIGNS,
        {
            "about": "Multi-step mathematics in words: amounts, rates and what becomes of them.",
            "applies": [
                [
                    {"sign": "log_stem_numbers", "least": 1.0}, {"sign": "asks_quantity", "least": 1},
                    {"sign": "asks_writing", "most": 0}, {"sign": "code", "most": 0},
                ],
                [
                    {"sign": "log_stem_numbers", "least": 1.3}, {"sign": "quantities", "least": 1.0},
                    {"sign": "questions", "least": 0.6}, {"sign": "asks_writing", "most": 0},
                    {"sign": "code", "most": 0},
                ],
            ],
        },
    )  # fmt: skip
    for file in (factual, mathematics):
        print(msgspec.json.format(msgspec.json.encode(file)).decode())


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("labels", type=Path)
    parser.add_argument("--policy", type=Path, action="append", default=[])
    parser.add_argument("--starting", action="store_true")
    parser.add_argument("--prompts", type=int, default=500)
    parser.add_argument("--threads", type=int, default=None)
    asked = parser.parse_args()
    labels = read_labels(asked.labels)
    if asked.starting:
        starting(labels)
        return
    random = np.random.default_rng(0)
    prompts = [labels.prompts[row] for row in random.permutation(len(labels))[: asked.prompts]]
    times = Table("policy", "CPU ms", "median ms", "95 % ms", box=None)
    hand = Table("policy", "family", "prompts", "as meant", "too small", "too large", "abstains", box=None)
    timed("starting", prompts, begin, times)
    by_hand("starting", begin, hand)
    for path in asked.policy:
        policy = Policy.load(path)
        spec = policy.header.embedding
        embedder = Embedder.of(spec, threads=asked.threads) if spec else None

        def decide(prompt: str, policy: Policy = policy, embedder: Embedder | None = embedder) -> Decision:
            return policy.decide(prompt, embedder)

        timed(path.name, prompts, decide, times)
        by_hand(path.name, decide, hand)
        if embedder is not None:
            embedder.close()
    console = Console()
    console.print(times)
    console.print()
    console.print(hand)


if __name__ == "__main__":
    main()
