"""Run by test_programs.py in the clients' environment: what `litellm` makes of a server."""

from __future__ import annotations

import json
import sys
from typing import Any

import litellm


def main(task: dict[str, Any]) -> dict[str, Any]:
    place = {"api_base": task["url"], "api_key": "none", "temperature": 0}
    messages = [{"role": "user", "content": task["question"]}]
    settings: Any = {"model": f"openai/{task['model']}", "messages": messages, **place}
    answer = litellm.completion(**settings, max_tokens=24)
    chunks = [chunk.choices[0] for chunk in litellm.completion(**settings, max_tokens=24, stream=True)]
    text = litellm.text_completion(
        model=f"text-completion-openai/{task['model']}", prompt=task["prompt"], max_tokens=12, **place
    )
    schema = {
        "type": "json_schema",
        "json_schema": {"name": "book", "schema": task["schema"], "strict": True},
    }
    structured = litellm.completion(**settings, max_tokens=80, response_format=schema)
    tool = {"type": "function", "function": {"name": "Book", "parameters": task["schema"]}}
    called = litellm.completion(
        **settings, max_tokens=80, tools=[tool], tool_choice="required", parallel_tool_calls=False
    )
    message = litellm.completion(
        model=f"anthropic/{task['model']}",
        messages=messages,
        max_tokens=24,
        temperature=0,
        api_key="none",
        api_base=task["url"].removesuffix("/v1"),
    )
    vectors = litellm.embedding(
        model=f"openai/{task['model']}", input=[task["prompt"]], api_base=task["url"], api_key="none"
    )
    refused = ""
    try:
        litellm.completion(**{**settings, "model": "openai/nobody"})
    except litellm.NotFoundError as error:
        refused = str(error)
    return {
        "completion": answer.choices[0].message.content,
        "finish_reason": answer.choices[0].finish_reason,
        "stream": "".join(chunk.delta.content or "" for chunk in chunks),
        "stream_end": chunks[-1].finish_reason,
        "text_completion": text.choices[0].text,
        "structured": json.loads(structured.choices[0].message.content),
        "called": [
            (call.function.name, json.loads(call.function.arguments))
            for call in called.choices[0].message.tool_calls
        ],
        "message": message.choices[0].message.content,
        "vector": vectors.data[0]["embedding"],
        "refused": refused,
    }


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
