"""Requests that are made to hurt: too many of everything that a field may hold, on every API."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = ["WEAPONS", "Weapon"]

TURN = {"role": "user", "content": "a"}
MANY = 100_000


class Weapon(NamedTuple):
    """One of them. `body`: JSON, or its bytes; made when it is sent, because it is large."""

    path: str
    body: Callable[[], dict[str, Any] | bytes]


def _deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def _wide(count: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"property{i}": {"type": "string"} for i in range(count)}}


def _nested(path: str, field: str, levels: int = 5000) -> bytes:
    return f'{{"model": "tiny", "{field}": {"[" * levels}{"]" * levels}}}'.encode()


def _tool(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": schema}}


def _format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}


COMPLETIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "n": lambda: {"n": MANY},
    "best_of": lambda: {"best_of": MANY},
    "beam_width": lambda: {"use_beam_search": True, "beam_width": MANY},
    "logprobs": lambda: {"logprobs": MANY},
    "prompt_logprobs": lambda: {"prompt_logprobs": MANY},
    "stop": lambda: {"stop": [f"stop {i}" for i in range(MANY)]},
    "a long stop": lambda: {"stop": "a" * 1_000_000},
    "stop_token_ids": lambda: {"stop_token_ids": list(range(MANY))},
    "logit_bias": lambda: {"logit_bias": {str(i): 1 for i in range(1_000_000)}},
    "prompts": lambda: {"prompt": ["a"] * MANY},
    "prompts × n": lambda: {"prompt": ["a"] * 1000, "n": 100},
    "token ids": lambda: {"prompt": [1] * 5_000_000},
    "a long text": lambda: {"prompt": "a" * 30_000_000},
    "a text of emoji": lambda: {"prompt": "👩‍👩‍👧" * 600_000},
    "suffix": lambda: {"suffix": "a" * 30_000_000},
    "guided_choice": lambda: {"guided_choice": [f"choice {i} of many" for i in range(MANY)]},
    "guided_regex": lambda: {"guided_regex": "(((a{1,1000}){1,1000}){1,1000}){1,1000}"},
    "guided_json, deep": lambda: {"guided_json": _deep(100)},
    "guided_json, wide": lambda: {"guided_json": _wide(MANY)},
    "guided_grammar": lambda: {"guided_grammar": "root ::= " + " | ".join(['"a"'] * MANY)},
    "max_tokens": lambda: {"max_tokens": 10**30},
    "unknown fields": lambda: {**{f"field{i}": i for i in range(MANY)}, "n": MANY},
    "user": lambda: {"user": "a" * 30_000_000, "n": MANY},
    "cache_salt": lambda: {"cache_salt": "a" * 30_000_000},
}

OTHERS: dict[str, Weapon] = {
    "chat, messages": Weapon("/v1/chat/completions", lambda: {"messages": [TURN] * 800_000}),
    "chat, empty messages": Weapon(
        "/v1/chat/completions", lambda: {"messages": [{"role": "user", "content": ""}] * 800_000}
    ),
    "chat, parts": Weapon(
        "/v1/chat/completions",
        lambda: {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 800_000}]},
    ),
    "chat, tools": Weapon("/v1/chat/completions", lambda: {"messages": [TURN], "tools": [_tool({})] * MANY}),
    "chat, deep tool": Weapon(
        "/v1/chat/completions", lambda: {"messages": [TURN], "tools": [_tool(_deep(100))]}
    ),
    "chat, top_logprobs": Weapon(
        "/v1/chat/completions", lambda: {"messages": [TURN], "logprobs": True, "top_logprobs": MANY}
    ),
    "chat, schema": Weapon(
        "/v1/chat/completions", lambda: {"messages": [TURN], "response_format": _format(_wide(MANY))}
    ),
    "chat, template": Weapon(
        "/v1/chat/completions",
        lambda: {"messages": [TURN], "chat_template_kwargs": {"messages": ["a"] * MANY}},
    ),
    "chat, calls": Weapon(
        "/v1/chat/completions",
        lambda: {
            "messages": [
                TURN,
                {
                    "role": "assistant",
                    "tool_calls": [
                        {"id": str(i), "type": "function", "function": {"name": "f", "arguments": "{}"}}
                        for i in range(MANY)
                    ],
                },
            ]
        },
    ),
    "chat, prediction": Weapon(
        "/v1/chat/completions",
        lambda: {"messages": [TURN], "prediction": {"type": "content", "content": "a" * 30_000_000}},
    ),
    "messages, turns": Weapon("/v1/messages", lambda: {"max_tokens": 1, "messages": [TURN] * 800_000}),
    "messages, stop_sequences": Weapon(
        "/v1/messages",
        lambda: {"max_tokens": 1, "messages": [TURN], "stop_sequences": [f"{i}" for i in range(MANY)]},
    ),
    "messages, tools": Weapon(
        "/v1/messages",
        lambda: {
            "max_tokens": 1,
            "messages": [TURN],
            "tools": [{"name": f"f{i}", "input_schema": {"type": "object"}} for i in range(MANY)],
        },
    ),
    "messages, system": Weapon(
        "/v1/messages", lambda: {"max_tokens": 1, "messages": [TURN], "system": "a" * 30_000_000}
    ),
    "responses, items": Weapon("/v1/responses", lambda: {"input": [TURN] * 800_000}),
    "responses, tools": Weapon(
        "/v1/responses",
        lambda: {"input": "a", "tools": [{"type": "function", "name": "f", "parameters": {}}] * MANY},
    ),
    "responses, metadata": Weapon(
        "/v1/responses", lambda: {"input": "a", "metadata": {str(i): "a" for i in range(MANY)}}
    ),
    "responses, instructions": Weapon(
        "/v1/responses", lambda: {"input": "a", "instructions": "a" * 30_000_000}
    ),
    "ollama, stop": Weapon(
        "/api/generate", lambda: {"prompt": "a", "options": {"stop": [f"{i}" for i in range(MANY)]}}
    ),
    "ollama, context": Weapon("/api/generate", lambda: {"prompt": "a", "context": [1] * 5_000_000}),
    "ollama, format": Weapon("/api/chat", lambda: {"messages": [TURN], "format": _wide(MANY)}),
    "ollama, messages": Weapon("/api/chat", lambda: {"messages": [TURN] * 800_000}),
    "embeddings, inputs": Weapon("/v1/embeddings", lambda: {"input": ["a"] * MANY}),
    "embeddings, ids": Weapon("/v1/embeddings", lambda: {"input": [1] * 5_000_000}),
    "embed, inputs": Weapon("/api/embed", lambda: {"input": ["a"] * MANY}),
    "tokenize": Weapon("/tokenize", lambda: {"prompt": "a" * 30_000_000}),
    "detokenize": Weapon("/detokenize", lambda: {"tokens": [1] * 5_000_000}),
    "batches": Weapon(
        "/v1/batches",
        lambda: {
            "input_file_id": "file-a",
            "endpoint": "/v1/completions",
            "completion_window": "24h",
            "metadata": {str(i): "a" for i in range(MANY)},
        },
    ),
    "numbers": Weapon("/v1/completions", lambda: b'{"prompt": "a", "n": ' + b"9" * 1_000_000 + b"}"),
    "a long key": Weapon("/v1/completions", lambda: b'{"' + b"a" * 30_000_000 + b'": 1, "n": 999999}'),
    "a body": Weapon("/v1/completions", lambda: json.dumps({"prompt": "a" * 100_000_000}).encode()),
    **{
        f"nested, {path}": Weapon(path, lambda path=path, field=field: _nested(path, field))  # type: ignore[misc]
        for path, field in {
            "/v1/completions": "prompt",
            "/v1/chat/completions": "messages",
            "/v1/messages": "messages",
            "/v1/responses": "input",
            "/api/chat": "messages",
            "/api/generate": "prompt",
            "/v1/embeddings": "input",
            "/tokenize": "prompt",
            "/v1/batches": "metadata",
        }.items()
    },
}

WEAPONS: dict[str, Weapon] = {
    **{
        f"completions, {name}": Weapon("/v1/completions", lambda body=body: {"prompt": "a", **body()})  # type: ignore[misc]
        for name, body in COMPLETIONS.items()
    },
    **OTHERS,
}
