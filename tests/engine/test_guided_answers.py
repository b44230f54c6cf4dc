"""Promise 1 for answers with a grammar, on the real backends: the same tokens and log-probabilities, bit for bit,
whatever else runs, however the prompt is cut, preempted or not, with every drafter, and after a restart."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import msgspec
import pytest

from octavo.engine.messages import Add
from octavo.models.store import open_model
from octavo.sampling.grammar import Grammar
from octavo.text.vocabulary import Vocabulary
from tests.engine import test_one_answer
from tests.engine.test_one_answer import Answers, Runner
from tests.fakes import request


@pytest.fixture(scope="module", params=["native", "reference", pytest.param("model", marks=pytest.mark.slow)])
def runner(request: pytest.FixtureRequest) -> Runner:
    """The tiny model on both backends; the default model."""
    if request.param == "model":
        return Runner("native", request.getfixturevalue("model_dir"), 49152)
    packed = request.param == "native"
    tiny = open_model(request.getfixturevalue("tiny_model_path"), packed=packed)
    return Runner(request.param, tiny.dir, tiny.spec.vocab_size)


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "kinds": {"type": "array", "items": {"enum": ["small", "large", "other"]}, "maxItems": 3},
    },
    "required": ["name", "count", "kinds"],
    "additionalProperties": False,
}
GRAMMARS = {
    "json": Grammar.json(SCHEMA),
    "regex": Grammar("regex", "[a-z ]{4,9}(: [a-z ]{1,9}){0,2}"),
    "choice": Grammar.choice(["yes", "no", "perhaps, but not today"]),
    "gbnf": Grammar("gbnf", 'root ::= ("the " [a-z]+ " "){1,3} "end"\n'),
}
SAMPLED: dict[str, Any] = {
    "temperature": 1.0,
    "top_p": 0.95,
    "repetition_penalty": 1.1,
    "logit_bias": {30: 2.0},
}


@pytest.fixture(scope="module")
def adds(runner: Runner) -> list[Add]:
    """With grammars, greedy and sampled, over beginnings that they share; two without."""
    prompts = [[(7 * token + shift) % runner.ids for token in range(35 + 9 * shift)] for shift in range(2)]
    guided = [
        request(
            f"{kind}{number}{how}", prompt, grammar=grammar, max_tokens=64, logprobs=2, seed=number, **params
        )
        for number, prompt in enumerate(prompts)
        for kind, grammar in GRAMMARS.items()
        for how, params in (("greedy", {"temperature": 0.0}), ("sampled", SAMPLED))
    ]
    free = [
        request(f"free{number}", prompt, max_tokens=12, logprobs=0) for number, prompt in enumerate(prompts)
    ]
    return [*guided, *free]


@pytest.fixture(scope="module")
def alone(runner: Runner, adds: list[Add]) -> Answers:
    """Each on an engine where nothing else runs."""
    engine = runner.engine(max_running=1, prefix_cache=False, speculation="off")
    answers: Answers = {}
    for add in adds:
        answers |= test_one_answer.answers_of(engine, add)
    engine.close()
    return answers


def test_what_is_whole_is_valid(runner: Runner, alone: Answers) -> None:
    vocabulary = vocabulary_of(runner)
    whole = 0
    for (name, _), samples in alone.items():
        said = vocabulary.join([sample.token for sample in samples]).decode(errors="replace")
        if name.startswith("json") and len(samples) < 64:
            jsonschema.validate(json.loads(said), SCHEMA)
            whole += 1
        if name.startswith("choice"):
            assert said in ("yes", "no", "perhaps, but not today")
    assert whole > 1


def vocabulary_of(runner: Runner) -> Vocabulary:
    return Vocabulary.load(runner.folder / "vocabulary.bin")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"budget_tokens": 7},
        {"num_blocks": 18, "max_model_len": 110},
        {"threads": 1, "policy": "prefill-first"},
        {"speculation": "ngram"},
        {"speculation": "suffix", "speculation_tokens": 4},
        {"speculation": "auto", "speculation_tokens": 8, "budget_tokens": 24},
    ],
    ids=str,
)
def test_the_same_among_others(
    runner: Runner, adds: list[Add], alone: Answers, changes: dict[str, Any]
) -> None:
    answers, stats = runner(*adds, **{"speculation": "off", **changes})
    assert answers == alone
    assert bool(stats.preemptions) is ("num_blocks" in changes)
    assert bool(stats.accepted_tokens) is ("speculation" in changes)


def test_with_a_draft_model(runner: Runner, adds: list[Add], alone: Answers) -> None:
    """It guesses without the grammars: what they forbid is cut off."""
    answers, stats = runner(*adds, speculation=f"draft:{runner.folder}", speculation_tokens=3)
    assert answers == alone and stats.accepted_tokens > 0


def test_with_drafts_of_any_kind(runner: Runner, adds: list[Add], alone: Answers) -> None:
    known = {name: [sample.token for sample in samples] for name, samples in alone.items()}
    answers, stats = runner(*adds, drafts=known)
    assert answers == alone and stats.draft_tokens > stats.accepted_tokens > 50


def test_with_a_warm_prefix_cache(runner: Runner, adds: list[Add], alone: Answers) -> None:
    engine = runner.engine()
    for _ in range(2):
        assert test_one_answer.answers_of(engine, *adds) == alone
    assert engine.stats().prefix_hit_tokens > 0
    engine.close()


def test_three_children_are_three_seeds_alone(runner: Runner, adds: list[Add], alone: Answers) -> None:
    add = next(one for one in adds if one.request_id == "json1sampled")
    together, _ = runner(
        msgspec.structs.replace(add, params=msgspec.structs.replace(add.params, n=3)), *adds[:4]
    )
    assert together[add.request_id, 0] == alone[add.request_id, 0]
    for child in range(1, 3):
        params = msgspec.structs.replace(add.params, seed=1 + child)
        single, _ = runner(msgspec.structs.replace(add, params=params))
        assert together[add.request_id, child] == single[add.request_id, 0]


def test_resumed_in_the_middle(runner: Runner, adds: list[Add], alone: Answers) -> None:
    for cut in (1, 8):
        resumed = [
            msgspec.structs.replace(add, outputs=(tuple(s.token for s in alone[add.request_id, 0][:cut]),))
            for add in adds
            if len(alone[add.request_id, 0]) > cut
        ]
        answers, _ = runner(*resumed)
        assert answers == {(add.request_id, 0): alone[add.request_id, 0][cut:] for add in resumed}


def test_at_depth_one(runner: Runner, adds: list[Add], alone: Answers) -> None:
    if runner.backend == "native":
        pytest.skip("native computes at once: its depth is 0")
    assert runner(*adds, depth=1)[0] == alone
