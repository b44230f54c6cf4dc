"""Reasoning told apart, alone and before calls or JSON, on a tiny model whose marks are control tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from octavo.models.store import open_model
from tests.models.tiny import tiny_tokens, write_tiny_llama
from tests.server.conftest import Server

NAMES = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<tool_call>\n{{ call.function | tojson }}\n</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n"
    "{% elif begin %}<think>\n{% endif %}"
)
USER = {"role": "user", "content": "Hello"}
END = 2
TOOLS = [{"type": "function", "function": {"name": "now"}}]


class Thinker(NamedTuple):
    server: Server
    end: int
    """The token of </think>."""

    def ask(self, **body: Any) -> dict[str, Any]:
        response = self.server.post("/v1/chat/completions", **self.body(**body))
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    def body(self, **body: Any) -> dict[str, Any]:
        """Of a request whose answer begins inside reasoning, which soon ends."""
        return {
            "messages": [USER],
            "chat_template_kwargs": {"begin": True},
            "logit_bias": {self.end: 5, END: -100},
            "max_tokens": 100,
            "seed": 1,
            **body,
        }


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Thinker]:
    folder = tmp_path_factory.mktemp("thinker")
    tokens = [*tiny_tokens(), *NAMES]
    metadata = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3, 3, *[1] * (len(tokens) - 7), 3, 3, 3, 3],
        "tokenizer.chat_template": TEMPLATE,
    }
    path = write_tiny_llama(folder / "tiny.gguf", metadata=metadata)
    model = open_model(path, cache=folder / "store", packed=False)
    server = Server({"model_dir": str(model.dir), "backend": "reference", "num_blocks": 200})
    yield Thinker(server, tokens.index("</think>"))
    assert server.stop() == 0


@pytest.mark.parametrize("seed", range(4))
def test_reasoning_is_a_field_of_its_own_streamed_and_whole(thinker: Thinker, seed: int) -> None:
    answer = thinker.ask(seed=seed, logprobs=True)
    (choice,) = answer["choices"]
    message = choice["message"]
    assert message["reasoning_content"] and "</think>" not in message["reasoning_content"]
    tokens = [entry["token"] for entry in choice["logprobs"]["content"]]
    spent = answer["usage"]["completion_tokens_details"]["reasoning_tokens"]
    assert spent == (tokens.index("</think>") + 1 if "</think>" in tokens else len(tokens))
    events = thinker.server.events("/v1/chat/completions", **thinker.body(seed=seed))
    deltas = [event["choices"][0]["delta"] for event in events[:-1]]
    assert "".join(d.get("reasoning_content", "") for d in deltas) == message["reasoning_content"]
    assert "".join(d.get("content", "") for d in deltas) == message["content"]


def test_a_prompt_that_closed_reasoning_has_none(thinker: Thinker) -> None:
    assert "reasoning_content" not in thinker.ask(reasoning_effort="none")["choices"][0]["message"]
    assert "reasoning_content" in thinker.ask(reasoning_effort="high")["choices"][0]["message"]


def test_a_mark_can_be_a_stop_string(thinker: Thinker) -> None:
    """The engine, which finds it, and the server, which shows the text, agree on what is text."""
    (choice,) = thinker.ask(stop=["</think>"])["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "</think>")
    assert choice["message"]["content"] == ""
    whole = thinker.ask()["choices"][0]["message"]["reasoning_content"]
    assert choice["message"]["reasoning_content"].strip() == whole


@pytest.mark.parametrize("seed", range(3))
def test_a_call_is_forced_behind_reasoning(thinker: Thinker, seed: int) -> None:
    body = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False, "seed": seed}
    (choice,) = thinker.ask(**body)["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert [call["function"] for call in choice["message"]["tool_calls"]] == [
        {"name": "now", "arguments": "{}"}
    ]
    assert "</think>" not in choice["message"].get("reasoning_content", "")
    assert choice["message"]["content"] is None


@pytest.mark.parametrize("seed", range(3))
def test_json_is_forced_behind_reasoning(thinker: Thinker, seed: int) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"],
              "additionalProperties": False}  # fmt: skip
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    (choice,) = thinker.ask(response_format=form, seed=seed)["choices"]
    assert choice["finish_reason"] == "stop"
    assert json.loads(choice["message"]["content"]) in ({"a": True}, {"a": False})


def test_what_was_called_is_rendered_by_the_template(thinker: Thinker) -> None:
    call = {"id": "1", "function": {"name": "now", "arguments": '{"x": "<|im_end|>"}'}}
    turns = [USER, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "12"}]
    tokens = thinker.server.post("/tokenize", messages=turns, tools=TOOLS).json()["tokens"]
    text = thinker.server.post("/detokenize", tokens=tokens).json()["prompt"]
    assert '<tool_call>\n{"name": "now", "arguments": {"x": "<|im_end|>"}}\n</tool_call><|im_end|>' in text
    ends = thinker.server.post("/tokenize", prompt="<|im_end|>").json()["tokens"]
    assert tokens.count(ends[0]) == len(turns)  # what stands in the arguments is text


def test_a_model_that_does_not_reason_says_so(server: Server) -> None:
    body: dict[str, Any] = {"messages": [USER], "max_tokens": 1}
    refused = server.post("/v1/chat/completions", **body, reasoning_effort="high")
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "reasoning_effort"
    assert server.post("/v1/chat/completions", **body, reasoning_effort="none").status_code == 200
