"""Ollama's own API, through its real client and over HTTP."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import httpx2
import jsonschema
import msgspec
import ollama
import pytest

import octavo
from octavo.protocol.ollama_schema import (
    ChatLine,
    EmbedAnswer,
    EmbeddingsAnswer,
    GenerateLine,
    ModelNames,
    OllamaErrorReply,
    RunningModels,
    Shown,
)
from tests.server.conftest import Server

HELLO = [{"role": "user", "content": "Hello world"}]
OPTIONS: dict[str, Any] = {"seed": 5, "num_predict": 12}
TIMES = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")


@pytest.fixture
def client(server: Server) -> Iterator[ollama.Client]:
    with ollama.Client(host=server.url, trust_env=False) as client:
        yield client


def ask(server: Server, path: str, **body: Any) -> dict[str, Any]:
    """A whole answer that must succeed, and that is what the document says."""
    body = {"model": "tiny", "options": OPTIONS, "stream": False, **body}
    response = server.post(path, **body)
    assert response.status_code == 200, response.text
    msgspec.json.decode(response.content, type=ChatLine if path == "/api/chat" else GenerateLine)
    answer: dict[str, Any] = response.json()
    return answer


def lines(server: Server, path: str, **body: Any) -> list[dict[str, Any]]:
    """The lines of the stream of the same."""
    response = server.post(path, **{"model": "tiny", "options": OPTIONS, **body})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/x-ndjson"
    assert response.text.endswith("\n")
    kind = ChatLine if path == "/api/chat" else GenerateLine
    found = [msgspec.json.decode(line, type=kind) for line in response.content.splitlines()]
    told: list[dict[str, Any]] = msgspec.to_builtins(found)
    assert [line["done"] for line in told] == [False] * (len(told) - 1) + [True]
    return told


def error_of(response: httpx2.Response, status: int) -> str:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    return msgspec.json.decode(response.content, type=OllamaErrorReply).error


def untimed(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if name not in (*TIMES, "created_at")}


def test_its_client_chats_and_streams(client: ollama.Client) -> None:
    whole = client.chat("tiny", HELLO, options=OPTIONS)
    parts = list(client.chat("tiny", HELLO, options=OPTIONS, stream=True))
    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    assert (whole.model, whole.message.role, whole.done, whole.done_reason) == (
        "tiny",
        "assistant",
        True,
        "length",
    )
    assert whole.eval_count == parts[-1].eval_count == 12
    assert whole.prompt_eval_count == parts[-1].prompt_eval_count
    for end in (whole, parts[-1]):
        assert end.total_duration and end.prompt_eval_duration and end.eval_duration is not None
        assert end.prompt_eval_duration + end.eval_duration == pytest.approx(end.total_duration, abs=2)


def test_its_client_generates_and_streams(client: ollama.Client) -> None:
    whole = client.generate("tiny:latest", "Hello", options=OPTIONS)
    parts = list(client.generate("tiny:latest", "Hello", options=OPTIONS, stream=True))
    assert "".join(part.response or "" for part in parts) == whole.response
    assert whole.model == "tiny:latest"
    assert parts[-1].context == whole.context is not None


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_streamed_equals_whole(server: Server, path: str) -> None:
    body: dict[str, Any] = {"messages": HELLO} if path == "/api/chat" else {"prompt": "Hello"}
    for more in ({}, {"logprobs": True, "top_logprobs": 2}, {"options": {**OPTIONS, "stop": ["e", "o"]}}):
        whole = ask(server, path, **body, **more)
        *before, last = lines(server, path, **body, **more)
        if path == "/api/chat":
            last["message"]["content"] = "".join(line["message"]["content"] for line in [*before, last])
        else:
            last["response"] = "".join(line["response"] for line in [*before, last])
        if scores := [score for line in before for score in line.get("logprobs", [])]:
            last["logprobs"] = scores
        assert untimed(last) == untimed(whole)


def test_the_answer_is_that_of_chat_completions(server: Server) -> None:
    """With what Ollama's API documents for a request that says nothing."""
    same = {"seed": 5, "max_tokens": 12, "temperature": 0.8, "top_k": 40, "top_p": 0.9}
    chat = server.post("/v1/chat/completions", messages=HELLO, **same).json()["choices"][0]["message"]
    assert ask(server, "/api/chat", messages=HELLO)["message"]["content"] == chat["content"]
    assert ask(server, "/api/generate", prompt="Hello world")["response"] == chat["content"]
    plain = server.post("/v1/completions", prompt="Hello world", **same).json()["choices"][0]["text"]
    raw = ask(server, "/api/generate", prompt="Hello world", raw=True)
    assert raw["response"] == plain and "context" not in raw


def test_options_are_honoured(server: Server) -> None:
    greedy = {"temperature": 0, "num_predict": 9, "repeat_penalty": 1.3, "stop": "zzz", "num_ctx": 99999}
    answer = ask(server, "/api/generate", prompt="Hello world", raw=True, options=greedy)
    same = {"temperature": 0, "max_tokens": 9, "repetition_penalty": 1.3, "prompt": "Hello world"}
    assert answer["response"] == server.post("/v1/completions", **same).json()["choices"][0]["text"]
    off = {**greedy, "repeat_last_n": 0}
    answer = ask(server, "/api/generate", prompt="Hello world", raw=True, options=off)
    del same["repetition_penalty"]
    assert answer["response"] == server.post("/v1/completions", **same).json()["choices"][0]["text"]


def test_a_context_goes_on_from_the_ids(server: Server) -> None:
    """As if all had been one conversation, in the very tokens that were said."""
    first = ask(server, "/api/generate", prompt="Hello")
    again = ask(server, "/api/generate", prompt="world", context=first["context"])
    start, end = first["context"], again["context"]
    assert end[: len(start)] == start
    prompt = end[: again["prompt_eval_count"]]
    turns = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": "world"},
    ]
    conversation = server.post("/tokenize", messages=turns).json()["tokens"]
    turn = prompt[len(start) :]
    assert conversation[-len(turn) :] == turn
    text = server.post("/detokenize", tokens=turn).json()["prompt"]
    assert "world" in text and "Hello" not in text
    same = {"seed": 5, "max_tokens": 12, "temperature": 0.8, "top_k": 40, "top_p": 0.9, "prompt": prompt}
    assert server.post("/v1/completions", **same).json()["choices"][0]["text"] == again["response"]


def test_the_assistants_last_message_is_continued(server: Server) -> None:
    options = {**OPTIONS, "temperature": 0}
    said = ask(server, "/api/chat", messages=HELLO, options=options)["message"]["content"]
    begun = [*HELLO, {"role": "assistant", "content": said[:4]}]
    chat = server.post(
        "/v1/chat/completions",
        messages=begun,
        continue_final_message=True,
        add_generation_prompt=False,
        max_tokens=12,
        temperature=0,
    ).json()["choices"][0]["message"]["content"]
    assert ask(server, "/api/chat", messages=begun, options=options)["message"]["content"] == chat


@pytest.mark.parametrize(
    ("keep_alive", "reason"),
    [(None, "load"), ("5m", "load"), (-1, "load"), (0, "unload"), ("0", "unload"), ("0s", "unload")],
)
def test_to_load_or_unload_changes_nothing(server: Server, keep_alive: Any, reason: str) -> None:
    chat = ask(server, "/api/chat", messages=[], keep_alive=keep_alive)
    assert (chat["done"], chat["done_reason"], chat["message"]["content"]) == (True, reason, "")
    (only,) = lines(server, "/api/generate", keep_alive=keep_alive)
    assert (only["done_reason"], only["response"]) == (reason, "")
    assert len(server.client.get("/api/ps").json()["models"]) == 1
    headers = {"x-slo-ttft-ms": "soon"}
    assert server.client.post("/api/generate", json={"model": "tiny"}, headers=headers).status_code == 400


def test_models_are_told(server: Server, client: ollama.Client) -> None:
    (model,) = client.list().models
    assert model.model == "tiny:latest"
    assert model.size is not None and model.size > 10_000 and model.modified_at is not None
    assert model.details is not None and model.details.quantization_level == "Q4_1"
    (running,) = client.ps().models
    assert running.digest == model.digest and len(running.digest or "") == 64
    assert running.context_length is not None and running.context_length > 100
    shown = client.show("tiny")
    assert shown.capabilities is not None and {"completion", "embedding"} <= set(shown.capabilities)
    assert shown.modelinfo is not None and shown.modelinfo["general.architecture"] == "llama"
    for path, kind in (("/api/tags", ModelNames), ("/api/ps", RunningModels)):
        msgspec.json.decode(server.client.get(path).content, type=kind)
    msgspec.json.decode(server.post("/api/show", name="tiny").content, type=Shown)
    assert server.client.get("/api/version").json() == {"version": octavo.__version__}
    assert client.pull("tiny").status == "success"


def test_somebody_is_there(server: Server) -> None:
    assert server.client.get("/").text == "Octavo is running"
    assert server.client.head("/").status_code == 200


def test_texts_become_vectors(server: Server, client: ollama.Client) -> None:
    two = client.embed("tiny", ["Hello", "world"])
    assert len(two.embeddings) == 2
    assert all(math.hypot(*vector) == pytest.approx(1) for vector in two.embeddings)
    openai = server.post("/v1/embeddings", input=["Hello", "world"]).json()
    assert [list(vector) for vector in two.embeddings] == [one["embedding"] for one in openai["data"]]
    short = server.post("/api/embed", model="tiny", input="Hello", dimensions=3)
    assert len(msgspec.json.decode(short.content, type=EmbedAnswer).embeddings[0]) == 3
    older = server.post("/api/embeddings", model="tiny", prompt="Hello")
    vector = msgspec.json.decode(older.content, type=EmbeddingsAnswer).embedding
    length = math.hypot(*vector)
    assert [value / length for value in vector] == pytest.approx(list(two.embeddings[0]), abs=1e-6)


def test_a_long_text_loses_its_end_unless_told_otherwise(server: Server) -> None:
    limit = server.client.get("/api/ps").json()["models"][0]["context_length"]
    text = "Hello " * limit
    cut = server.post("/api/embed", model="tiny", input=text)
    assert cut.json()["prompt_eval_count"] == limit
    assert "input" in error_of(server.post("/api/embed", model="tiny", input=text, truncate=False), 400)


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/api/chat", {"model": None}, "model must be a string"),
        ("/api/chat", {"options": {"mirostat": 2}}, "options.mirostat is not supported"),
        ("/api/chat", {"options": {"typical_p": 0.5}}, "options.typical_p is not supported"),
        ("/api/chat", {"options": {"temperature": -1}}, "options.temperature is -1"),
        ("/api/chat", {"options": {"num_predict": -3}}, "options.num_predict is -3"),
        ("/api/chat", {"options": {"stop": [""]}}, "options.stop holds an empty string"),
        (
            "/api/chat",
            {"options": {"repeat_penalty": 1.1, "repeat_last_n": 64}},
            "options.repeat_last_n is 64",
        ),
        ("/api/chat", {"options": {"top_k": "many"}}, "options.top_k must be an integer"),
        ("/api/chat", {"keep_alive": "soon"}, "keep_alive is 'soon'"),
        ("/api/chat", {"format": "xml"}, "format"),
        ("/api/chat", {"format": {"type": "nope"}}, "format"),
        ("/api/chat", {"think": "much"}, "think is 'much'"),
        ("/api/chat", {"top_logprobs": 2}, "logprobs is not true"),
        ("/api/chat", {"messages": [{"role": "user", "content": "a", "images": ["x"]}]}, "images"),
        ("/api/chat", {"messages": [{"role": "me", "content": "a"}]}, "messages[0].role is 'me'"),
        ("/api/generate", {"prompt": "a", "images": ["x"]}, "images"),
        ("/api/generate", {"prompt": "a", "template": "{{ .Prompt }}"}, "template is not supported"),
        ("/api/generate", {"prompt": "a", "suffix": "b"}, "suffix is not supported"),
        ("/api/generate", {"prompt": "a", "system": "b", "raw": True}, "exclude each other"),
        ("/api/generate", {"prompt": "a", "context": [1, 99999]}, "context[1] is 99999"),
        ("/api/embed", {"input": 3}, "input must be"),
        ("/api/show", {"model": None}, "model is missing"),
    ],
)
def test_a_wrong_field_is_named(server: Server, path: str, body: dict[str, Any], words: str) -> None:
    given = {"messages": HELLO} if path == "/api/chat" else {}
    assert words in error_of(server.post(path, **{"model": "tiny", **given, **body}), 400)


def test_errors_are_ollamas(server: Server, client: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError, match="'tiny' is") as caught:
        client.chat("llama3", HELLO)
    assert caught.value.status_code == 404
    for path in ("/api/create", "/api/copy", "/api/push", "/api/blobs/sha256:00"):
        assert "this server has one" in error_of(server.post(path), 403)
    assert "this server has one" in error_of(server.client.delete("/api/delete"), 403)
    assert "There is no /api/nothing" in error_of(server.client.get("/api/nothing"), 404)
    assert "does not take GET" in error_of(server.client.get("/api/chat"), 405)


NUMBERS = {
    "type": "object",
    "properties": {"x": {"enum": [1, 2]}},
    "required": ["x"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": NUMBERS}}]


def test_an_answer_may_be_held_to_json(real_server: Server) -> None:
    options = {"num_predict": 100, "seed": 1}
    body = {"model": "tiny", "messages": HELLO, "options": options}
    answer = ask(real_server, "/api/chat", **body, format=NUMBERS)
    jsonschema.validate(json.loads(answer["message"]["content"]), NUMBERS)
    answer = ask(real_server, "/api/generate", prompt="JSON", format="json", options={"num_predict": 5})
    assert answer["response"].startswith("{")


def test_tools_are_told_of(real_server: Server) -> None:
    call = {"function": {"name": "add", "arguments": {"x": 1}}}
    messages = [
        *HELLO,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_name": "add", "content": "2"},
    ]
    with_tools = ask(real_server, "/api/chat", messages=messages, tools=TOOLS)
    without = ask(real_server, "/api/chat", messages=messages)
    assert with_tools["prompt_eval_count"] > without["prompt_eval_count"]
