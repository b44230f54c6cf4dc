"""A policy: a classifier, a threshold and where both come from, in one file. Knows files and decisions, no training.

The file is NumPy's `.npz`: arrays, and a header as JSON. It is read without pickle, so that a policy of somebody else
can do no more than decide badly. What it says of the prompts that it was trained on are hashes, so that `calibrate` and
`evaluate` can leave them out.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

import octavo
from octavo.errors import RoutingError
from octavo.routing.classifier import Classifier, Experts, Kernel, Linear, Scale, Space
from octavo.routing.curve import choose
from octavo.routing.embedding import EmbeddingSpec
from octavo.routing.forest import Forest
from octavo.routing.grams import BUCKETS, MET_BYTES
from octavo.routing.signs import SIGNS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from octavo.routing.embedding import Embedder

__all__ = ["Decision", "Header", "Policy", "prompt_hashes"]

FORMAT = 1
MAX_FILE_BYTES = 512 << 20
"""Of a policy, and of all that it unpacks to."""


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What stands beside the arrays."""

    format: int = FORMAT
    version: str = octavo.__version__
    tiers: tuple[str, ...]
    """The cheapest first."""
    prices: tuple[float, ...]
    """Of the tiers, brought to 0 … 1: a threshold is a price's exchange for a probability."""
    threshold: float
    target: str
    """What the threshold was chosen for, in words."""
    rows: int
    """How many labels it was trained on."""
    seed: int
    least_known: float
    gamma: float = 0.0
    depth: int
    forest_directions: int
    embedding: EmbeddingSpec | None = None
    scores: tuple[float, ...] = ()
    """Of some rows that it was trained on, held out: what drift is measured from."""


@dataclass(frozen=True)
class Decision:
    """Which tier answers, and why."""

    tier: str
    probabilities: dict[str, float]
    """That each tier's answer is right."""
    score: float
    """How much likelier the dearest tier is to be right than the cheapest."""
    threshold: float
    abstained: bool
    """The prompt is unlike all that was learnt from: the dearest tier answers."""
    reason: str


@dataclass(frozen=True)
class Policy:
    """Decides. Raises RoutingError where it is read or written badly."""

    header: Header
    classifier: Classifier
    seen: NDArray[np.uint64]
    """Hashes of the prompts that it was trained on, ascending."""

    def probabilities(
        self,
        texts: Sequence[str],
        embedder: Embedder | None = None,
        vectors: NDArray[np.float32] | None = None,
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """[texts, tiers], and which texts are too strange to tell [texts]. A policy with vectors needs an embedder, or
        the vectors."""
        if not self.classifier.needs_vectors:
            vectors = None
        elif vectors is None:
            if embedder is None:
                raise RoutingError("This policy was trained with an embedding, and none was given.")
            vectors = embedder.vectors(texts)
        return self.classifier(texts, vectors)

    def decide(self, text: str, embedder: Embedder | None = None, threshold: float | None = None) -> Decision:
        """The tier for one prompt. `threshold`: instead of the policy's own."""
        [probabilities], [strange] = self.probabilities([text], embedder)
        bound = self.header.threshold if threshold is None else threshold
        tiers, prices = self.header.tiers, np.array(self.header.prices)
        last = int(np.argmax(prices))
        score = float(probabilities[last] - probabilities[int(np.argmin(prices))])
        place = last if strange else int(choose(probabilities[None], prices, bound)[0])
        if strange:
            reason = f"abstains: too few of its words were learnt from, so {tiers[last]} answers"
        elif len(tiers) == 2:
            side = "above" if place == last else "not above"
            reason = f"{tiers[last]} is likelier right by {score:+.3f}, {side} the threshold {bound:+.3f}"
        else:
            reason = f"the most probability for its price at the threshold {bound:+.3f}"
        return Decision(
            tiers[place],
            dict(zip(tiers, probabilities.tolist(), strict=True)),
            score,
            bound,
            bool(strange),
            reason,
        )

    def with_threshold(self, threshold: float, target: str) -> Policy:
        """The same classifier with another threshold."""
        header = msgspec.structs.replace(self.header, threshold=float(threshold), target=target)
        return Policy(header, self.classifier, self.seen)

    def unseen(self, prompts: Sequence[str]) -> NDArray[np.int64]:
        """Which of these it was not trained on."""
        return np.flatnonzero(~np.isin(prompt_hashes(prompts), self.seen))

    def save(self, path: Path) -> None:
        """Write the file; it appears whole."""
        whole = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            with whole.open("wb") as file:
                arrays: dict[str, Any] = {
                    "header": _bytes(self.header),
                    "seen": self.seen,
                    **_arrays(self.classifier),
                }
                np.savez_compressed(file, allow_pickle=False, **arrays)
            whole.replace(path)
        except OSError as error:
            whole.unlink(missing_ok=True)
            raise RoutingError(f"The policy {path} cannot be written: {error.strerror}.") from None

    @classmethod
    def load(cls, path: Path) -> Policy:
        """Raises RoutingError for what is no policy, or is damaged."""
        try:
            raw = path.read_bytes()
        except OSError as error:
            raise RoutingError(f"The policy {path} cannot be read: {error.strerror}.") from None
        try:
            with zipfile.ZipFile(io.BytesIO(raw)) as archive:
                if sum(member.file_size for member in archive.infolist()) > MAX_FILE_BYTES:
                    raise ValueError(f"it unpacks to more than {MAX_FILE_BYTES >> 20} MiB")
            with np.load(io.BytesIO(raw), allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            header = msgspec.json.decode(arrays["header"].tobytes(), type=Header)
            if header.format != FORMAT:
                raise ValueError(f"it has format {header.format}, this version reads {FORMAT}")
            return cls(header, _classifier(header, arrays), arrays["seen"].astype(np.uint64))
        except KeyError as error:
            raise RoutingError(f"{path} is no policy: it has no {error.args[0]}.") from None
        except (ValueError, zipfile.BadZipFile, EOFError, OSError, msgspec.MsgspecError) as error:
            raise RoutingError(f"{path} is no policy: {error}; octavo route train makes one.") from None


def prompt_hashes(prompts: Sequence[str]) -> NDArray[np.uint64]:
    """[prompts]: of the words, whatever stands between them."""
    digests = [
        hashlib.blake2b(" ".join(re.findall(r"\w+", prompt.lower())).encode(), digest_size=8).digest()
        for prompt in prompts
    ]
    return np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64)


def _bytes(header: Header) -> NDArray[np.uint8]:
    return np.frombuffer(msgspec.json.encode(header), dtype=np.uint8)


def _arrays(made: Classifier) -> dict[str, NDArray[Any]]:
    experts = made.experts
    forest, linear = experts.forest, experts.linear
    found: dict[str, NDArray[Any]] = {
        "blend": made.blend,
        "blend_bias": made.bias,
        "sign_mean": experts.scale.mean,
        "sign_deviation": experts.scale.deviation,
        "rarity": linear.rarity,
        "word_weights": linear.weights,
        "sign_weights": linear.sign_weights,
        "bias": linear.bias,
        "met": linear.met,
        "roots": forest.roots,
        "feature": forest.feature,
        "bound": forest.bound,
        "left": forest.left,
        "right": forest.right,
        "values": forest.values,
    }
    if experts.space is not None and experts.kernel is not None:
        found |= {
            "vector_mean": experts.space.scale.mean,
            "vector_deviation": experts.space.scale.deviation,
            "directions": experts.space.directions,
            "landmarks": experts.kernel.landmarks,
            "landmark_weights": experts.kernel.weights,
            "landmark_bias": experts.kernel.bias,
        }
    return found


def _classifier(header: Header, arrays: dict[str, NDArray[Any]]) -> Classifier:
    """Raises ValueError where the arrays do not belong together, KeyError where one is missing."""
    tiers, count = len(header.tiers), len(SIGNS)
    if tiers < 2 or len(header.prices) != tiers or len(set(header.tiers)) != tiers:
        raise ValueError("its tiers and their prices do not belong together")
    if not np.isfinite([header.threshold, *header.prices]).all():
        raise ValueError("its threshold or its prices are no numbers")

    def take(name: str, *shape: int | None) -> NDArray[Any]:
        array = arrays[name]
        wanted = "×".join("…" if size is None else str(size) for size in shape)
        if array.ndim != len(shape) or any(
            size not in (None, own) for size, own in zip(shape, array.shape, strict=False)
        ):
            raise ValueError(f"its {name} is {'×'.join(map(str, array.shape))} instead of {wanted}")
        if array.dtype.kind not in "fiu" or (array.dtype.kind == "f" and not np.isfinite(array).all()):
            raise ValueError(f"its {name} has values that are no numbers")
        return array

    space = kernel = None
    features = count
    if header.embedding is not None:
        width = header.embedding.width
        directions = take("directions", width, None)
        kept = directions.shape[1]
        features += min(header.forest_directions, kept)
        space = Space(Scale(take("vector_mean", width), take("vector_deviation", width)), directions)
        landmarks = take("landmarks", None, kept + count)
        kernel = Kernel(
            landmarks,
            header.gamma,
            take("landmark_weights", len(landmarks), tiers),
            take("landmark_bias", tiers),
        )
    forest = Forest(
        take("roots", None),
        take("feature", None),
        take("bound", None),
        take("left", None),
        take("right", None),
        take("values", None, tiers),
        header.depth,
    )
    if not forest.fits(features, tiers):
        raise ValueError("its trees point outside of themselves")
    linear = Linear(
        take("rarity", BUCKETS),
        take("word_weights", BUCKETS, tiers),
        take("sign_weights", count, tiers),
        take("bias", tiers),
        take("met", MET_BYTES),
    )
    experts = Experts(
        Scale(take("sign_mean", count), take("sign_deviation", count)),
        linear,
        forest,
        header.forest_directions,
        space,
        kernel,
    )
    blend = take("blend", 2 if kernel is None else 3, tiers)
    return Classifier(experts, blend, take("blend_bias", tiers), header.least_known)
