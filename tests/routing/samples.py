"""Labels that are made up: what small and large can do depends on words, numbers and length. Knows no file format."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from octavo.routing.labels import Labels

__all__ = ["made_labels", "write_csv"]

EASY = ("river", "capital", "colour", "animal", "city", "flower", "dish", "song")
HARD = ("integral", "contract", "proof", "liability", "enzyme", "tensor", "treaty", "kernel")


def made_labels(rows: int, seed: int = 0) -> Labels:
    """Half of the prompts are easy; of the hard ones the small tier answers three in ten, and the large nine."""
    random = np.random.default_rng(seed)
    prompts, correct, tasks = [], [], []
    for _ in range(rows):
        hard = bool(random.random() < 0.5)
        words = [
            f"w{chr(97 + number % 20)}{number // 20}"
            for number in random.integers(0, 200, size=10 if hard else 6)
        ]
        words += random.choice(HARD if hard else EASY, size=3).tolist()
        prompts.append(f"What is {' '.join(random.permutation(words).tolist())}?")
        correct.append([random.random() < (0.3 if hard else 0.9), random.random() < 0.92])
        tasks.append("hard" if hard else "easy")
    return Labels(("small", "large"), tuple(prompts), np.array(correct), None, tuple(tasks))


def write_csv(path: Path, labels: Labels, *, costs: tuple[float, float] | None = None) -> Path:
    """The labels as a file."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        names = [f"{tier}_correct" for tier in labels.tiers]
        extra = [] if costs is None else [f"{tier}_cost" for tier in labels.tiers]
        writer.writerow(["task", "prompt", *names, *extra])
        for row, prompt in enumerate(labels.prompts):
            task = labels.tasks[row] if labels.tasks else ""
            writer.writerow([task, prompt, *labels.correct[row].astype(int).tolist(), *(costs or ())])
    return path
