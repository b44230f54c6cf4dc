"""Run by test_programs.py in the clients' environment: what `langchain-openai` makes of a server."""

from __future__ import annotations

import json
import sys
from typing import Any

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings


def main(task: dict[str, Any]) -> dict[str, Any]:
    settings: Any = {"base_url": task["url"], "api_key": "none", "model": task["model"], "temperature": 0}
    answer = ChatOpenAI(**settings, max_tokens=24).invoke(task["question"])
    pieces = list(ChatOpenAI(**settings, max_tokens=24, stream_usage=True).stream(task["question"]))
    chat = ChatOpenAI(**settings, max_tokens=80)
    asked = HumanMessage("Look up a book.")
    caller = chat.bind_tools([task["schema"]], tool_choice="any", parallel_tool_calls=False)
    called = caller.invoke([asked])
    joined: Any = None
    for piece in caller.stream([asked]):
        joined = piece if joined is None else joined + piece
    results = [ToolMessage("It has been found.", tool_call_id=call["id"]) for call in called.tool_calls]
    responses = ChatOpenAI(**settings, max_tokens=24, use_responses_api=True)
    embeddings = OpenAIEmbeddings(
        base_url=task["url"], api_key="none", model=task["model"], check_embedding_ctx_length=False
    )
    return {
        "invoke": answer.content,
        "usage": answer.usage_metadata,
        "stream": "".join(str(piece.content) for piece in pieces),
        "pieces": len(pieces),
        "stream_usage": [piece.usage_metadata for piece in pieces if piece.usage_metadata][-1],
        "completion": OpenAI(**settings, max_tokens=12).invoke(task["prompt"]),
        "structured": {
            method: chat.with_structured_output(task["schema"], method=method).invoke("Name a book.")
            for method in ("json_schema", "function_calling")
        },
        "called": [(call["name"], call["args"]) for call in called.tool_calls],
        "streamed_call": [(call["name"], call["args"]) for call in joined.tool_calls],
        "after_the_call": caller.bind(tool_choice="none").invoke([asked, called, *results]).content,
        "response": responses.invoke(task["question"]).text,
        "streamed_response": "".join(piece.text for piece in responses.stream(task["question"])),
        "vectors": embeddings.embed_documents(["An octavo", "A quarto"]),
    }


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
