"""Streamed equals whole, byte for byte, on every endpoint: over any tokens, however they are grouped into outputs.

The engine is scripted (tests/server/scripted_engine.py); server, sockets, tokenizer and scheduler are real. One more
endpoint is one more line in `ENDPOINTS`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo.models.store import StoredModel
from octavo.text.tokenizer import Tokenizer
from tests.server.conftest import Server
from tests.server.scripted import Case, cases, expected_text
from tests.server.scripted_engine import Script

PROMPT = "Thé prompt🙂 "


class Said(NamedTuple):
    """An answer, whole or joined from a stream. `rest`: all that must be equal beside the texts."""

    texts: list[str]
    rest: Any


class Endpoint(NamedTuple):
    """How one route is asked, and how its answers are read. `choices`: it knows n, logprobs, echo and the like."""

    path: str
    body: Callable[[Case], dict[str, Any]]
    join: Callable[[bytes, Case], Said]
    """The bytes of a stream; asserts its protocol."""
    take: Callable[[Any], Said]
    choices: bool = False


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
        "seed": 11,
    }


def completion_body(case: Case) -> dict[str, Any]:
    return {"prompt": PROMPT, "logprobs": case.logprobs, "echo": case.echo, **sampling(case)}


def chat_body(case: Case) -> dict[str, Any]:
    wanted = {} if case.logprobs is None else {"logprobs": True, "top_logprobs": case.logprobs}
    return {"messages": [{"role": "user", "content": PROMPT}], **wanted, **sampling(case)}


def completion_take(answer: Any) -> Said:
    return openai_said(answer, [choice.pop("text") for choice in answer["choices"]])


def chat_take(answer: Any) -> Said:
    texts = [choice["message"].pop("content") for choice in answer["choices"]]
    assert all(
        choice.pop("message") == {"role": "assistant", "refusal": None} for choice in answer["choices"]
    )
    return openai_said(answer, texts)


def openai_said(answer: Any, texts: list[str]) -> Said:
    assert answer.pop("id") and answer.pop("created")
    del answer["object"]
    return Said(texts, answer)


def completion_join(data: bytes, case: Case) -> Said:
    return openai_join(sse(data), case, lambda choice: choice["text"])


def chat_join(data: bytes, case: Case) -> Said:
    events = sse(data)
    for index in range(case.n):
        deltas = [c["delta"] for event in events for c in event["choices"] if c["index"] == index]
        assert deltas[0] == {"role": "assistant", "content": ""}
        assert all(delta.keys() == {"content"} for delta in deltas[1:-1])
        assert deltas[-1] == {}
    return openai_join(events, case, lambda choice: choice["delta"].get("content", ""))


def message_body(case: Case) -> dict[str, Any]:
    messages = [{"role": "user", "content": PROMPT}]
    return {
        "messages": messages,
        "max_tokens": case.max_tokens,
        "stop_sequences": list(case.stop),
        "seed": 11,
    }


def message_take(answer: Any) -> Said:
    assert answer.pop("id")
    for name in ("input_tokens", "cache_read_input_tokens"):  # the second finds the first's blocks
        del answer["usage"][name]
    return Said(["".join(block["text"] for block in answer.pop("content"))], answer)


def message_join(data: bytes, case: Case) -> Said:
    text = data.decode()
    assert text.endswith("\n\n")
    pairs = [event.split("\n") for event in text.removesuffix("\n\n").split("\n\n")]
    events = [msgspec.json.decode(data.removeprefix("data: ")) for _, data in pairs]
    kinds = [event["type"] for event in events]
    assert [name for name, _ in pairs] == [f"event: {kind}" for kind in kinds]
    texts = [event["delta"]["text"] for event in events if event["type"] == "content_block_delta"]
    assert all(texts)
    block = ["content_block_start", *["content_block_delta"] * len(texts), "content_block_stop"]
    assert kinds == ["message_start", *(block if texts else []), "message_delta", "message_stop"]
    end = events[-2]
    message = {**events[0]["message"], **end["delta"], "content": [{"text": "".join(texts)}]}
    message["usage"] |= end["usage"]
    return message_take(message)


def openai_join(events: list[Any], case: Case, text: Callable[[Any], str]) -> Said:
    """Case 17: the index and finish_reason of every chunk, one finishing chunk of each choice, then usage."""
    assert len({msgspec.json.encode({**e, "choices": 0, "usage": 0}) for e in events}) == 1
    *chunks, last = events
    assert last["choices"] == []
    assert all(len(event["choices"]) == 1 and event["usage"] is None for event in chunks)
    choices, texts = [], []
    for index in range(case.n):
        parts = [c for event in chunks for c in event["choices"] if c["index"] == index]
        assert [part["finish_reason"] is None for part in parts] == [True] * (len(parts) - 1) + [False]
        assert all("stop_reason" not in part for part in parts[:-1])
        assert text(parts[-1]) == "" and parts[-1]["logprobs"] is None
        texts.append("".join(map(text, parts)))
        scores = [part["logprobs"] for part in parts if part["logprobs"] is not None]
        ends = {name: parts[-1][name] for name in ("finish_reason", "stop_reason")}
        choices.append({"index": index, "logprobs": joined_logprobs(scores, case), **ends})
    assert len(chunks) == sum(1 for event in chunks if event["choices"][0]["index"] < case.n)
    return openai_said({**last, "choices": choices}, texts)


def joined_logprobs(scores: list[Any], case: Case) -> dict[str, Any] | None:
    if case.logprobs is None:
        assert not scores
        return None
    first, *others = scores
    for other in others:
        assert other.keys() == first.keys()
        for name, values in other.items():
            if values is not None:  # a chat's refusal
                first[name] += values
    return first  # type: ignore[no-any-return]


ENDPOINTS = {
    "completions": Endpoint(
        "/v1/completions", completion_body, completion_join, completion_take, choices=True
    ),
    "chat": Endpoint("/v1/chat/completions", chat_body, chat_join, chat_take, choices=True),
    "messages": Endpoint("/v1/messages", message_body, message_join, message_take),
}


class Scripted(NamedTuple):
    """A server over the scripted engine, and where its script is written."""

    server: Server
    file: Path
    tokenizer: Tokenizer
    ends: tuple[int, ...]

    def ask(self, path: str, body: dict[str, Any]) -> bytes:
        """The bytes of an answer that must succeed."""
        response = self.server.post(path, **body)
        assert response.status_code == 200, response.text
        return response.content


@pytest.fixture(scope="module")
def scripted(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scripted]:
    file = tmp_path_factory.mktemp("script") / "script.json"
    command = [sys.executable, "-m", "tests.server.scripted_engine", "--script", str(file)]
    server = Server({"model_dir": str(model_dir)}, engine_command=command)
    model = StoredModel.load(model_dir)
    yield Scripted(server, file, model.tokenizer(), model.spec.eos_ids)
    assert server.stop() == 0


def check(scripted: Scripted, endpoint: Endpoint, case: Case) -> Said:
    """Ask both ways; what was said."""
    case.script.write(scripted.file)
    body = endpoint.body(case)
    whole = endpoint.take(msgspec.json.decode(scripted.ask(endpoint.path, {**body, "stream": False})))
    usage = {"stream_options": {"include_usage": True}} if endpoint.choices else {}
    joined = endpoint.join(scripted.ask(endpoint.path, {**body, "stream": True, **usage}), case)
    assert joined == whole
    before = PROMPT if case.echo and "prompt" in body else ""
    vocabulary = scripted.tokenizer.vocabulary
    assert whole.texts == [
        before + expected_text(case, child, vocabulary, scripted.ends) for child in range(case.n)
    ]
    return whole


@pytest.mark.parametrize("name", ENDPOINTS)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_streamed_equals_whole(scripted: Scripted, name: str, data: st.DataObject) -> None:
    """Also: what was said is what the script says, and every delta is valid UTF-8 (cases 15 to 17)."""
    endpoint = ENDPOINTS[name]
    check(scripted, endpoint, data.draw(cases(scripted.tokenizer, scripted.ends, choices=endpoint.choices)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ENDPOINTS)
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_streamed_equals_whole_at_length(scripted: Scripted, name: str, data: st.DataObject) -> None:
    endpoint = ENDPOINTS[name]
    check(scripted, endpoint, data.draw(cases(scripted.tokenizer, scripted.ends, choices=endpoint.choices)))


@pytest.mark.parametrize("name", ENDPOINTS)
def test_the_script_decides_where_a_stream_is_cut(scripted: Scripted, name: str) -> None:
    """Else the property would hold for one grouping only."""
    endpoint = ENDPOINTS[name]
    tokens = scripted.tokenizer.encode("One two three four five six seven eight nine ten eleven twelve")
    counts = []
    for group in (1, 4):
        case = Case(Script([tokens], [[group]], pause_s=0.01), max_tokens=100)
        case.script.write(scripted.file)
        stream = scripted.ask(endpoint.path, {**endpoint.body(case), "stream": True})
        counts.append(stream.count(b"\n\n"))
    assert counts[0] > counts[1] + len(tokens) // 2
