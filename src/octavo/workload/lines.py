"""Requests as lines of a file: the plain JSONL that `traces` reads, and Mooncake's. Knows no workload."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal

import msgspec

from octavo.errors import WorkloadError
from octavo.workload.request import Request
from octavo.workload.traces import HASH_TOKENS

__all__ = ["PromptForm", "mooncake_lines", "plain_lines"]

PromptForm = Literal["ids", "text", "parts"]


def plain_lines(requests: Iterable[Request], prompts: PromptForm, vocabulary: int) -> Iterator[bytes]:
    """One JSON object a request. `prompts`: a made-up one as token ids, as words, or as the parts it is made of;
    a real one stays as it is."""
    for request in requests:
        line: dict[str, Any] = {"index": request.index, "at_s": request.at_s}
        if request.after is not None:
            line |= {"after": request.after, "delay_s": request.delay_s}
        if request.tenant is not None:
            line["tenant"] = request.tenant
        line |= {"priority": request.priority, "session": request.session, "turn": request.turn}
        if request.messages is not None:
            line["messages"] = request.messages
        elif request.text is not None:
            line["prompt"] = request.text
        elif request.ids is not None:
            line["prompt"] = request.ids
        elif prompts == "ids":
            line["prompt"] = request.token_ids(vocabulary)
        elif prompts == "text":
            line["prompt"] = request.prompt_text()
        else:
            line["parts"] = request.parts
        if request.input_tokens is not None:
            line["input_tokens"] = request.input_tokens
        yield msgspec.json.encode({**line, "output_tokens": request.output_tokens}) + b"\n"


def mooncake_lines(requests: Iterable[Request]) -> Iterator[bytes]:
    """Mooncake's trace: milliseconds, lengths, and the numbers of blocks, counted from 0 as they first appear.

    A request that waits for another has its earliest time. Memory: about 130 bytes for each different block.
    Raises WorkloadError for a real text, whose tokens are not known.
    """
    numbers: dict[bytes, int] = {}
    for request in requests:
        if request.text is not None or request.messages is not None:
            raise WorkloadError(
                f"Request {request.index} has a text for a prompt, and Mooncake's format has token counts; "
                "write it as plain JSONL."
            )
        blocks = request.block_hashes(HASH_TOKENS, partial=True)
        line = {
            "timestamp": int(request.at_s * 1000 + 1e-6),
            "input_length": request.input_tokens,
            "output_length": request.output_tokens,
            "hash_ids": [numbers.setdefault(one, len(numbers)) for one in blocks],
        }
        yield msgspec.json.encode(line) + b"\n"
