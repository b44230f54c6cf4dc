"""langchain-openai, litellm and llm against a real server: what they give is what OpenAI's own client gets."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from tests.clients.conftest import BOOK, MODEL, PROMPT, QUESTION, Clients

pytestmark = pytest.mark.slow


def answered(client: openai.OpenAI, max_tokens: int) -> str:
    """The greedy answer to the question."""
    done = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": QUESTION}],
        temperature=0,
        max_tokens=max_tokens,
    )
    assert done.choices[0].message.content
    return done.choices[0].message.content


def continued(client: openai.OpenAI) -> str:
    """The greedy completion."""
    done = client.completions.create(model=MODEL, prompt=PROMPT, temperature=0, max_tokens=12)
    return done.choices[0].text


def is_book(given: Any) -> bool:
    """It follows the schema `BOOK`."""
    assert given.keys() == {"title", "pages"}
    return len(given["title"]) <= 20 and 1 <= given["pages"] <= 9999


def is_call(calls: Any) -> bool:
    """It is one call of the function whose arguments follow that schema."""
    [(name, arguments)] = calls
    return name == "Book" and is_book(arguments)


def test_langchain(clients: Clients, url: str, client: openai.OpenAI) -> None:
    said = clients.use("use_langchain.py", url)
    assert said["invoke"] == said["stream"] == answered(client, 24)
    assert said["pieces"] > 3
    for usage in (said["usage"], said["stream_usage"]):
        assert usage["output_tokens"] == 24
        assert usage["total_tokens"] == usage["input_tokens"] + 24
    assert said["completion"] == continued(client)
    assert all(is_book(book) for book in said["structured"].values())
    assert is_call(said["called"]) and said["streamed_call"] == said["called"]
    assert said["after_the_call"]
    assert said["response"] == said["streamed_response"] == said["invoke"]
    vectors = client.embeddings.create(model=MODEL, input=["An octavo", "A quarto"]).data
    assert said["vectors"] == [vector.embedding for vector in vectors]


def test_litellm(clients: Clients, url: str, client: openai.OpenAI) -> None:
    said = clients.use("use_litellm.py", url)
    assert said["completion"] == said["stream"] == answered(client, 24)
    assert said["finish_reason"] == said["stream_end"] == "length"
    assert said["text_completion"] == continued(client)
    assert is_book(said["structured"])
    assert is_call(said["called"])
    assert said["message"] == said["completion"]
    assert said["vector"] == client.embeddings.create(model=MODEL, input=[PROMPT]).data[0].embedding
    assert "'nobody' is not served here" in said["refused"]


def test_llm(clients: Clients, url: str, client: openai.OpenAI) -> None:
    """With its OpenAI-compatible plug-in, streamed and whole; the log shows that it took the usage."""
    folder = clients.home / "llm"
    folder.mkdir()
    common = {"model_name": MODEL, "api_base": f"{url}/v1", "api_key_name": "octavo"}
    models = [
        {"model_id": "octavo-chat", "supports_schema": True, **common},
        {"model_id": "octavo-text", "completion": True, **common},
    ]
    (folder / "extra-openai-models.yaml").write_text(json.dumps(models))  # JSON is YAML

    def ask(model: str, prompt: str, max_tokens: int, *arguments: str) -> str:
        settings = ("-o", "temperature", "0", "-o", "max_tokens", str(max_tokens))
        command = ("llm", "-m", model, "--key", "none", *settings, *arguments, prompt)
        return clients.run(*command, LLM_USER_PATH=str(folder)).removesuffix("\n")

    assert ask("octavo-chat", QUESTION, 24) == answered(client, 24)
    assert ask("octavo-chat", QUESTION, 24, "--no-stream") == answered(client, 24)
    [logged] = json.loads(clients.run("llm", "logs", "-n", "1", "--json", LLM_USER_PATH=str(folder)))
    assert (logged["model"], logged["output_tokens"]) == ("octavo-chat", 24)
    assert ask("octavo-text", PROMPT, 12) == continued(client)
    assert is_book(json.loads(ask("octavo-chat", "Name a book.", 80, "--schema", json.dumps(BOOK))))
