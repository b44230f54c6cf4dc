"""Every bound of SamplingParams is refused by name and value."""

from __future__ import annotations

import pytest

from octavo.errors import InvalidParameter
from octavo.sampling.params import SamplingParams


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 0), ("n", 100_000), ("n", True), ("n", 1.5),
        ("temperature", -0.1), ("temperature", float("nan")), ("temperature", "1"),
        ("top_p", 0.0), ("top_p", 1.1), ("top_k", -2), ("min_p", -0.1), ("min_p", 1.1),
        ("repetition_penalty", 0.0), ("frequency_penalty", 2.1), ("presence_penalty", -2.1),
        ("logit_bias", {-1: 1.0}), ("logit_bias", {1: 101.0}),
        ("seed", 2**63), ("seed", -(2**63) - 1), ("seed", 1.0),
        ("stop", ("",)), ("stop", ("x",) * 100_000), ("stop", ("x" * 5000,)),
        ("stop_token_ids", (-1,)), ("min_tokens", -1), ("min_tokens", 17), ("max_tokens", -1),
        ("logprobs", -1), ("logprobs", 100_000), ("prompt_logprobs", 100_000),
    ],
)  # fmt: skip
def test_out_of_range_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(InvalidParameter) as caught:
        SamplingParams(**{name: value})  # type: ignore[arg-type]
    assert (
        name in str(caught.value) and caught.value.param is not None and caught.value.param.startswith(name)
    )


def test_edges_are_allowed() -> None:
    SamplingParams(
        n=128, temperature=0, top_k=-1, top_p=1e-9, min_p=1.0, seed=-(2**63), max_tokens=0, logprobs=0,
        logit_bias={0: -100, 5: 100.0}, stop=("x",) * 64,
    )  # fmt: skip


def test_a_beam_search_without_tokens_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="max_tokens is 0"):
        SamplingParams(beam_width=2, temperature=0.0, max_tokens=0)
