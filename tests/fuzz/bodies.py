"""Right bodies of every route that takes one: what the fuzzer starts from. Ids of stored things are filled in later."""

from __future__ import annotations

from typing import Any

import msgspec

from octavo.server import app

__all__ = ["EXAMPLES", "FIELDS", "FORM", "OTHERS"]

_TURNS = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": [{"type": "text", "text": "What is an octavo?"}]},
]
_SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}},
    "required": ["a"],
    "additionalProperties": False,
}
_FUNCTION = {"name": "look", "description": "Look it up.", "parameters": _SCHEMA}
_TOOLS = [{"type": "function", "function": _FUNCTION}]
_CALLED = [
    {"role": "user", "content": "Look."},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "7"},
]
_CHOICE = {
    "n": 2,
    "seed": 5,
    "temperature": 0.8,
    "top_p": 0.9,
    "top_k": 20,
    "min_p": 0.01,
    "presence_penalty": 0.1,
    "frequency_penalty": 0.2,
    "repetition_penalty": 1.1,
    "logit_bias": {"65": 5, "66": -100},
    "stop": ["\n\n", "END"],
    "stop_token_ids": [2, 70],
    "min_tokens": 1,
    "ignore_eos": False,
    "skip_special_tokens": True,
    "user": "u",
    "priority": 1,
    "cache_salt": "s",
    "profile": "chat",
}
_STREAMED = {"stream": True, "stream_options": {"include_usage": True}}
_COUNTED = {"stream": True, "stream_options": {"continuous_usage_stats": True}, "return_token_ids": True}
_OPTIONS = {
    "num_predict": 5,
    "temperature": 0.5,
    "top_k": 10,
    "stop": ["z"],
    "seed": 3,
    "repeat_penalty": 1.1,
}

EXAMPLES: dict[str, list[dict[str, Any]]] = {
    "/v1/completions": [
        {"prompt": "An octavo is", "max_tokens": 4},
        {"model": "tiny", "prompt": ["a", "b"], "max_tokens": 3, "logprobs": 2, "echo": True, **_CHOICE},
        {"prompt": [[5, 6, 7], [8]], "max_tokens": 3, "best_of": 2, "return_token_ids": True},
        {"prompt": [70, 71, 72], "max_tokens": 4, **_STREAMED},
        {"prompt": ["x", "y"], "n": 2, "max_tokens": 4, "stop": ["a"], "echo": True, **_COUNTED},
        {"prompt": "x", "max_tokens": 6, "use_beam_search": True, "beam_width": 3, "temperature": 0, "n": 2},
        {"prompt": "x", "max_tokens": 8, "structured_outputs": {"regex": "[ab]{2,4}"}},
        {"prompt": "x", "max_tokens": 8, "guided_json": _SCHEMA, "prompt_logprobs": 1},
        {"prompt": "abc" * 20, "max_tokens": 2, "truncate_prompt_tokens": 8, "add_special_tokens": False},
    ],
    "/v1/chat/completions": [
        {"messages": _TURNS, "max_tokens": 4},
        {
            "model": "tiny",
            "messages": _TURNS,
            "max_completion_tokens": 4,
            "logprobs": True,
            "top_logprobs": 2,
            **_CHOICE,
        },
        {"messages": _TURNS, "max_tokens": 5, **_STREAMED},
        {"messages": _TURNS, "max_tokens": 5, "tools": _TOOLS, **_COUNTED},
        {
            "messages": _CALLED,
            "max_tokens": 8,
            "tools": _TOOLS,
            "tool_choice": "auto",
            "parallel_tool_calls": False,
        },
        {
            "messages": _TURNS,
            "max_tokens": 12,
            "tools": _TOOLS,
            "tool_choice": {"type": "function", "function": {"name": "look"}},
        },
        {
            "messages": _TURNS,
            "max_tokens": 9,
            "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": _SCHEMA}},
        },
        {"messages": _TURNS, "max_tokens": 9, "response_format": {"type": "json_object"}},
        {"messages": _TURNS, "max_tokens": 4, "prediction": {"type": "content", "content": "An octavo is"}},
        {
            "messages": [*_TURNS, {"role": "assistant", "content": "It"}],
            "max_tokens": 3,
            "add_generation_prompt": False,
            "continue_final_message": True,
        },
        {"messages": _TURNS, "max_tokens": 3, "chat_template_kwargs": {"x": 1}, "prompt_logprobs": 0},
    ],
    "/v1/responses": [
        {"input": "Hi.", "max_output_tokens": 4, "store": False},
        {
            "model": "tiny",
            "input": _TURNS,
            "instructions": "Be short.",
            "max_output_tokens": 4,
            "temperature": 0.5,
            "top_p": 0.5,
            "metadata": {"a": "b"},
        },
        {"input": "Go on.", "previous_response_id": "<response>", "max_output_tokens": 3},
        {
            "input": "Hi.",
            "max_output_tokens": 4,
            "stream": True,
            "store": False,
            "include": ["message.output_text.logprobs"],
            "top_logprobs": 1,
        },
        {
            "input": "Hi.",
            "max_output_tokens": 9,
            "tools": [{"type": "function", **_FUNCTION}],
            "tool_choice": "required",
            "store": False,
        },
        {
            "input": "Hi.",
            "max_output_tokens": 9,
            "text": {"format": {"type": "json_schema", "name": "s", "schema": _SCHEMA}},
            "store": False,
        },
        {
            "input": [
                {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": "7"},
            ],
            "max_output_tokens": 3,
            "store": False,
        },
        {"input": "Hi.", "max_output_tokens": 3, "background": True},
    ],
    "/v1/responses/input_tokens": [
        {"input": "Hi.", "instructions": "x", "tools": [{"type": "function", **_FUNCTION}]}
    ],
    "/v1/embeddings": [
        {"input": "An octavo is"},
        {"model": "tiny", "input": [[5, 6], [7]], "encoding_format": "base64", "dimensions": 8, "user": "u"},
        {"input": ["a", "b"], "pooling": "mean", "normalize": True, "truncate_prompt_tokens": 4},
    ],
    "/v1/messages": [
        {"model": "tiny", "max_tokens": 4, "messages": [{"role": "user", "content": "Hi."}]},
        {
            "model": "tiny",
            "max_tokens": 4,
            "system": [{"type": "text", "text": "Short."}],
            "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi."}]}],
            "stream": True,
            "temperature": 0.3,
            "top_k": 5,
            "top_p": 0.5,
            "stop_sequences": ["x"],
            "metadata": {"user_id": "u"},
        },
        {
            "model": "tiny",
            "max_tokens": 12,
            "messages": [{"role": "user", "content": "Hi."}],
            "tools": [{"name": "look", "description": "d", "input_schema": _SCHEMA}],
            "tool_choice": {"type": "any"},
            "thinking": {"type": "disabled"},
        },
        {
            "model": "tiny",
            "max_tokens": 3,
            "messages": [
                {"role": "user", "content": "Hi."},
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "id": "t", "name": "look", "input": {"a": 1}}],
                },
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "7"}]},
            ],
        },
    ],
    "/v1/messages/count_tokens": [
        {"model": "tiny", "messages": [{"role": "user", "content": "Hi."}], "system": "x"},
    ],
    "/api/chat": [
        {
            "model": "tiny",
            "messages": [{"role": "user", "content": "Hi."}],
            "options": _OPTIONS,
            "stream": False,
        },
        {
            "model": "tiny",
            "messages": [{"role": "user", "content": "Hi."}],
            "options": _OPTIONS,
            "tools": _TOOLS,
            "think": False,
        },
        {
            "model": "tiny:latest",
            "messages": [{"role": "user", "content": "Hi."}],
            "options": {"num_predict": 9},
            "format": _SCHEMA,
            "stream": False,
            "keep_alive": "5m",
        },
    ],
    "/api/generate": [
        {"model": "tiny", "prompt": "Hi.", "system": "x", "options": _OPTIONS, "stream": False},
        {
            "model": "tiny",
            "prompt": "Hi.",
            "raw": True,
            "options": {"num_predict": 3},
            "logprobs": True,
            "top_logprobs": 1,
        },
        {"model": "tiny", "prompt": "Hi.", "format": "json", "options": {"num_predict": 6}, "context": []},
    ],
    "/api/embed": [{"model": "tiny", "input": ["a", "b"], "truncate": True}, {"model": "tiny", "input": "a"}],
    "/api/embeddings": [{"model": "tiny", "prompt": "a"}],
    "/api/show": [{"model": "tiny", "verbose": True}],
    "/api/pull": [{"model": "tiny", "stream": False}],
    "/tokenize": [
        {"prompt": "An octavo", "add_special_tokens": True, "return_token_strs": True},
        {"messages": _TURNS},
    ],
    "/detokenize": [{"tokens": [5, 6, 7]}],
    "/v1/batches": [
        {
            "input_file_id": "<file>",
            "endpoint": "/v1/completions",
            "completion_window": "24h",
            "metadata": {"a": "b"},
            "output_expires_after": {"anchor": "created_at", "seconds": 3600},
        },
    ],
}
"""By path, what is answered with 200."""

OTHERS = (
    "/v1/responses/<response>/cancel",
    "/v1/batches/<batch>/cancel",
    "/api/create",
    "/api/copy",
    "/api/push",
    "/api/delete",
    "/api/blobs/sha256:0",
)
"""Paths whose body says nothing, or that are there only to be refused."""

FORM = (
    b'--B\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    b'--B\r\nContent-Disposition: form-data; name="expires_after[anchor]"\r\n\r\ncreated_at\r\n'
    b'--B\r\nContent-Disposition: form-data; name="expires_after[seconds]"\r\n\r\n3600\r\n'
    b'--B\r\nContent-Disposition: form-data; name="file"; filename="in.jsonl"\r\nContent-Type: application/json\r\n\r\n'
    b'{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x", "max_tokens": 2}}\n'
    b'{"custom_id": "b", "method": "POST", "url": "/v1/completions", "body": {"prompt": "y", "max_tokens": 2}}\r\n'
    b"--B--\r\n"
)
"""A form for /v1/files."""


def _fields() -> list[str]:
    """Every field that any body has, at any depth of the right ones or in a route's own struct."""
    names: set[str] = set()
    for module in app._MODULES:
        for body in getattr(module, "BODIES", {}).values():
            for info in msgspec.inspect.multi_type_info([body]):
                assert isinstance(info, msgspec.inspect.StructType)
                names.update(field.encode_name for field in info.fields)
    left: list[Any] = list(EXAMPLES.values())
    while left:
        one = left.pop()
        if isinstance(one, dict):
            names.update(one)
            left.extend(one.values())
        elif isinstance(one, list):
            left.extend(one)
    return sorted(names)


FIELDS = _fields()


def _as_route(path: str) -> str:
    return (
        path.replace("<response>", "{response_id}")
        .replace("<batch>", "{batch_id}")
        .replace("sha256:0", "{digest}")
    )


_TAKING = {route.path for route in app.ROUTES if "POST" in (route.methods or ())}
assert {_as_route(path) for path in (*EXAMPLES, *OTHERS, "/v1/files")} == _TAKING, "a route is missing here"
