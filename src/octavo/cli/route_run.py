"""What `octavo route` does and prints. Knows the terminal; the sums are in `routing/`."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table

from octavo.cli.route_tables import calibrated_table, lines_of, parts_table
from octavo.errors import InvalidParameter, RoutingError
from octavo.routing.calibration import Budget, for_budget, for_quality
from octavo.routing.curve import prices_of
from octavo.routing.duplicates import groups_of, split
from octavo.routing.embedding import Embedder
from octavo.routing.evaluation import Part, calibration_error, judged, plain_probabilities
from octavo.routing.labels import Labels, read_labels
from octavo.routing.policy import Decision, Header, Policy, prompt_hashes
from octavo.routing.starting import NAMES, Starting, begin, load, read

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

__all__ = [
    "Data",
    "Learning",
    "Target",
    "calibrate_policy",
    "decide_prompt",
    "evaluate_policy",
    "train_policy",
]

MAX_PROMPT_BYTES = 64 << 20


@dataclass(frozen=True)
class Data:
    """Which rows of which file."""

    path: Path
    tiers: str | None
    prompt: str
    task: str | None
    prices: str | None

    def read(self) -> tuple[Labels, NDArray[np.float64] | None]:
        """The rows, and the mean cost of each tier where it is known."""
        names = None
        if self.tiers is not None:
            names = [name.strip() for name in self.tiers.split(",") if name.strip()]
        labels = read_labels(self.path, tiers=names, prompt=self.prompt, task=self.task)
        if self.prices is not None:
            return labels, _prices(self.prices, labels.tiers)
        return labels, None if labels.costs is None else labels.costs.mean(axis=0)


@dataclass(frozen=True)
class Learning:
    """How a classifier is trained."""

    seed: int
    test_share: float
    embedding: str | None
    layers: int
    tokens: int


@dataclass(frozen=True)
class Target:
    """What a threshold is for."""

    quality: float | None
    budget: str | None
    requests_per_day: float | None
    careful: bool


def train_policy(data: Data, learning: Learning, quality: float, out: Path, *, json: bool) -> None:
    """`octavo route train`."""
    from octavo.routing.training import check_library, train

    check_library()
    if not out.absolute().parent.is_dir():
        raise RoutingError(f"--out is {out}, and there is no folder {out.absolute().parent}.")
    labels, costs = data.read()
    prices = prices_of(costs, len(labels.tiers))
    with _telling(json) as tell:
        tell("near duplicates")
        groups = groups_of(labels.prompts)
        inside = np.arange(len(labels))
        if learning.test_share > 0:
            inside, _ = split(groups, 1 - learning.test_share, learning.seed)
        mine = labels.take(inside)
        spec, vectors = None, None
        if learning.embedding is not None:
            with _embedder(learning) as embedder:
                vectors = embedder.vectors(mine.prompts, _counted(tell, len(mine)))
                spec = embedder.spec
        trained = train(mine, vectors, seed=learning.seed, groups=groups[inside], progress=tell)
    found = for_quality(trained.held_out, mine.correct, prices, groups[inside], quality, seed=learning.seed)
    experts = trained.classifier.experts
    header = Header(
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
        _print_json(
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
    with _telling(json) as tell:
        tell("near duplicates")
        groups = groups_of(labels.prompts)
        if policy is not None:
            runs = [_of_policy(Policy.load(policy), labels, groups, costs, quality, plain=plain, tell=tell)]
        else:
            runs = _of_splits(labels, groups, costs, learning, seeds, quality, plain=plain, tell=tell)
    if json:
        _print_json({"runs": runs})
        return
    console = Console()
    for run in runs:
        console.print(
            f"{run.title}; {run.strange:.1%} too strange to tell; probabilities are off by "
            + ", ".join(f"{off:.3f} ({tier})" for tier, off in run.off.items()) + " on average.",
            markup=False,
        )  # fmt: skip
        console.print(parts_table(run.parts, quality))
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


@dataclass(frozen=True)
class _Run:
    title: str
    strange: float
    off: dict[str, float]
    """By tier: the mean distance of probability and truth."""
    parts: list[Part]


Tell = Callable[[str], None]


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
    _check_tiers(policy, labels)
    rows = policy.unseen(labels.prompts)
    if not len(rows):
        raise RoutingError(
            "The policy was trained on every one of these rows, so none can say how good it is."
        )
    others = labels.take(np.setdiff1d(np.arange(len(labels)), rows))
    mine = labels.take(rows)
    probabilities, strange = _asked(policy, mine, tell)
    beside = None
    if plain and len(others) >= 100 and all(0 < share < 1 for share in others.correct.mean(axis=0)):
        tell("plain baseline")
        beside = plain_probabilities(others, mine.prompts)
    parts = judged(mine, probabilities, groups[rows], plain=beside, quality=quality, costs=costs)
    return _run(f"{len(mine):,} rows that the policy was not trained on", mine, probabilities, strange, parts)


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
        with _embedder(learning) as embedder:
            vectors = embedder.vectors(labels.prompts, _counted(tell, len(labels)))
    runs = []
    for seed in range(learning.seed, learning.seed + seeds):
        inside, outside = split(groups, 1 - learning.test_share, seed)
        mine, asked = labels.take(inside), labels.take(outside)
        told = _prefixed(tell, f"seed {seed}")
        trained = train(
            mine,
            None if vectors is None else vectors[inside],
            seed=seed,
            groups=groups[inside],
            progress=told,
        )
        probabilities, strange = trained.classifier(
            asked.prompts, None if vectors is None else vectors[outside]
        )
        told("plain baseline")
        beside = plain_probabilities(mine, asked.prompts) if plain else None
        parts = judged(asked, probabilities, groups[outside], plain=beside, quality=quality, costs=costs)
        title = f"seed {seed}: learnt from {len(mine):,} rows, tried on {len(asked):,}"
        runs.append(_run(title, asked, probabilities, strange, parts))
    return runs


def _run(
    title: str,
    asked: Labels,
    probabilities: NDArray[np.float64],
    strange: NDArray[np.bool_],
    parts: list[Part],
) -> _Run:
    off = calibration_error(probabilities, asked.correct).tolist()
    return _Run(title, float(strange.mean()), dict(zip(asked.tiers, off, strict=True)), parts)


def calibrate_policy(
    data: Data, path: Path, target: Target, seed: int, out: Path | None, *, json: bool
) -> None:
    """`octavo route calibrate`."""
    if (target.quality is None) == (target.budget is None):
        raise InvalidParameter("Give either --quality or --budget, so that there is one target.")
    if target.requests_per_day is not None and not 0 < target.requests_per_day < math.inf:
        raise InvalidParameter(f"--requests-per-day is {target.requests_per_day:g}; it must be above 0.")
    policy = Policy.load(path)
    labels, costs = data.read()
    _check_tiers(policy, labels)
    prices = np.array(policy.header.prices) if costs is None else prices_of(costs, len(labels.tiers))
    rows = policy.unseen(labels.prompts)
    mine = labels.take(rows)
    each = None
    if costs is not None:
        each = mine.costs if data.prices is None else np.broadcast_to(costs, mine.correct.shape)
    with _telling(json) as tell:
        probabilities, _ = _asked(policy, mine, tell) if len(mine) else (np.zeros(mine.correct.shape), None)
        tell("near duplicates")
        groups = groups_of(mine.prompts)
        tell("draws")
        if target.quality is not None:
            words = f"{target.quality:g} of the best tier's quality"
            found = for_quality(probabilities, mine.correct, prices, groups, target.quality, each, seed=seed)
        else:
            assert target.budget is not None
            if each is None:
                raise RoutingError(
                    f"--budget is '{target.budget}', and no price is known for tier '{labels.tiers[0]}'; give "
                    "--prices, or logs with a column that ends in _cost for each tier."
                )
            words = target.budget
            days = labels.days
            per_day = target.requests_per_day or (len(labels) / days if days else None)
            budget = Budget.parse(target.budget, per_day)
            found = for_budget(probabilities, mine.correct, prices, groups, budget, each, seed=seed)
    chosen = found.threshold.value
    if target.careful:  # more of the dearest tier is surer of quality, less of it is surer of the budget
        chosen = found.threshold.low if target.quality is not None else found.threshold.high
    if out is not None:
        header = msgspec.structs.replace(policy.header, prices=tuple(prices.tolist()))
        changed = Policy(header, policy.classifier, policy.seen)
        changed.with_threshold(chosen, f"{words}, on {len(mine):,} rows of logs").save(out)
    dropped = len(labels) - len(mine)
    if json:
        _print_json({"target": words, "threshold": chosen, "left_out": dropped, "calibrated": found})
        return
    console = Console()
    left = f"; {dropped:,} that it was trained on are left out" if dropped else ""
    console.print(f"{words}, on {len(mine):,} rows{left}:", markup=False)
    console.print(calibrated_table(found, labels.tiers, money=each is not None))
    console.print(
        f"threshold {chosen:+.4f}"
        + (f", written to {out}." if out is not None else "; --out FILE keeps it."),
        markup=False,
    )


def decide_prompt(prompt: str, policy: str, threshold: float | None, *, json: bool) -> None:
    """`octavo route decide`."""
    if prompt == "-":
        prompt = sys.stdin.buffer.read(MAX_PROMPT_BYTES).decode("utf-8", "replace")
    if not prompt.strip():
        raise InvalidParameter("The prompt is empty; there is nothing to decide.", "prompt")
    if threshold is not None and not math.isfinite(threshold):
        raise InvalidParameter(f"--threshold is {threshold}; it must be a number.", "--threshold")
    decided, took_ms = _decided(prompt, policy, threshold)
    if json:
        _print_json({"decision": decided, "took_ms": round(took_ms, 3)})
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


def _asked(policy: Policy, labels: Labels, tell: Tell) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    if policy.header.embedding is None:
        return policy.probabilities(labels.prompts)
    with Embedder.of(policy.header.embedding) as embedder:
        vectors = embedder.vectors(labels.prompts, _counted(tell, len(labels)))
    return policy.probabilities(labels.prompts, vectors=vectors)


def _check_tiers(policy: Policy, labels: Labels) -> None:
    if labels.tiers != policy.header.tiers:
        raise RoutingError(
            f"The rows have tiers {', '.join(labels.tiers)}, and the policy {', '.join(policy.header.tiers)}; name the "
            "same in the same order with --tiers."
        )


def _prices(text: str, tiers: tuple[str, ...]) -> NDArray[np.float64]:
    found: dict[str, float] = {}
    for piece in text.split(","):
        name, equals, value = piece.partition("=")
        try:
            price = float(value)
        except ValueError:
            price = math.nan
        if not equals or not 0 <= price < math.inf:
            raise RoutingError(f"--prices has '{piece.strip()}'; write NAME=MONEY, such as weak=0.0002.")
        found[name.strip()] = price
    unknown, missing = sorted(found.keys() - set(tiers)), [tier for tier in tiers if tier not in found]
    if unknown:
        raise RoutingError(f"--prices names the tier '{unknown[0]}'; the rows have {', '.join(tiers)}.")
    if missing:
        raise RoutingError(
            f"--prices has no price for tier '{missing[0]}'; an unknown price never counts as nothing."
        )
    return np.array([found[tier] for tier in tiers])


def _embedder(learning: Learning) -> Embedder:
    assert learning.embedding is not None
    return Embedder(learning.embedding, layers=learning.layers, tokens=learning.tokens)


@contextmanager
def _telling(json: bool) -> Iterator[Tell]:
    """What is done at the moment, on a terminal."""
    console = Console(stderr=True)
    if json or not console.is_terminal:
        yield lambda _: None
        return
    with console.status("reading") as status:
        yield status.update


def _counted(tell: Tell, total: int) -> Callable[[int], None]:
    return lambda done: tell(f"embedding {done:,} of {total:,}")


def _prefixed(tell: Tell, prefix: str) -> Tell:
    return lambda text: tell(f"{prefix}: {text}")


def _spread(values: list[float]) -> str:
    if not values:
        return "–"
    return f"{np.mean(values):.3f} ({np.std(values):.3f})"


def _print_json(value: Any) -> None:
    print(msgspec.json.format(msgspec.json.encode(value, enc_hook=_plain)).decode())


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(type(value))
