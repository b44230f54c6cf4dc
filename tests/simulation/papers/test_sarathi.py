"""Sarathi-Serve's experiment: what a prompt takes alone, and when a rate counts as held."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from octavo.simulation.papers.sarathi import DATA, MISTRAL, YI, Limit, holds, prompt_s, system, workload
from octavo.simulation.papers.trial import holding
from octavo.timing.step_time import StepLoad


@dataclass
class Measured:
    """Of a run: what `holds` looks at."""

    values: dict[str, float]

    def value(self, name: str) -> float:
        return self.values[name]


@pytest.mark.parametrize(
    ("gap_s", "ttft_s", "good"), [(0.1, 2.5, True), (0.101, 0.6, False), (0.05, 2.51, False)]
)
def test_a_rate_holds_within_the_gap_and_the_delay(gap_s: float, ttft_s: float, good: bool) -> None:
    """A prompt that takes 0.5 s alone may have its first token after 2.5 s."""
    done = Measured({"itl_p99": gap_s, "ttft_intended_p50": ttft_s})
    limit = Limit(name="strict", tbt_s=0.1, budget=512)
    assert holds(done, limit, 0.5) is good  # type: ignore[arg-type]


def test_a_prompt_alone_takes_its_chunks_one_after_another() -> None:
    pace = system("Sarathi-Serve", MISTRAL, DATA["openchat_sharegpt4"], MISTRAL.limits[0]).pace()
    steps = [
        StepLoad().with_chunk(0, 512, 0),
        StepLoad().with_chunk(512, 512, 0),
        StepLoad().with_chunk(1024, 76, 1),
    ]
    assert prompt_s(pace, 1100, 512) == pytest.approx(sum(pace.seconds(one) for one in steps))
    assert prompt_s(pace, 1100, 4096) < prompt_s(pace, 1100, 512)


@pytest.mark.parametrize("limit", MISTRAL.limits, ids=lambda one: one.name)
def test_systems_differ_in_policy_budget_and_sequences_as_in_the_authors_files(limit: Limit) -> None:
    data = DATA["arxiv_summarization"]
    made = {name: system(name, MISTRAL, data, limit).settings for name in ("vLLM", "Orca", "Sarathi-Serve")}
    assert {name: one.policy for name, one in made.items()} == {
        "vLLM": "prefill-first", "Orca": "continuous", "Sarathi-Serve": "stall-free",
    }  # fmt: skip
    assert [one.limits.max_slots for one in made.values()] == [128, 16, 128]
    assert made["Sarathi-Serve"].budget_tokens == limit.budget
    assert {one.limits.max_model_len for one in made.values()} == {16384}


@pytest.mark.slow
def test_above_what_it_can_do_a_system_of_whole_prompts_seems_to_hold_the_limit() -> None:
    """Which is why the search comes from below: at 2 requests a second decodes wait until all prompts are computed."""
    data, limit = DATA["openchat_sharegpt4"], YI.limits[0]
    served = system("vLLM", YI, data, limit)
    near, far = (holding(served, workload(data, 60.0), rate=rate).value("itl_p99") for rate in (1.0, 2.0))
    assert near > limit.tbt_s > far
