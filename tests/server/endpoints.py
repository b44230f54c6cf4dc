"""How each route is asked for what a script says, and how its answers are read, whole and streamed.

One more route is one more entry of `ENDPOINTS`, and all of test_streaming.py is asked of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from tests.server.scripted import FUNCTIONS, Case, Parts

__all__ = ["ENDPOINTS", "PROMPT", "Endpoint", "Said"]

PROMPT = "Thé prompt🙂 "


class Said(NamedTuple):
    """An answer, whole or joined from a stream. `rest`: all that must be equal beside the parts."""

    parts: list[Parts]
    """Of each choice."""
    rest: Any


class Endpoint(NamedTuple):
    """How one route is asked, and how its answers are read. `choices`: it knows n, logprobs, echo and the like."""

    path: str
    body: Callable[[Case], dict[str, Any]]
    join: Callable[[bytes, Case], Said]
    """The bytes of a stream; asserts its protocol."""
    take: Callable[[Any], Said]
    choices: bool = False
    tools: Callable[[], dict[str, Any]] | None = None
    """The fields that name `FUNCTIONS`; None: it knows no tools."""


def sse(data: bytes) -> list[Any]:
    """The events of OpenAI's streams: JSON, the last one `[DONE]`, which is left out."""
    text = data.decode()
    assert text.endswith("\n\n")
    events = text.removesuffix("\n\n").split("\n\n")
    assert all(event.startswith("data: ") and "\n" not in event for event in events)
    assert events.count("data: [DONE]") == 1 and events[-1] == "data: [DONE]"
    return [msgspec.json.decode(event.removeprefix("data: ")) for event in events[:-1]]


def sampling(case: Case) -> dict[str, Any]:
    """What chat and completions have in common."""
    return {
        "max_tokens": case.max_tokens,
        "n": case.n,
        "stop": list(case.stop) or None,
        "skip_special_tokens": case.skip_special_tokens,
        "include_stop_str_in_output": case.include_stop,
        "return_token_ids": case.token_ids,
        "seed": 11,
    }


def completion_body(case: Case) -> dict[str, Any]:
    return {"prompt": PROMPT, "logprobs": case.logprobs, "echo": case.echo, **sampling(case)}


def chat_body(case: Case) -> dict[str, Any]:
    wanted = {} if case.logprobs is None else {"logprobs": True, "top_logprobs": case.logprobs}
    return {"messages": [{"role": "user", "content": PROMPT}], **wanted, **sampling(case)}


def chat_tools() -> dict[str, Any]:
    functions = [{"name": name, "parameters": schema} for name, schema in FUNCTIONS.items()]
    return {"tools": [{"type": "function", "function": function} for function in functions]}


def completion_take(answer: Any) -> Said:
    return openai_said(answer, [Parts(choice.pop("text")) for choice in answer["choices"]])


def chat_take(answer: Any) -> Said:
    parts = []
    for choice in answer["choices"]:
        message = choice.pop("message")
        assert message.pop("role") == "assistant" and message.pop("refusal") is None
        calls = message.pop("tool_calls", [])
        assert all(call.keys() == {"id", "type", "function"} for call in calls)
        assert len({call["id"] for call in calls}) == len(calls)
        functions = tuple((call["function"]["name"], call["function"]["arguments"]) for call in calls)
        text, reasoning = message.pop("content"), message.pop("reasoning_content", "")
        assert not message
        assert text or text == (None if calls else "")
        parts.append(Parts(text or "", reasoning, functions))
    return openai_said(answer, parts)


def message_body(case: Case) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": case.max_tokens,
        "stop_sequences": list(case.stop),
        "seed": 11,
    }


def message_tools() -> dict[str, Any]:
    return {"tools": [{"name": name, "input_schema": schema} for name, schema in FUNCTIONS.items()]}


def message_take(answer: Any) -> Said:
    assert answer.pop("id")
    for name in ("input_tokens", "cache_read_input_tokens"):  # the second finds the first's blocks
        del answer["usage"][name]
    said = {"text": "", "thinking": ""}
    calls = []
    for block in answer.pop("content"):
        if block["type"] == "tool_use":
            assert block["id"]
            calls.append((block["name"], json.dumps(block["input"], ensure_ascii=False)))
        else:
            said[block["type"]] += block[block["type"]]
    return Said([Parts(said["text"], said["thinking"], tuple(calls))], answer)


def message_join(data: bytes, case: Case) -> Said:
    """Each block is opened, told and closed before the next."""
    events = named_events(data)
    start, *inner, end, stop = events
    assert (start["type"], end["type"], stop["type"]) == ("message_start", "message_delta", "message_stop")
    blocks: list[Any] = []
    for event in inner:
        kind = event["type"].removeprefix("content_block_")
        assert event["index"] == len(blocks) - (kind != "start")
        if kind == "start":
            assert not blocks or blocks[-1]["closed"]
            blocks.append({**event["content_block"], "closed": False, "partial_json": ""})
            continue
        assert not blocks[-1]["closed"]
        if kind == "stop":
            blocks[-1]["closed"] = True
            continue
        delta = event["delta"]
        field = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}
        assert delta[field[delta["type"]]]
        blocks[-1][field[delta["type"]]] += delta[field[delta["type"]]]
    assert all(block["closed"] for block in blocks)
    for block in blocks:
        if block["type"] == "tool_use" and block["partial_json"]:
            try:
                block["input"] = msgspec.json.decode(block["partial_json"])
            except msgspec.DecodeError:
                block["input"] = {"INVALID_JSON": block["partial_json"]}
    message = {**start["message"], **end["delta"], "content": blocks}
    message["usage"] |= end["usage"]
    return message_take(message)


def response_body(case: Case) -> dict[str, Any]:
    return {
        "input": PROMPT,
        "max_output_tokens": case.max_tokens,
        "stop": list(case.stop) or None,
        "top_logprobs": 1,
        "store": False,
        "seed": 11,
    }


def response_tools() -> dict[str, Any]:
    return {
        "tools": [
            {"type": "function", "name": name, "parameters": schema} for name, schema in FUNCTIONS.items()
        ]
    }


def response_take(answer: Any) -> Said:
    assert answer.pop("id") and answer.pop("created_at")
    assert (answer.pop("completed_at") is None) == (answer["status"] == "incomplete")
    said = {"message": "", "reasoning": ""}
    calls = []
    for item in answer["output"]:
        assert item.pop("id")
        if item["type"] == "function_call":
            assert item.pop("call_id")
            calls.append((item["name"], item["arguments"]))
        else:
            said[item["type"]] += "".join(part["text"] for part in item["content"])
    return Said([Parts(said["message"], said["reasoning"], tuple(calls))], answer)


def response_join(data: bytes, case: Case) -> Said:
    """The last event has the answer; the others must have told the same."""
    events = named_events(data)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    created, progress, *inner, end = events
    assert (created["type"], progress["type"]) == ("response.created", "response.in_progress")
    answer = end["response"]
    assert end["type"] == f"response.{answer['status']}"
    told: list[dict[str, Any]] = []
    for event in inner:
        kind = event["type"].removeprefix("response.")
        assert event["output_index"] == len(told) - (kind != "output_item.added") or kind.endswith("done")
        if kind == "output_item.added":
            assert event["item"]["status"] == "in_progress"
            told.append({"text": "", "logprobs": []})
        elif kind.endswith(".delta"):
            assert event["delta"]
            told[-1]["text"] += event["delta"]
            told[-1]["logprobs"] += event.get("logprobs", [])
        elif kind == "output_item.done":
            assert event["item"] == answer["output"][event["output_index"]]
    for item, joined in zip(answer["output"], told, strict=True):
        if item["type"] == "function_call":
            assert item["arguments"] == joined["text"]
        else:
            (part,) = item["content"]
            assert part["text"] == joined["text"]
    return response_take(answer)


def named_events(data: bytes) -> list[Any]:
    """The events of a stream whose events have names, which they repeat as their types."""
    text = data.decode()
    assert text.endswith("\n\n")
    pairs = [event.split("\n") for event in text.removesuffix("\n\n").split("\n\n")]
    events = [msgspec.json.decode(said.removeprefix("data: ")) for _, said in pairs]
    assert [name for name, _ in pairs] == [f"event: {event['type']}" for event in events]
    return events


def lines_body(case: Case) -> dict[str, Any]:
    options = {"num_predict": case.max_tokens, "stop": list(case.stop), "seed": 11}
    return {"model": "tiny", "messages": [{"role": "user", "content": PROMPT}], "options": options}


def lines_take(answer: Any) -> Said:
    for name in [name for name in answer if name.endswith("_duration") or name == "created_at"]:
        del answer[name]
    message = answer.pop("message")
    assert message.pop("role") == "assistant"
    calls = [call["function"] for call in message.pop("tool_calls", [])]
    functions = tuple((call["name"], json.dumps(call["arguments"], ensure_ascii=False)) for call in calls)
    parts = Parts(message.pop("content"), message.pop("thinking", ""), functions)
    assert not message
    return Said([parts], answer)


def lines_join(data: bytes, case: Case) -> Said:
    """Lines, the last of which says nothing but the end; calls come whole."""
    assert data.endswith(b"\n")
    *lines, last = [msgspec.json.decode(line) for line in data.splitlines()]
    assert last["done"] and not any(line["done"] for line in lines)
    assert last["message"] == {"role": "assistant", "content": ""}
    message = last["message"]
    for said in [line["message"] for line in lines]:
        assert said.pop("role") == "assistant"
        assert any(said.values())
        for name, value in said.items():
            message[name] = message.get(name, type(value)()) + value
    return lines_take(last)


def generate_body(case: Case) -> dict[str, Any]:
    body = lines_body(case)
    del body["messages"]
    return {**body, "prompt": PROMPT}


def generate_take(answer: Any) -> Said:
    return lines_take(as_chat(answer))


def generate_join(data: bytes, case: Case) -> Said:
    lines = [as_chat(msgspec.json.decode(line)) for line in data.splitlines()]
    return lines_join(b"".join(msgspec.json.encode(line) + b"\n" for line in lines), case)


def as_chat(answer: dict[str, Any]) -> dict[str, Any]:
    """The same as Ollama's chat says it."""
    thought = {"thinking": answer.pop("thinking")} if "thinking" in answer else {}
    message = {"role": "assistant", "content": answer.pop("response"), **thought}
    return {**answer, "message": message}


def openai_said(answer: Any, parts: list[Parts]) -> Said:
    assert answer.pop("id") and answer.pop("created")
    del answer["object"]
    return Said(parts, answer)


def completion_join(data: bytes, case: Case) -> Said:
    return openai_join(sse(data), case, lambda chunks: Parts("".join(chunk["text"] for chunk in chunks)))


def chat_join(data: bytes, case: Case) -> Said:
    return openai_join(sse(data), case, chat_parts)


def chat_parts(chunks: list[Any]) -> Parts:
    """The deltas of one choice: the role first, one thing in each that follows, nothing in the last."""
    first, *deltas, last = [chunk["delta"] for chunk in chunks]
    assert first == {"role": "assistant", "content": ""} and last == {}
    joined = {"content": "", "reasoning_content": ""}
    calls: list[list[str]] = []
    for delta in deltas:
        [(kind, said)] = delta.items()
        if kind != "tool_calls":
            joined[kind] += said
            continue
        [call] = said
        function = call["function"]
        if "id" in call:
            assert call["index"] == len(calls) and call["type"] == "function" and call["id"]
            calls.append([function["name"], ""])
        else:
            assert call.keys() == {"index", "function"} and function.keys() == {"arguments"}
        calls[call["index"]][1] += function["arguments"]
    return Parts(
        joined["content"], joined["reasoning_content"], tuple((name, arguments) for name, arguments in calls)
    )


def openai_join(events: list[Any], case: Case, parts_of: Callable[[list[Any]], Parts]) -> Said:
    """Case 17: the index and finish_reason of every chunk, one finishing chunk of each choice, then usage."""
    prompt_ids = [ids for event in events if (ids := event.pop("prompt_token_ids", None)) is not None]
    assert len({msgspec.json.encode({**e, "choices": 0, "usage": 0}) for e in events}) == 1
    *chunks, last = events
    assert last["choices"] == []
    assert all(len(event["choices"]) == 1 for event in chunks)
    check_usage([event["usage"] for event in chunks], chunks, last["usage"], case)
    choices, parts = [], []
    for index in range(case.n):
        own = [c for event in chunks for c in event["choices"] if c["index"] == index]
        assert [chunk["finish_reason"] is None for chunk in own] == [True] * (len(own) - 1) + [False]
        assert all("stop_reason" not in chunk for chunk in own[:-1])
        assert own[-1].get("text", "") == "" and own[-1]["logprobs"] is None
        parts.append(parts_of(own))
        scores = [chunk["logprobs"] for chunk in own if chunk["logprobs"] is not None]
        ends = {name: own[-1][name] for name in ("finish_reason", "stop_reason")}
        choices.append(
            {"index": index, "logprobs": joined_logprobs(scores, case), **ends, **joined_ids(own, case)}
        )
    assert all(event["choices"][0]["index"] < case.n for event in chunks)
    if prompt_ids:
        assert case.token_ids and prompt_ids == [prompt_ids[0]] * case.n
        last["prompt_token_ids"] = prompt_ids[0]
    return openai_said({**last, "choices": choices}, parts)


def check_usage(told: list[Any], chunks: list[Any], whole: Any, case: Case) -> None:
    """Of each choice, the count of tokens grows to its end, and the ends make the whole answer's."""
    if not case.continuous_usage:
        assert told == [None] * len(chunks)
        return
    ends = [0] * case.n
    for usage, event in zip(told, chunks, strict=True):
        [choice] = event["choices"]
        said, index = usage["completion_tokens"], choice["index"]
        assert (
            said == ends[index] + len(choice["token_ids"]) if "token_ids" in choice else said >= ends[index]
        )
        ends[index] = said
        asked = whole["prompt_tokens"]
        assert usage == {"prompt_tokens": asked, "completion_tokens": said, "total_tokens": asked + said}
    assert sum(ends) == whole["completion_tokens"]


def joined_ids(chunks: list[Any], case: Case) -> dict[str, Any]:
    """All token ids of a choice; a completion's prompt stands in its first chunk alone."""
    chunks = chunks[1:] if "delta" in chunks[0] else chunks  # a chat's role has no tokens
    assert all(("token_ids" in chunk) == case.token_ids for chunk in chunks)
    if not case.token_ids:
        return {}
    prompt = {} if "delta" in chunks[0] else {"prompt_token_ids": chunks[0]["prompt_token_ids"]}
    assert not any("prompt_token_ids" in chunk for chunk in chunks[1:])
    return {"token_ids": [token for chunk in chunks for token in chunk["token_ids"]], **prompt}


def joined_logprobs(scores: list[Any], case: Case) -> dict[str, Any] | None:
    if case.logprobs is None:
        assert not scores
        return None
    first: dict[str, Any]
    first, *others = scores
    for other in others:
        assert other.keys() == first.keys()
        for name, values in other.items():
            if values is not None:  # a chat's refusal
                first[name] += values
    return first


ENDPOINTS = {
    "completions": Endpoint(
        "/v1/completions", completion_body, completion_join, completion_take, choices=True
    ),
    "chat": Endpoint("/v1/chat/completions", chat_body, chat_join, chat_take, choices=True, tools=chat_tools),
    "messages": Endpoint("/v1/messages", message_body, message_join, message_take, tools=message_tools),
    "responses": Endpoint("/v1/responses", response_body, response_join, response_take, tools=response_tools),
    "lines": Endpoint("/api/chat", lines_body, lines_join, lines_take, tools=chat_tools),
    "generate": Endpoint("/api/generate", generate_body, generate_join, generate_take),
}
