"""What a request asks for, read from OpenAI's bodies."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from octavo.errors import InvalidParameter
from octavo.routing.asked import CHAT, COMPLETIONS, EMBEDDINGS, Asked
from tests.routing.gateways import asked

PARTS = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "data:" + "x" * 9999}}]


@pytest.mark.parametrize(
    ("body", "sentence"),
    [(b"{", "no JSON: "), (b"[]", "no JSON object"), (b'{"model": 1}', "model is no text")],
)
def test_bodies_that_no_tier_could_read(body: bytes, sentence: str) -> None:
    with pytest.raises(InvalidParameter, match=sentence):
        Asked.read(CHAT, body, {}, None, 0.0)


@pytest.mark.parametrize(
    ("messages", "prompt"),
    [
        ([{"role": "system", "content": "s"}, {"role": "user", "content": "u"}], "u"),
        ([{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}], "u"),
        ([{"role": "user", "content": PARTS}], "look"),
        ([{"role": "system", "content": "s"}], ""),
        ([1, {"role": "user"}], ""),
        ("no list", ""),
        (None, ""),
    ],
)
def test_the_prompt_is_what_the_user_said_last(messages: Any, prompt: str) -> None:
    request = asked(messages=messages)
    assert request.prompt == prompt
    assert request.prompt_tokens >= 0  # and nothing raises


@pytest.mark.parametrize(
    ("prompt", "text", "tokens"),
    [
        ("abcd" * 10, "abcd" * 10, 10),
        (["ab", "cd"], "ab cd", 0),
        ([1, 2, 3], "", 3),
        ([[1, 2], [3]], "", 3),
        (None, "", 0),
    ],
)
def test_prompts_of_completions(prompt: Any, text: str, tokens: int) -> None:
    request = asked(path=COMPLETIONS, prompt=prompt)
    assert request.prompt == text
    assert abs(request.prompt_tokens - tokens) <= 1


def test_what_it_needs() -> None:
    assert asked(messages=[{"role": "user", "content": PARTS}]).images
    assert asked(messages=[{"role": "user", "content": PARTS}]).prompt_tokens < 100  # a picture is no text
    assert asked(response_format={"type": "json_schema"}).json
    assert not asked(response_format={"type": "text"}).json
    assert asked(functions=[{}]).tools
    assert asked(max_completion_tokens=9, max_tokens=5).answer_tokens == 9
    assert asked(max_tokens="x").answer_tokens == 0


def test_what_a_tier_gets_is_the_same_with_its_own_model() -> None:
    request = asked(stream=True, seed=7, stream_options={"x": 1})
    sent = orjson.loads(request.for_tier("m", stream_usage=True))
    assert sent == {**request.body, "model": "m", "stream_options": {"x": 1, "include_usage": True}}
    assert orjson.loads(request.for_tier("m", stream_usage=False))["stream_options"] == {"x": 1}
    assert "stream_options" not in orjson.loads(asked().for_tier("m", stream_usage=True))
    whole = asked(path=EMBEDDINGS, input="x", stream=True)
    assert "stream_options" not in orjson.loads(whole.for_tier("m", stream_usage=True))
