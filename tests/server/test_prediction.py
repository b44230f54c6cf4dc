"""OpenAI's `prediction`, through its own client: the same answer sooner, and what of it was right in the usage."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from openai.types.chat import ChatCompletion

from tests.server.conftest import Server

ASKED: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Hello"}],
    "max_tokens": 60,
    "temperature": 0.9,
    "seed": 11,
    "logit_bias": {str(token): -100 for token in (0, 1, 2)},
}


def ask(server: Server, **more: Any) -> ChatCompletion:
    """Each time with a salt of its own: earlier answers are guesses too."""
    with server.openai() as client:
        salted = {"cache_salt": uuid.uuid4().hex}
        answer: ChatCompletion = client.chat.completions.create(**ASKED, **more, extra_body=salted)
    return answer


def guessed(answer: ChatCompletion) -> tuple[int, int]:
    """Tokens that were guessed and were right, and that were not."""
    assert answer.usage is not None
    details = answer.usage.completion_tokens_details
    assert details is not None
    accepted, rejected = details.accepted_prediction_tokens, details.rejected_prediction_tokens
    assert accepted is not None and rejected is not None
    return accepted, rejected


@pytest.fixture(scope="module")
def text(server: Server) -> str:
    whole = ask(server).choices[0].message.content
    assert whole is not None and len(whole) > 60
    return whole


def test_what_was_predicted_comes_in_fewer_steps(server: Server, text: str) -> None:
    plain, alike = ask(server), ask(server, prediction={"type": "content", "content": text})
    assert alike.choices[0].message.content == text
    assert guessed(alike)[0] > guessed(plain)[0] + 5
    parts = [{"type": "text", "text": text[:20]}, {"type": "text", "text": text[20:]}]
    assert guessed(ask(server, prediction={"type": "content", "content": parts}))[0] > guessed(plain)[0] + 5


@pytest.mark.parametrize("content", ["something else", "", "<|im_end|>", "\ufffd" * 50])
def test_what_was_predicted_wrong_changes_nothing(server: Server, text: str, content: str) -> None:
    assert ask(server, prediction={"type": "content", "content": content}).choices[0].message.content == text


def test_streams_and_several_answers(server: Server, text: str) -> None:
    answers = ask(server, n=2, prediction={"type": "content", "content": text})
    assert answers.choices[0].message.content == text != answers.choices[1].message.content
    with server.openai() as client:
        stream = client.chat.completions.create(
            **ASKED,
            stream=True,
            stream_options={"include_usage": True},
            prediction={"type": "content", "content": text},
        )
        chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text
    details = chunks[-1].usage.completion_tokens_details
    assert details is not None and details.accepted_prediction_tokens


@pytest.mark.parametrize(
    ("prediction", "param", "words"),
    [
        ({"type": "file", "content": "a"}, "prediction.type", "it must be 'content'"),
        ({"type": "content"}, "prediction", "content"),
        (
            {"type": "content", "content": [{"type": "image_url"}]},
            "prediction.content[0]",
            "reads parts of type 'text'",
        ),
        (
            {"type": "content", "content": [{"type": "text"}]},
            "prediction.content[0].text",
            "is missing",
        ),
        ({"type": "content", "content": "a" * 100_000}, "prediction", "100000 characters"),
        ("text", "prediction", "object"),
    ],
)
def test_what_it_may_be(server: Server, prediction: Any, param: str, words: str) -> None:
    refused = server.post("/v1/chat/completions", **ASKED, prediction=prediction)
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert words in error["message"] and str(error["param"]).startswith(param)


def test_completions_have_none(server: Server) -> None:
    refused = server.post("/v1/completions", prompt="Hello", prediction={"type": "content", "content": "a"})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "prediction"
    assert server.post("/v1/completions", prompt="Hello", prediction=None).status_code == 200
