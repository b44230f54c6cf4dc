"""Responses that go on from earlier ones, in the background, and after a restart; whose they are."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo.storage.database import Database
from octavo.storage.folder import DataFolder
from octavo.storage.records import ResponseRecord
from tests.server.conftest import Server
from tests.server.test_lifecycle import engine_pid
from tests.server.test_responses import events_of, lasting, respond

LONG = {"max_output_tokens": 400, "ignore_eos": True}


def stored(data: Path, response_id: str) -> ResponseRecord | None:
    """As another process finds it; a moment after its answer it may not be written yet."""
    database = Database(DataFolder(data))
    try:
        found = asyncio.run(database.run(lambda stored: stored.responses.get(response_id, None, 0)))
    finally:
        database.close()
    return found


def ids(server: Server, response: dict[str, Any]) -> list[int]:
    """Of its prompt and its answer."""
    tokens = b""

    def written() -> bool:
        nonlocal tokens
        record = stored(server.data, response["id"])
        tokens = (record and record.tokens) or b""
        return bool(tokens)

    server.until(written)
    return list(struct.unpack(f"<{len(tokens) // 4}i", tokens))


def status(server: Server, response_id: str) -> str:
    found: str = server.client.get(f"/v1/responses/{response_id}").json()["status"]
    return found


@pytest.fixture
def own(tiny_engine: dict[str, Any], tmp_path: Path) -> Iterator[Server]:
    server = Server(tiny_engine, data_dir=str(tmp_path / "data"))
    yield server
    if server.process.returncode is None:
        server.stop()


def test_three_turns_go_on_from_token_ids(server: Server) -> None:
    first = respond(server, input="Hello world", max_output_tokens=40, seed=1)
    second = respond(
        server, input="And?", max_output_tokens=40, seed=2, previous_response_id=first["id"], stop=["e", "a"]
    )
    third = respond(server, input="So?", max_output_tokens=40, seed=3, previous_response_id=second["id"])
    sequences = [ids(server, one) for one in (first, second, third)]
    for before, after, answer in zip(sequences, sequences[1:], (second, third), strict=False):
        assert after[: len(before)] == before
        assert answer["usage"]["input_tokens_details"]["cached_tokens"] >= (len(before) - 1) // 16 * 16 - 16

    # The counter-example: the same conversation as text is other tokens, and finds less in the cache.
    said = [one["output"][0] for one in (first, second)]
    turns = [{"role": "user", "content": text} for text in ("Hello world", "And?", "So?")]
    conversation = [turns[0], said[0], turns[1], said[1], turns[2]]
    anew = respond(server, input=conversation, max_output_tokens=1, store=False)
    assert anew["usage"]["input_tokens"] != third["usage"]["input_tokens"]
    items = server.client.get(f"/v1/responses/{third['id']}/input_items", params={"order": "asc"}).json()
    assert [item["content"][0]["text"] for item in items["data"]] == [
        "Hello world", said[0]["content"][0]["text"], "And?", said[1]["content"][0]["text"], "So?"
    ]  # fmt: skip


def test_instructions_are_those_of_the_last_request(server: Server) -> None:
    first = respond(server, input="Hello world", instructions="Be brief")
    bare = respond(server, input="On", previous_response_id=first["id"])
    turns = [
        {"role": "user", "content": "Hello world"},
        first["output"][0],
        {"role": "user", "content": "On"},
    ]
    assert lasting(bare["output"]) == lasting(respond(server, input=turns)["output"])
    assert bare["instructions"] is None
    again = respond(server, input="On", previous_response_id=first["id"], instructions="Be brief")
    before = ids(server, first)
    assert ids(server, again)[: len(before)] == before


def test_in_the_background_it_goes_on_when_its_client_has_gone(server: Server) -> None:
    whole = respond(server, input="Hello world", **LONG)
    made = respond(server, input="Hello world", background=True, **LONG)
    assert (made["status"], made["output"], made["background"]) == ("queued", [], True)
    server.until(lambda: status(server, made["id"]) not in ("queued", "in_progress"))
    found = server.client.get(f"/v1/responses/{made['id']}").json()
    assert found["status"] == "incomplete"
    assert lasting(found["output"]) == lasting(whole["output"])
    assert ids(server, found) == ids(server, whole)
    follow_up = respond(server, input="On", previous_response_id=made["id"])
    assert follow_up["output"]


def test_its_events_can_be_followed_again(server: Server) -> None:
    body = {"input": "Hello world", "background": True, "stream": True, "seed": 5, **LONG}
    with server.client.stream("POST", "/v1/responses", json=body) as response:
        begun = b""
        for data in response.iter_raw():
            begun += data
            if begun.count(b"\n\n") > 4:
                break  # the client leaves
    events = events_of(begun[: begun.rindex(b"\n\n") + 2].decode())
    assert [event["type"] for event in events[:3]] == [
        "response.created", "response.queued", "response.in_progress"
    ]  # fmt: skip
    path = f"/v1/responses/{events[0]['response']['id']}"
    last = events[-1]["sequence_number"]
    rest = server.client.get(path, params={"stream": "true", "starting_after": last}).text
    events += events_of(rest)
    everything = events_of(server.client.get(path, params={"stream": "true"}).text)
    assert events == everything
    assert everything[-1]["type"] == "response.incomplete"
    assert everything[-1]["response"] == server.client.get(path).json()
    plain = respond(server, input="Hello", background=True)
    refused = server.client.get(f"/v1/responses/{plain['id']}", params={"stream": "true"})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "stream"


def test_it_can_be_cancelled(server: Server) -> None:
    with server.openai() as client:
        made = client.responses.create(
            model="tiny", input="Hello", background=True, extra_body={"ignore_eos": True}
        )
        cancelled = client.responses.cancel(made.id)
        assert cancelled.status == "cancelled"
        assert client.responses.cancel(made.id).status == "cancelled"
        assert client.responses.retrieve(made.id).status == "cancelled"
        client.responses.delete(made.id)
        plain = client.responses.create(model="tiny", input="Hello", max_output_tokens=2)
    assert server.post(f"/v1/responses/{plain.id}/cancel").status_code == 400
    assert server.post("/v1/responses/resp_none/cancel").status_code == 404
    server.until_idle()


def test_deleting_one_that_runs_ends_it(server: Server) -> None:
    made = respond(server, input="Hello", background=True, ignore_eos=True, max_output_tokens=None)
    assert server.client.delete(f"/v1/responses/{made['id']}").json() == {
        "id": made["id"], "object": "response", "deleted": True
    }  # fmt: skip
    assert server.client.get(f"/v1/responses/{made['id']}").status_code == 404
    server.until_idle()


def test_the_engine_may_die_under_one_in_the_background(own: Server) -> None:
    whole = respond(own, input="Hello world", **LONG)
    made = respond(own, input="Hello world", background=True, **LONG)
    own.until(lambda: bool(own.client.get(f"/v1/responses/{made['id']}").json()["output"]))
    os.kill(engine_pid(own), signal.SIGKILL)
    own.until(lambda: status(own, made["id"]) not in ("queued", "in_progress"))
    found = own.client.get(f"/v1/responses/{made['id']}").json()
    assert found["status"] == "incomplete"
    assert lasting(found["output"]) == lasting(whole["output"])


def test_a_restarted_server_goes_on_and_says_what_failed(
    own: Server, tiny_engine: dict[str, Any], tmp_path: Path
) -> None:
    first = respond(own, input="Hello world")
    here = respond(own, input="On", previous_response_id=first["id"])
    unfinished = respond(own, input="Hello", background=True, ignore_eos=True, max_output_tokens=None)
    own.until(lambda: stored(own.data, first["id"]) is not None)
    own.process.kill()
    own.end()
    second = Server(tiny_engine, data_dir=str(tmp_path / "data"))
    try:
        assert second.client.get(f"/v1/responses/{first['id']}").json() == first
        there = respond(second, input="On", previous_response_id=first["id"])
        assert lasting(there["output"]) == lasting(here["output"])
        before = ids(second, first)
        assert ids(second, there)[: len(before)] == before
        found = second.client.get(f"/v1/responses/{unfinished['id']}").json()
        assert found["status"] == "failed"
        assert "server ended" in found["error"]["message"]
        assert second.post("/v1/responses", input="x", previous_response_id=found["id"]).status_code == 400
    finally:
        assert second.stop() == 0


def test_an_ending_server_lets_nothing_hang(own: Server, tiny_engine: dict[str, Any]) -> None:
    made = respond(own, input="Hello", background=True, ignore_eos=True, max_output_tokens=None)
    own.process.send_signal(signal.SIGTERM)
    own.process.send_signal(signal.SIGTERM)
    own.stop()
    record = stored(own.data, made["id"])
    assert record is not None and record.status in ("failed", "incomplete")


@pytest.mark.parametrize("stream", [False, True])
def test_of_an_answer_that_nobody_waited_for_nothing_is_stored(own: Server, stream: bool) -> None:
    body = json.dumps({"input": "Hello", "ignore_eos": True, "stream": stream}).encode()
    address = ("127.0.0.1", int(own.url.rsplit(":", 1)[1]))
    with socket.create_connection(address) as connection:
        head = b"POST /v1/responses HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(body)
        connection.sendall(head + body)
        own.until(lambda: own.metrics()["vllm:num_requests_running"] > 0)
    own.until_idle()
    assert own.stop() == 0
    assert not Database(DataFolder(own.data)).used


def test_nobody_sees_another_keys_responses(tiny_engine: dict[str, Any]) -> None:
    server = Server(tiny_engine, access={"api_keys": ["one", "two"]})
    try:
        one, two = ({"authorization": f"Bearer {key}"} for key in ("one", "two"))

        def ask(headers: dict[str, str], **body: Any) -> Any:
            return server.client.post("/v1/responses", json={"max_output_tokens": 4, **body}, headers=headers)

        made = ask(one, input="Hello").json()
        path = f"/v1/responses/{made['id']}"
        assert server.client.get(path, headers=one).json() == made
        assert server.client.get(path, headers=two).status_code == 404
        assert server.client.get(f"{path}/input_items", headers=two).status_code == 404
        assert server.client.delete(path, headers=two).status_code == 404
        assert server.client.post(f"{path}/cancel", headers=two).status_code == 404
        assert ask(two, input="On", previous_response_id=made["id"]).status_code == 400
        reference = [{"type": "item_reference", "id": made["output"][0]["id"]}]
        assert ask(two, input=reference).status_code == 404
        assert ask(one, input=reference).status_code == 200
    finally:
        assert server.stop() == 0


def test_a_disk_that_takes_nothing_keeps_no_answer_back(tiny_engine: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    server = Server(tiny_engine, data_dir=str(file / "data"))
    made = respond(server, input="Hello")
    path = f"/v1/responses/{made['id']}"
    server.until(lambda: server.client.get(path).json()["store"] is False)
    refused = server.post("/v1/responses", input="Hello", background=True)
    assert refused.status_code == 503
    server.process.terminate()
    code, log = server.end()
    assert code == 0
    assert f"the response {made['id']} is not stored" in log
