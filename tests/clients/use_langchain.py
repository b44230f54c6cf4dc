"""Run by test_programs.py in the clients' environment: what `langchain-openai` makes of a server."""

from __future__ import annotations

import json
import sys
from typing import Any

from langchain_openai import ChatOpenAI, OpenAI


def main(task: dict[str, Any]) -> dict[str, Any]:
    settings: Any = {"base_url": task["url"], "api_key": "none", "model": task["model"], "temperature": 0}
    answer = ChatOpenAI(**settings, max_tokens=24).invoke(task["question"])
    pieces = list(ChatOpenAI(**settings, max_tokens=24, stream_usage=True).stream(task["question"]))
    structured = ChatOpenAI(**settings, max_tokens=80).with_structured_output(
        task["schema"], method="json_schema"
    )
    return {
        "invoke": answer.content,
        "usage": answer.usage_metadata,
        "stream": "".join(str(piece.content) for piece in pieces),
        "pieces": len(pieces),
        "stream_usage": [piece.usage_metadata for piece in pieces if piece.usage_metadata][-1],
        "completion": OpenAI(**settings, max_tokens=12).invoke(task["prompt"]),
        "structured": structured.invoke("Name a book."),
    }


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
