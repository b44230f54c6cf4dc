"""Ollama's answers: streamed lines equal the whole, calls are told whole."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given

from octavo.protocol.ollama import ChatBody
from octavo.protocol.ollama_reply import ChatLines, GenerateLines
from octavo.protocol.reply import Choice, Usage
from octavo.text.pieces import Piece
from tests.protocol.test_anthropic import answers


@given(answers())
def test_streamed_equals_whole(pieces: list[Piece]) -> None:
    choice = Choice(0, tokens=[1, 2], finish_reason="length")
    usage = Usage(prompt=5, completion=2)
    reply = ChatLines("m", "r", 0.0)
    data = reply.begin(choice, usage)
    for piece in pieces:
        choice.add(piece)
        data += reply.delta(choice, piece, None)
    data += reply.finish(choice) + reply.closing(usage)
    whole: dict[str, Any] = msgspec.json.decode(reply.whole([choice], usage))["message"]
    joined: dict[str, Any] = {"role": "assistant", "content": ""}
    for line in map(msgspec.json.decode, data.splitlines()):
        for name, value in line["message"].items():
            if name != "role":
                joined[name] = joined.get(name, type(value)()) + value
    cut = [call.arguments for call in choice.calls if call.arguments.startswith('{"cut"')]
    assert sorted(joined.pop("content")) == sorted(whole.pop("content"))  # what was cut off stands last
    assert joined == whole
    assert len(whole.get("tool_calls", [])) == len(choice.calls) - len(cut)


@pytest.mark.parametrize(
    ("stop_reason", "finish", "context"),
    [(None, "stop", [7, 1]), ("STOP", "stop", [7, 1, 2]), (None, "length", [7, 1, 2])],
)
def test_a_context_leaves_out_the_end_token(stop_reason: Any, finish: Any, context: list[int]) -> None:
    choice = Choice(0, tokens=[1, 2], finish_reason=finish, stop_reason=stop_reason)
    reply = GenerateLines("m", "r", 0.0, [7])
    assert msgspec.json.decode(reply.whole([choice], Usage()))["context"] == context


@pytest.mark.parametrize(
    ("keep_alive", "unloads"),
    [
        (0, True),
        ("0", True),
        ("0s", True),
        (0.0, True),
        ("1h30m", False),
        (-1, False),
        ("-1m", False),
        (None, False),
    ],
)
def test_durations(keep_alive: Any, unloads: bool) -> None:
    body = ChatBody(model="m", keep_alive=keep_alive)
    body.check_keep_alive()
    assert body.unloads is unloads
