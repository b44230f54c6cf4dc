"""`octavo route train`, `evaluate` and `decide`: what they do and print. Knows the terminal, and no sums."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
from rich.console import Console
from rich.table import Table

from octavo.cli.route_data import (
    Data,
    Learning,
    Tell,
    asked,
    check_tiers,
    counted,
    embedder_of,
    prefixed,
    print_json,
    telling,
)
from octavo.cli.route_tables import calibrated_table, lines_of, parts_table
from octavo.errors import InvalidParameter, RoutingError
from octavo.routing.calibration import for_quality
from octavo.routing.curve import prices_of
from octavo.routing.duplicates import groups_of, split
from octavo.routing.embedding import Embedder
from octavo.routing.evaluation import Kept, Part, calibration_error, judged, kept_by, plain_probabilities
from octavo.routing.labels import Labels
from octavo.routing.policy import Decision, Header, Policy, prompt_hashes
from octavo.routing.starting import NAMES, Starting, begin, load, read

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "decide_prompt",
    "evaluate_policy",
    "train_policy",
]

MAX_PROMPT_BYTES = 64 << 20


def train_policy(data: Data, learning: Learning, quality: float, out: Path, *, json: bool) -> None:
    """`octavo route train`."""
    from octavo.routing.training import LEAST_ROWS, check_library, train

    check_library()
    if not out.absolute().parent.is_dir():
        raise RoutingError(f"--out is {out}, and there is no folder {out.absolute().parent}.")
    labels, costs = data.read()
    prices = prices_of(costs, len(labels.tiers))
    with telling(json) as tell:
        tell("near duplicates")
        groups = groups_of(labels.prompts)
        inside = np.arange(len(labels))
        if learning.test_share > 0:
            inside, _ = split(groups, 1 - learning.test_share, learning.seed)
        mine = labels.take(inside)
        if len(mine) < min(LEAST_ROWS, len(labels)):
            raise RoutingError(
                f"{len(mine):,} rows are left for training, of {len(labels):,}: it needs {LEAST_ROWS} or more. "
                f"--test-share {learning.test_share:g} keeps the others for the test, near duplicates together; give "
                "more prompts, or a smaller share."
            )
        spec, vectors = None, None
        if learning.embedding is not None:
            with embedder_of(learning) as embedder:
                vectors = embedder.vectors(mine.prompts, counted(tell, len(mine)))
                spec = embedder.spec
        trained = train(mine, vectors, seed=learning.seed, groups=groups[inside], progress=tell)
    found = for_quality(trained.held_out, mine.correct, prices, groups[inside], quality, seed=learning.seed)
    experts = trained.classifier.experts
    odds = trained.held_out[:, int(np.argmax(prices))] - trained.held_out[:, int(np.argmin(prices))]
    some = np.random.default_rng(learning.seed).permutation(len(odds))[:SCORES_KEPT]
    header = Header(
        scores=tuple(odds[some].round(4).tolist()),
        tiers=mine.tiers,
        prices=tuple(prices.tolist()),
        threshold=found.threshold.value,
        target=f"{quality:g} of the best tier's quality, on held-out training rows",
        rows=len(mine),
        seed=learning.seed,
        least_known=trained.classifier.least_known,
        gamma=experts.kernel.gamma if experts.kernel else 0.0,
        depth=experts.forest.depth,
        forest_directions=experts.forest_directions,
        embedding=spec,
    )
    Policy(header, trained.classifier, np.unique(prompt_hashes(mine.prompts))).save(out)
    if json:
        print_json(
            {"policy": str(out), "rows": len(mine), "left_for_test": len(labels) - len(mine), "tiers": mine.tiers,
             "calibrated": found}
        )  # fmt: skip
        return
    console = Console()
    console.print(
        f"{out}: tiers {', '.join(mine.tiers)}; learnt from {len(mine):,} prompts, {len(labels) - len(mine):,} left "
        "for the test.",
        markup=False,
    )
    console.print(f"Held out in turn, they give for {quality:g} of the best tier's quality:", markup=False)
    console.print(calibrated_table(found, mine.tiers))


def evaluate_policy(
    data: Data,
    learning: Learning,
    policy: Path | None,
    seeds: int,
    quality: float,
    *,
    plain: bool,
    json: bool,
) -> None:
    """`octavo route evaluate`."""
    labels, costs = data.read()
    with telling(json) as tell:
        tell("near duplicates")
        groups = groups_of(labels.prompts)
        if policy is not None:
            runs = [_of_policy(Policy.load(policy), labels, groups, costs, quality, plain=plain, tell=tell)]
        else:
            runs = _of_splits(labels, groups, costs, learning, seeds, quality, plain=plain, tell=tell)
    if json:
        print_json({"runs": runs})
        return
    console = Console()
    for run in runs:
        console.print(
            f"{run.title}; {run.strange:.1%} too strange to tell; probabilities are off by "
            + ", ".join(f"{off:.3f} ({tier})" for tier, off in run.off.items()) + " on average.",
            markup=False,
        )  # fmt: skip
        console.print(parts_table(run.parts, quality))
        console.print(
            f"At the threshold {run.kept.threshold:+.4f}, which was chosen beforehand: {run.kept.of_best:.3f} of the "
            f"best tier's quality, with {run.kept.dearest_share:.3f} sent to the dearest.",
            markup=False,
        )
        for line in (line for part in run.parts for line in lines_of(part)):
            console.print(line, markup=False)
    if len(runs) > 1:
        console.print(f"Means of {len(runs)} splits (what they differ by):", markup=False)
        table = Table("", "router", "plain TF-IDF", box=None, pad_edge=False)
        for name, label in (("apgr", "APGR"), ("cpt50", "CPT 50 %"), ("cpt80", "CPT 80 %"),
                            ("at_quality", f"cost share at {quality:g}")):  # fmt: skip
            own = [getattr(run.parts[0].router, name).value for run in runs]
            other = [getattr(run.parts[0].plain, name).value for run in runs if run.parts[0].plain]
            table.add_row(label, *(_spread(values) for values in (own, other)))
        console.print(table)


SCORES_KEPT = 1000
"""Of the held-out rows, in a policy: drift is measured from them."""


@dataclass(frozen=True)
class _Run:
    title: str
    strange: float
    kept: Kept
    """What the threshold that was chosen beforehand brings here."""
    off: dict[str, float]
    """By tier: the mean distance of probability and truth."""
    parts: list[Part]


def _of_policy(
    policy: Policy,
    labels: Labels,
    groups: NDArray[np.int64],
    costs: NDArray[np.float64] | None,
    quality: float,
    *,
    plain: bool,
    tell: Tell,
) -> _Run:
    check_tiers(policy, labels)
    rows = policy.unseen(labels.prompts)
    if not len(rows):
        raise RoutingError(
            "The policy was trained on every one of these rows, so none can say how good it is."
        )
    others = labels.take(np.setdiff1d(np.arange(len(labels)), rows))
    mine = labels.take(rows)
    probabilities, strange = asked(policy, mine, tell)
    beside = None
    if plain and len(others) >= 100 and all(0 < share < 1 for share in others.correct.mean(axis=0)):
        tell("plain baseline")
        beside = plain_probabilities(others, mine.prompts)
    parts = judged(mine, probabilities, groups[rows], plain=beside, quality=quality, costs=costs)
    kept = kept_by(probabilities, mine.correct, np.array(policy.header.prices), policy.header.threshold)
    return _run(
        f"{len(mine):,} rows that the policy was not trained on", mine, probabilities, strange, parts, kept
    )


def _of_splits(
    labels: Labels,
    groups: NDArray[np.int64],
    costs: NDArray[np.float64] | None,
    learning: Learning,
    seeds: int,
    quality: float,
    *,
    plain: bool,
    tell: Tell,
) -> list[_Run]:
    from octavo.routing.training import check_library, train

    check_library()
    vectors = None
    if learning.embedding is not None:
        with embedder_of(learning) as embedder:
            vectors = embedder.vectors(labels.prompts, counted(tell, len(labels)))
    runs = []
    for seed in range(learning.seed, learning.seed + seeds):
        inside, outside = split(groups, 1 - learning.test_share, seed)
        mine, tried = labels.take(inside), labels.take(outside)
        told = prefixed(tell, f"seed {seed}")
        trained = train(
            mine,
            None if vectors is None else vectors[inside],
            seed=seed,
            groups=groups[inside],
            progress=told,
        )
        probabilities, strange = trained.classifier(
            tried.prompts, None if vectors is None else vectors[outside]
        )
        told("plain baseline")
        beside = plain_probabilities(mine, tried.prompts) if plain else None
        parts = judged(tried, probabilities, groups[outside], plain=beside, quality=quality, costs=costs)
        title = f"seed {seed}: learnt from {len(mine):,} rows, tried on {len(tried):,}"
        prices = prices_of(costs, len(labels.tiers))
        first = for_quality(trained.held_out, mine.correct, prices, groups[inside], quality, seed=seed)
        kept = kept_by(probabilities, tried.correct, prices, first.threshold.value)
        runs.append(_run(title, tried, probabilities, strange, parts, kept))
    return runs


def _run(
    title: str,
    tried: Labels,
    probabilities: NDArray[np.float64],
    strange: NDArray[np.bool_],
    parts: list[Part],
    kept: Kept,
) -> _Run:
    off = calibration_error(probabilities, tried.correct).tolist()
    return _Run(title, float(strange.mean()), kept, dict(zip(tried.tiers, off, strict=True)), parts)


def _read(stream: BinaryIO) -> str:
    """As much of a prompt as is looked at. Raises InvalidParameter for what is no text."""
    data = stream.read(MAX_PROMPT_BYTES)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        if len(data) == MAX_PROMPT_BYTES and error.end == len(data):  # a letter is cut in two
            return data[: error.start].decode()
        raise InvalidParameter(
            f"The prompt is no UTF-8 text (its byte {error.start} is 0x{data[error.start]:02x}); convert it first.",
            "prompt",
        ) from None


def decide_prompt(prompt: str, policy: str, threshold: float | None, *, json: bool) -> None:
    """`octavo route decide`."""
    if prompt == "-":
        prompt = _read(sys.stdin.buffer)
    if not prompt.strip():
        raise InvalidParameter("The prompt is empty; there is nothing to decide.", "prompt")
    if threshold is not None and not math.isfinite(threshold):
        raise InvalidParameter(f"--threshold is {threshold}; it must be a number.", "--threshold")
    decided, took_ms = _decided(prompt, policy, threshold)
    if json:
        print_json({"decision": decided, "took_ms": round(took_ms, 3)})
        return
    console = Console()
    console.print(f"{decided.tier}: {decided.reason}.", markup=False)
    for tier, share in decided.probabilities.items():
        console.print(f"  {tier}: right with a probability of {share:.3f}", markup=False)
    console.print(f"decided in {took_ms:.1f} ms", markup=False)


def _decided(prompt: str, policy: str, threshold: float | None) -> tuple[Decision, float]:
    if policy == "starting" or policy in NAMES or policy.endswith(".json"):
        one: Starting | None = None
        if policy != "starting":
            one = load(policy) if policy in NAMES else read(Path(policy))
        else:
            load(NAMES[0])
        return _timed(lambda: begin(prompt, threshold) if one is None else one.decide(prompt, threshold))
    if not Path(policy).exists():
        raise RoutingError(
            f"--policy is '{policy}', which is no file and none of starting, {', '.join(NAMES)}."
        )
    made = Policy.load(Path(policy))
    if made.header.embedding is None:
        return _timed(lambda: made.decide(prompt, None, threshold))
    with Embedder.of(made.header.embedding) as embedder:
        embedder.vectors(["warm"])
        return _timed(lambda: made.decide(prompt, embedder, threshold))


def _timed(call: Callable[[], Decision]) -> tuple[Decision, float]:
    """The second of two: the first pays for what is loaded once."""
    call()
    began = time.perf_counter()
    return call(), 1e3 * (time.perf_counter() - began)


def _spread(values: list[float]) -> str:
    if not values:
        return "–"
    return f"{np.mean(values):.3f} ({np.std(values):.3f})"
