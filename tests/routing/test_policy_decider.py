"""Policies as deciders of a gateway: their tiers' names, what they say, and what happens where they fail."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from octavo.errors import RoutingError, ServerError, SettingsError
from octavo.routing.policy import Decision
from octavo.routing.policy_decider import PolicyDecider
from octavo.routing.starting import begin
from tests.routing.gateways import Stage, asked, played, tiers_of, whole

URLS = {"small": "http://127.0.0.1:1", "large": "http://127.0.0.1:2"}
ESSAY = "I wrote this essay about my town. Please review my thesis and give me feedback on the argument."


def decider(tmp_path: Path, text: str) -> PolicyDecider:
    return PolicyDecider.of(tiers_of(tmp_path, URLS, rules=f"[decider]\n{text}\n"), tmp_path)


def test_the_starting_policies_decide_and_say_why(tmp_path: Path) -> None:
    one = decider(tmp_path, 'policy = "starting"')
    for prompt in (ESSAY, "What is the capital of Peru?", "Tell me a joke."):
        found, verdict = begin(prompt), asyncio.run(one.decide(prompt))
        assert (verdict.tier, verdict.reason) == (found.tier, found.reason)
        assert verdict.score == (found.score if found.probabilities else None)


def test_a_threshold_moves_the_decision_and_names_may_differ(tmp_path: Path) -> None:
    low = decider(tmp_path, 'policy = "essay"\nthreshold = -2\ntiers = { large = "small", small = "large" }')
    high = decider(tmp_path, 'policy = "essay"\nthreshold = 2')
    assert asyncio.run(low.decide(ESSAY)).tier == "small"  # our name for the policy's large one
    assert asyncio.run(high.decide(ESSAY)).tier == "small"


def test_no_text_is_not_guessed_at(tmp_path: Path) -> None:
    verdict = asyncio.run(decider(tmp_path, 'policy = "essay"').decide(" "))
    assert (verdict.tier, verdict.score) == ("small", None)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('policy = "esay.npz"', "'esay.npz', which is no file and none of starting, mathematics"),
        ('policy = "none.json"', "none.json cannot be read"),
        ('policy = "tiers.toml"', "tiers.toml is no policy"),
        (
            'policy = "essay"\ntiers = { weak = "small" }',
            "tiers has 'weak', which the policy essay does not know",
        ),
    ],
)
def test_faults(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises((SettingsError, RoutingError), match=sentence):
        decider(tmp_path, text)


def test_a_policy_for_other_tiers_asks_which_are_meant(tmp_path: Path) -> None:
    tiers = tiers_of(tmp_path, {"cheap": URLS["small"]}, rules='[decider]\npolicy = "essay"\n')
    with pytest.raises(
        SettingsError, match=r"decides for 'small', which is no tier here; .* \{ small = 'cheap' \}"
    ):
        PolicyDecider.of(tiers, tmp_path)


def test_one_that_takes_its_time_is_asked_in_a_thread_and_may_fail() -> None:
    def decide(prompt: str) -> Decision:
        if prompt == "fail":
            raise ServerError("no vector")
        return Decision("b", {"b": 1.0}, 0.5, 0.0, False, threading.current_thread().name)

    one = PolicyDecider(decide, {"b": "large"}, "small", apart=True)
    verdict = asyncio.run(one.decide("x"))
    assert verdict.tier == "large"
    assert verdict.reason.startswith("octavo-decider")
    verdict = asyncio.run(one.decide("fail"))
    assert (verdict.tier, verdict.reason) == ("small", "default tier: the decider failed")


def test_a_gateway_says_the_score(tmp_path: Path) -> None:
    async def use(stage: Stage) -> dict[str, str]:
        return (await stage.ask(asked(ESSAY)))[1].headers()

    headers = played(
        {"small": whole(), "large": whole()},
        use,
        tmp_path,
        decider=decider(tmp_path, 'policy = "essay"'),
    )
    found = begin(ESSAY)
    assert headers["x-octavo-tier"] == found.tier
    assert float(headers["x-octavo-score"]) == pytest.approx(found.score, rel=1e-3)
    assert headers["x-octavo-reason"].startswith("starting policy 'essay': ")
