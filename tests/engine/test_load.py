"""What a plan has to compute, in numbers."""

from __future__ import annotations

from octavo.backends.base import Plan, PlanRow, SampleRow
from octavo.engine.load import load_of
from octavo.timing.step_time import StepLoad


def test_prompts_make_pairs_decodes_read_and_drafts_are_read_once() -> None:
    rows = (PlanRow(0, 10, 5), PlanRow(1, 30, 1), PlanRow(2, 40, 3))
    samples = (SampleRow(1, 0, 1), *(SampleRow(2, offset, 2) for offset in range(3)))
    prompt, decode = StepLoad().with_chunk(10, 5, 0), StepLoad(1, 1, 31, 0, 1)
    alone = load_of(Plan(0, (), (), rows[:1], ()))
    assert alone == prompt
    both = load_of(Plan(0, (), (), rows[:2], (SampleRow(1, 0, 1),)))
    assert both == StepLoad(*(a + b for a, b in zip(prompt, decode, strict=True)))
    whole = load_of(Plan(0, (), (), rows, samples))
    assert whole.kv_tokens == 31 + 41 and whole.sequences == 3 and whole.samples == 4
