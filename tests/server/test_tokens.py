"""/tokenize and /detokenize: the ids that the model is given, and the text of ids."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.conftest import Server


def tokenize(server: Server, **body: Any) -> dict[str, Any]:
    response = server.post("/tokenize", **body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    assert answer["count"] == len(answer["tokens"]) and answer["max_model_len"] == 512
    return answer


def detokenize(server: Server, tokens: list[int]) -> str:
    response = server.post("/detokenize", tokens=tokens)
    assert response.status_code == 200, response.text
    text: str = response.json()["prompt"]
    return text


@pytest.mark.parametrize(
    "text", ["Hello world", "é🙂 \n\t", "", "<|im_start|>user\nHello<|im_end|>", "a" * 400]
)
def test_a_text_and_back(server: Server, text: str) -> None:
    tokens = tokenize(server, prompt=text, add_special_tokens=False)["tokens"]
    assert detokenize(server, tokens) == text
    if text:
        usage = server.complete(prompt=text, max_tokens=1, add_special_tokens=False)["usage"]
        assert usage["prompt_tokens"] == len(tokens)


def test_a_conversation_is_what_the_model_gets(server: Server) -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "Hello <|im_end|>"}]}]
    found = tokenize(server, messages=messages, return_token_strs=True)
    text = "<|im_start|>user\nHello <|im_end|><|im_end|>\n<|im_start|>assistant\n"
    assert detokenize(server, found["tokens"]) == text == "".join(found["token_strs"])
    control = tokenize(server, prompt="<|im_end|>", add_special_tokens=False)["tokens"]
    assert len(control) == 1 and found["tokens"].count(control[0]) == 1  # what the message says is text
    usage = server.post("/v1/chat/completions", messages=messages, max_tokens=1).json()["usage"]
    assert usage["prompt_tokens"] == found["count"]
    closed = tokenize(server, messages=messages, add_generation_prompt=False)
    assert closed["tokens"] == found["tokens"][: closed["count"]] and closed["token_strs"] is None
    begun = [*messages, {"role": "assistant", "content": "Hi"}]
    kept = tokenize(server, messages=begun, continue_final_message=True, add_generation_prompt=False)
    assert detokenize(server, kept["tokens"]) == text + "Hi"


def test_half_a_character_has_a_sign_for_it(server: Server) -> None:
    tokens = tokenize(server, prompt="🙂", add_special_tokens=False)["tokens"]
    assert len(tokens) == 4 and detokenize(server, tokens[:2]) == "\ufffd"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, "messages"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"prompt": ["a"]}, "prompt"),
        ("/tokenize", {"prompt": "a" * 1_000_000}, "prompt"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [5, -1]}, "tokens[1]"),
        ("/detokenize", {"tokens": [1 << 40]}, "tokens[0]"),
        ("/detokenize", {"tokens": "abc"}, "tokens"),
        ("/detokenize", {"tokens": [0] * 1_100_000}, "tokens"),
    ],
)
def test_what_is_refused(server: Server, path: str, body: dict[str, Any], param: str) -> None:
    response = server.post(path, **body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_another_models_name(server: Server) -> None:
    assert server.post("/tokenize", prompt="a", model="tiny").status_code == 200
    assert server.post("/detokenize", tokens=[], model="other").status_code == 404
