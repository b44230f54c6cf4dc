"""What is learnt, saved, read again and decided."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from octavo.errors import RoutingError
from octavo.routing.classifier import Classifier
from octavo.routing.duplicates import groups_of
from octavo.routing.embedding import Embedder, EmbeddingSpec
from octavo.routing.evaluation import calibration_error, families, judged, plain_probabilities
from octavo.routing.policy import Header, Policy, prompt_hashes
from octavo.routing.training import Trained, _blend, train
from tests.routing.samples import made_labels

LABELS = made_labels(300)


@pytest.fixture(scope="module")
def trained() -> Trained:
    return train(LABELS, seed=1)


def policy_of(classifier: Classifier, spec: EmbeddingSpec | None = None) -> Policy:
    experts = classifier.experts
    header = Header(
        tiers=LABELS.tiers,
        prices=(0.0, 1.0),
        threshold=0.2,
        target="a test",
        rows=len(LABELS),
        seed=1,
        least_known=classifier.least_known,
        gamma=experts.kernel.gamma if experts.kernel else 0.0,
        depth=experts.forest.depth,
        forest_directions=experts.forest_directions,
        embedding=spec,
    )
    return Policy(header, classifier, np.unique(prompt_hashes(LABELS.prompts)))


@pytest.mark.slow
def test_what_is_learnt_holds_for_rows_that_were_not_seen(trained: Trained) -> None:
    asked = made_labels(1000, seed=9)
    probabilities, strange = trained.classifier(asked.prompts)
    assert strange.mean() < 0.05
    assert calibration_error(probabilities, asked.correct).max() < 0.12
    parts = judged(
        asked, probabilities, groups_of(asked.prompts), plain=plain_probabilities(LABELS, asked.prompts)
    )
    whole = parts[0]
    assert [part.name for part in parts] == ["all", "easy", "hard"]
    assert whole.router.apgr.value > 0.6 and whole.gain_over_random.low > 0
    assert whole.router.at_quality.value < whole.random_at_quality
    assert whole.oracle.at_quality.value < whole.router.at_quality.value
    assert whole.plain is not None and whole.gain_over_plain is not None


@pytest.mark.slow
def test_the_same_seed_learns_the_same(trained: Trained) -> None:
    again = train(LABELS, seed=1)
    assert np.array_equal(again.held_out, trained.held_out)


@pytest.mark.slow
def test_a_saved_policy_decides_alike_and_without_scikit_learn(trained: Trained, tmp_path: Path) -> None:
    policy = policy_of(trained.classifier)
    path = tmp_path / "policy.npz"
    policy.save(path)
    again = Policy.load(path)
    for prompt in LABELS.prompts[:20]:
        assert again.decide(prompt) == policy.decide(prompt)
    assert not len(again.unseen([prompt.replace(" ", "  ").upper() for prompt in LABELS.prompts]))
    assert again.unseen(["new", LABELS.prompts[0]]).tolist() == [0]
    script = (
        "import sys; from pathlib import Path; from octavo.routing.policy import Policy; "
        f"Policy.load(Path({str(path)!r})).decide('what is the integral of contract and proof?'); "
        "print(*(name for name in ('sklearn', 'scipy') if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == ""


@pytest.mark.slow
def test_a_strange_prompt_goes_to_the_dearest_tier(trained: Trained) -> None:
    policy = policy_of(trained.classifier)
    hard = policy.decide("What is wa1 integral wb2 wc3 contract wd4 we5 proof wf6 wg7 wh8 wi9?")
    easy = policy.decide("What is wa1 river wb2 capital wc3 colour wd4?")
    assert hard.tier == "large" and easy.tier == "small" and not easy.abstained
    assert policy.decide("What is wa1 integral wb2 proof wc3?", threshold=1.0).tier == "small"
    strange = policy.decide("Quelle heure est-il chez vous, madame ?")
    assert strange.abstained and strange.tier == "large" and "abstains" in strange.reason


@pytest.mark.slow
def test_damaged_policies_are_one_sentence(trained: Trained, tmp_path: Path) -> None:
    path = tmp_path / "policy.npz"
    policy = policy_of(trained.classifier)
    policy.save(path)
    raw = path.read_bytes()
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    changes = {
        "right": arrays["right"] + len(arrays["right"]),
        "word_weights": arrays["word_weights"][:-1],
        "bias": arrays["bias"] * np.nan,
        "header": np.frombuffer(b"{}", dtype=np.uint8),
        "values": np.array([{}, {}], dtype=object),
    }
    for name, value in changes.items():
        np.savez(path, **{**arrays, name: value})
        with pytest.raises(RoutingError, match="is no policy"):
            Policy.load(path)
    for bad in (raw[: len(raw) // 2], b"", b"hello"):
        path.write_bytes(bad)
        with pytest.raises(RoutingError, match="is no policy"):
            Policy.load(path)
    del arrays["met"]
    np.savez(path, **arrays)
    with pytest.raises(RoutingError, match="it has no met"):
        Policy.load(path)
    with pytest.raises(RoutingError, match="cannot be read"):
        Policy.load(tmp_path / "none.npz")
    with pytest.raises(RoutingError, match="cannot be written"):
        policy.save(tmp_path / "none" / "policy.npz")


@pytest.mark.slow
def test_an_embedding_is_the_same_alone_and_among_others(model_path: Path, tmp_path: Path) -> None:
    texts = [*LABELS.prompts[:40], "long " * 500, "?"]
    with Embedder(str(model_path), layers=2, tokens=64) as embedder:
        together = embedder.vectors(texts)
        for place in (0, 17, 40, 41):
            assert np.array_equal(embedder.vectors([texts[place]])[0], together[place])
        vectors = embedder.vectors(LABELS.prompts)
        learnt = train(LABELS, vectors, seed=0)
        policy = policy_of(learnt.classifier, embedder.spec)
        policy.save(tmp_path / "p.npz")
        again = Policy.load(tmp_path / "p.npz")
        assert again.decide(texts[3], embedder) == policy.decide(texts[3], embedder)
        with pytest.raises(RoutingError, match="none was given"):
            again.decide(texts[3])
        with pytest.raises(RoutingError, match="trained with another"):
            Embedder.of(msgspec.structs.replace(embedder.spec, weights_hash="0" * 64))
    with pytest.raises(RoutingError, match="embedding layers are 99"):
        Embedder(str(model_path), layers=99)


@pytest.mark.slow
def test_an_expert_that_is_wrong_does_not_count() -> None:
    random = np.random.default_rng(0)
    right = random.random((400, 2)) < 0.7
    odds = np.stack([np.where(right, 1.0, -1.0), np.where(right, -1.0, 1.0)], axis=1)
    weights, bias = _blend(odds + random.normal(size=odds.shape), right)
    assert (weights[0] > 0.5).all() and (weights[1] == 0).all()
    weights, bias = _blend(odds[:, 1:] + random.normal(size=(400, 1, 2)), right)
    assert (weights == 0).all() and np.allclose(1 / (1 + np.exp(-bias)), right.mean(axis=0))


def test_too_few_labels_are_refused() -> None:
    with pytest.raises(RoutingError, match="50 rows are left for training"):
        train(made_labels(50))
    sure = replace(LABELS, correct=np.ones_like(LABELS.correct))
    sure.correct[:5] = False
    with pytest.raises(RoutingError, match="Tier 'small' is wrong in 5 of 300 rows"):
        train(sure)


def test_many_tasks_are_told_by_family() -> None:
    assert families(["a_b", "c"]) == ["a_b", "c"]
    assert set(families([f"mmlu_{n}" for n in range(20)] + ["gsm8k"])) == {"mmlu", "gsm8k"}
