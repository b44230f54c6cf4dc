"""/v1/chat/completions, through the real openai client and over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import openai
import pytest

from tests.server.conftest import Server

USER = {"role": "user", "content": "Hello world"}


def chat(server: Server, *messages: dict[str, Any], **body: Any) -> dict[str, Any]:
    response = server.post("/v1/chat/completions", messages=messages or [USER], **{"max_tokens": 8, **body})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def prompt_tokens(server: Server, *messages: dict[str, Any], **body: Any) -> int:
    tokens: int = chat(server, *messages, max_tokens=1, **body)["usage"]["prompt_tokens"]
    return tokens


def test_the_openai_client_streams_a_chat(server: Server) -> None:
    with server.openai() as client:
        whole = client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "Hello world"}], max_tokens=20, seed=5, n=2
        )
        stream = client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "Hello world"}],
            max_completion_tokens=20,
            seed=5,
            n=2,
            stream=True,
            stream_options={"include_usage": True},
        )
        texts, roles, reasons, usage = ["", ""], list[Any](), list[Any](), None
        for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
                roles += [choice.delta.role] if choice.delta.role else []
                reasons += [choice.finish_reason] if choice.finish_reason else []
    assert texts == [choice.message.content for choice in whole.choices]
    assert texts[0] != texts[1]
    assert roles == ["assistant", "assistant"]
    assert reasons == [choice.finish_reason for choice in whole.choices]
    assert usage is not None and whole.usage is not None
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens  # the second finds what the first computed
    found, guessed = "prompt_tokens_details", "completion_tokens_details"  # how it was computed, not what
    assert usage.model_dump(exclude={found, guessed}) == whole.usage.model_dump(exclude={found, guessed})


def test_32_streams_at_once_finish_and_equal_the_same_alone(server: Server) -> None:
    async def ask(client: openai.AsyncOpenAI, seed: int) -> str:
        stream = await client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": f"Hello {seed % 5}"}],
            max_tokens=24,
            seed=seed,
            stream=True,
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def ask_all(seeds: range) -> list[str]:
        http = httpx2.AsyncClient(trust_env=False)
        async with openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key="none", http_client=http
        ) as client:
            return await asyncio.gather(*(ask(client, seed) for seed in seeds))

    together = asyncio.run(ask_all(range(32)))
    assert together[7:9] == [asyncio.run(ask_all(range(seed, seed + 1)))[0] for seed in (7, 8)]
    server.until_idle()


def test_the_stream_protocol(server: Server) -> None:
    """Case 17: the role first, index and finish_reason in every chunk, one [DONE]."""
    events = server.events("/v1/chat/completions", messages=[USER], max_tokens=10, n=2, seed=1)
    assert events.count("[DONE]") == 1
    assert events[-1] == "[DONE]"
    chunks = events[:-1]
    assert (
        len({(c["id"], c["created"], c["model"], c["system_fingerprint"], c["object"]) for c in chunks}) == 1
    )
    assert chunks[0]["object"] == "chat.completion.chunk"
    assert "usage" not in chunks[0]
    for index in range(2):
        parts = [part for chunk in chunks for part in chunk["choices"] if part["index"] == index]
        assert parts[0]["delta"] == {"role": "assistant", "content": ""}
        assert [part["finish_reason"] is None for part in parts] == [True] * (len(parts) - 1) + [False]
        assert parts[-1]["delta"] == {}


def test_logprobs_of_chat(server: Server) -> None:
    """Case 22: with `logprobs` alone, with 0, with more."""
    for extra, k in (({}, 0), ({"top_logprobs": 0}, 0), ({"top_logprobs": 4}, 4)):
        choice = chat(server, logprobs=True, seed=2, temperature=1.0, ignore_eos=True, **extra)["choices"][0]
        content = choice["logprobs"]["content"]
        assert len(content) == 8
        assert all(len(entry["top_logprobs"]) == k and entry["logprob"] < 0 for entry in content)
        said = b"".join(bytes(entry["bytes"]) for entry in content).decode(errors="replace")
        assert said == choice["message"]["content"]
    assert chat(server)["choices"][0]["logprobs"] is None


def test_text_parts_are_joined(server: Server) -> None:
    """Case 31."""
    parts = [{"type": "text", "text": "Hello"}, {"type": "text", "text": "world"}]
    whole = chat(server, {"role": "user", "content": "Hello\nworld"}, seed=1)
    assert chat(server, {"role": "user", "content": parts}, seed=1)["choices"] == whole["choices"]


def test_the_last_message_can_be_continued(server: Server) -> None:
    said = {"role": "assistant", "content": "the world "}
    turns = prompt_tokens(server, USER, said)
    assert prompt_tokens(server, USER, said, add_generation_prompt=False) < turns
    continued = prompt_tokens(server, USER, said, continue_final_message=True)
    opened = prompt_tokens(server, USER)
    assert opened < continued < prompt_tokens(server, USER, said, add_generation_prompt=False)


def test_names_of_control_tokens_in_a_message_stay_text(server: Server) -> None:
    plain = prompt_tokens(server, {"role": "user", "content": "a"})
    quoted = prompt_tokens(server, {"role": "user", "content": "a<|im_end|>a"})
    assert quoted - plain > 5  # spelled, not one control token
    in_prompt = server.complete(prompt="a<|im_end|>a", max_tokens=1)["usage"]["prompt_tokens"]
    assert in_prompt == 3  # a completion's prompt is the caller's own template


def test_template_variables_reach_the_template_but_not_over_its_own(server: Server) -> None:
    assert chat(server, chat_template_kwargs={"thinking": True})["choices"]
    refused = server.post("/v1/chat/completions", messages=[USER], chat_template_kwargs={"messages": []})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "chat_template_kwargs.messages"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": []}, "messages"),
        ({}, "messages"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "messages[0].role"),
        ({"messages": [USER, {"role": "user"}]}, "messages[1].content"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": "a"}], "max_completion_tokens": -1},
            "max_completion_tokens",
        ),
        ({"messages": [{"role": "user", "content": "a"}], "echo": True}, "echo"),
        ({"messages": [USER], "tools": [{"type": "function"}]}, "tools[0].function"),
        ({"messages": [USER], "top_logprobs": 2}, "top_logprobs"),
        ({"messages": [USER], "logprobs": True, "top_logprobs": 100_000}, "top_logprobs"),
        ({"messages": [USER], "continue_final_message": True}, "continue_final_message"),
    ],
)
def test_refusals_name_the_field(server: Server, body: dict[str, Any], param: str) -> None:
    """Cases 32 and 33."""
    response = server.post("/v1/chat/completions", **body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
