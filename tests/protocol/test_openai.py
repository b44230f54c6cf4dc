"""OpenAI's requests: defaults, meanings, refusals."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from octavo.errors import InvalidParameter
from octavo.protocol.body import decode_body
from octavo.protocol.openai import ChatRequest, CompletionRequest
from octavo.sampling.params import SamplingParams

TURN = {"role": "user", "content": "Hi"}


def completion(**body: Any) -> CompletionRequest:
    return decode_body(msgspec.json.encode({"prompt": "a", **body}), CompletionRequest)[0]


def chat(**body: Any) -> ChatRequest:
    return decode_body(msgspec.json.encode({"messages": [TURN], **body}), ChatRequest)[0]


def test_defaults() -> None:
    assert completion().sampling() == SamplingParams(max_tokens=16)
    assert completion(max_tokens=None).sampling() == SamplingParams(max_tokens=None)
    assert chat().sampling() == SamplingParams(max_tokens=None)
    assert not completion().include_usage


def test_null_means_the_default() -> None:
    names = [n for n in CompletionRequest.__struct_encode_fields__ if n not in ("prompt", "max_tokens")]
    assert completion(**dict.fromkeys(names)).sampling() == completion().sampling()
    names = [n for n in ChatRequest.__struct_encode_fields__ if n != "messages"]
    assert chat(**dict.fromkeys(names)).sampling() == chat().sampling()


def test_every_parameter_arrives() -> None:
    given = {
        "n": 2,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "seed": -3,
        "include_stop_str_in_output": True,
        "ignore_eos": True,
        "min_tokens": 2,
        "max_tokens": 30,
        "skip_special_tokens": False,
    }
    lists = {"stop": ["x", "y"], "stop_token_ids": [7], "logit_bias": {"5": -1}}
    expected = SamplingParams(
        **given,  # type: ignore[arg-type]
        stop=("x", "y"),
        stop_token_ids=(7,),
        logit_bias={5: -1.0},
    )
    assert completion(**given, **lists).sampling() == expected
    assert chat(**given, **lists).sampling() == expected
    assert completion(stop="x").sampling().stop == ("x",)


def test_logprobs_of_both_apis() -> None:
    assert completion(logprobs=0).sampling().logprobs == 0
    assert completion(logprobs=3).sampling().prompt_logprobs is None
    assert completion(logprobs=3, echo=True).sampling().prompt_logprobs == 3
    assert chat(logprobs=True).sampling().logprobs == 0
    assert chat(logprobs=True, top_logprobs=5).sampling().logprobs == 5
    assert chat(logprobs=False).sampling().logprobs is None


def test_both_names_of_max_tokens() -> None:
    assert chat(max_tokens=7, max_completion_tokens=7).sampling().max_tokens == 7
    assert chat(max_completion_tokens=7).sampling().max_tokens == 7
    with pytest.raises(InvalidParameter, match=r"max_tokens is 5, and max_completion_tokens, .* is 7"):
        chat(max_tokens=5, max_completion_tokens=7).sampling()
    assert chat(max_tokens=5).sampling().max_tokens == 5
    for values in ({"max_completion_tokens": -1}, {"max_completion_tokens": 3, "min_tokens": 4}):
        with pytest.raises(InvalidParameter, match="max_completion_tokens"):
            chat(**values).sampling()
    with pytest.raises(InvalidParameter, match=r"^max_tokens is -1"):
        chat(max_tokens=-1).sampling()


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]])],
)
def test_the_four_kinds_of_prompt(prompt: Any, prompts: Any) -> None:
    assert completion(prompt=prompt).prompts() == prompts


def test_which_of_the_stop_tokens_is_wrong() -> None:
    with pytest.raises(InvalidParameter, match=r"^stop_token_ids\[1\] is -1"):
        completion(stop_token_ids=[3, -1]).sampling()


def test_unknown_fields_are_listed_and_known_ones_are_not() -> None:
    raw = {"prompt": "a", "zeta": 1, "alpha": None, "user": "me", "metadata": {}, "stop": None}
    assert CompletionRequest.check_fields(raw) == ["alpha", "zeta"]


def test_conversation() -> None:
    turns = [
        {"role": "developer", "content": "Be brief."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            "name": "Ann",
        },
        {"role": "assistant", "content": None},
    ]
    assert chat(messages=turns).conversation() == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a\nb", "name": "Ann"},
        {"role": "assistant", "content": ""},
    ]
