"""The prefix cache seen from outside: usage, metrics, and who finds whose blocks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.conftest import Server

PROMPT = list(range(3, 60))


@pytest.fixture
def keyed(tiny_engine: dict[str, Any]) -> Iterator[Server]:
    server = Server(tiny_engine, access={"api_keys": ["first", "second"]})
    yield server
    server.stop()


def cached(answer: dict[str, Any]) -> int:
    found: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert found <= answer["usage"]["prompt_tokens"]
    return found


def test_a_prompt_is_found_again_and_answered_alike(server: Server) -> None:
    body = {"prompt": PROMPT[::-1], "max_tokens": 8, "temperature": 0, "logprobs": 3}
    before = server.metrics()
    cold, warm = server.complete(**body), server.complete(**body)
    assert (cached(cold), cached(warm)) == (0, 48)
    assert cold["choices"] == warm["choices"]
    now = server.metrics()
    for name, count in (("queries", 2 * len(PROMPT)), ("hits", 48)):
        assert now[f"vllm:prefix_cache_{name}_total"] - before[f"vllm:prefix_cache_{name}_total"] == count


def test_n_counts_the_prompt_once(server: Server) -> None:
    body = {"prompt": PROMPT[::-1][5:], "max_tokens": 4, "n": 3}
    server.complete(**body)
    assert cached(server.complete(**body)) == 48


def test_salts_share_nothing(server: Server) -> None:
    """Case 11."""
    body = {"prompt": PROMPT[7:], "max_tokens": 1}
    server.complete(**body, cache_salt="a")
    assert cached(server.complete(**body, cache_salt="b")) == 0
    assert cached(server.complete(**body)) == 0
    assert cached(server.complete(**body, cache_salt="a")) == 48


def test_echoed_scores_are_the_same_twice(server: Server) -> None:
    """Case 12."""
    body = {"prompt": PROMPT[3:], "max_tokens": 2, "echo": True, "logprobs": 2, "temperature": 0}
    first, second = server.complete(**body), server.complete(**body)
    assert first["choices"] == second["choices"]
    assert first["choices"][0]["logprobs"]["token_logprobs"][0] is None
    assert cached(second) == 0


def test_keys_find_only_their_own(keyed: Server) -> None:
    def ask(key: str) -> int:
        response = keyed.client.post(
            "/v1/completions",
            json={"prompt": PROMPT, "max_tokens": 1},
            headers={"Authorization": f"Bearer {key}"},
        )
        assert response.status_code == 200, response.text
        return cached(response.json())

    assert [ask("first"), ask("second"), ask("first"), ask("second")] == [0, 0, 48, 48]


def test_a_chat_of_ten_turns_finds_all_earlier_ones(model_dir: Path) -> None:
    """The default model: its template, rendered again with the answers as text, gives the same tokens again."""
    server = Server({"model_dir": str(model_dir), "kv_memory_bytes": 200 << 20}, model_name="smollm2")
    try:
        messages: list[dict[str, str]] = []
        found = earlier = length = 0
        for turn in range(10):
            messages.append(
                {
                    "role": "user",
                    "content": f"Tell me fact number {turn} about octopuses 🐙, in one sentence.",
                }
            )
            reply = server.post(
                "/v1/chat/completions", messages=messages, max_tokens=40, temperature=0, model="smollm2"
            ).json()
            answer = reply["choices"][0]["message"]["content"]
            messages.append({"role": "assistant", "content": answer})
            if turn:
                found += cached(reply)
                earlier += length
            length = reply["usage"]["prompt_tokens"] + reply["usage"]["completion_tokens"]
        assert found >= 0.9 * earlier
    finally:
        server.stop()
