"""/v1/batches over HTTP: answers that direct requests would get, the life of a batch, and every end of the server."""

from __future__ import annotations

import json
import signal
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from octavo.engine.steplog import Scheduled, read_log
from octavo.protocol.batch_lines import with_seed
from octavo.scheduling.inputs import Add
from tests.server.conftest import Server

PATH = "/v1/completions"
ENDED = ("completed", "failed", "expired", "cancelled")


def line(name: str, path: str = PATH, **body: Any) -> dict[str, Any]:
    return {"custom_id": name, "method": "POST", "url": path, "body": body}


def upload(client: openai.OpenAI, lines: list[dict[str, Any]]) -> str:
    data = "\n".join(map(json.dumps, lines)).encode()
    return client.files.create(file=("in.jsonl", data), purpose="batch").id


def create(client: openai.OpenAI, file_id: str, path: str = PATH, **fields: Any) -> Any:
    return client.batches.create(
        input_file_id=file_id,
        endpoint=path,  # type: ignore[arg-type]
        completion_window="24h",
        **fields,
    )


def ended(server: Server, client: openai.OpenAI, batch: Any) -> Any:
    server.until(lambda: client.batches.retrieve(batch.id).status in ENDED)
    return client.batches.retrieve(batch.id)


def _completed(client: openai.OpenAI, batch: Any) -> int:
    counts = client.batches.retrieve(batch.id).request_counts
    assert counts is not None
    return counts.completed


def results(client: openai.OpenAI, file_id: str | None) -> dict[str, Any]:
    """By custom_id, each of which is there once."""
    if file_id is None:
        return {}
    text = client.files.content(file_id).text
    assert text.endswith("\n")
    told = [json.loads(one) for one in text.splitlines()]
    by_name = {one["custom_id"]: one for one in told}
    assert len(by_name) == len(told)
    return by_name


def comparable(answer: dict[str, Any]) -> dict[str, Any]:
    """Without what differs between any two requests: name and time, and what the prefix cache had."""
    usage = {name: value for name, value in answer["usage"].items() if name.endswith("tokens")}
    return {
        **{name: value for name, value in answer.items() if name not in ("id", "created")},
        "usage": usage,
    }


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with server.openai() as client:
        yield client


def test_a_batch_from_upload_to_removal(server: Server, client: openai.OpenAI) -> None:
    lines = [line(f"q{i}", prompt=f"Once {i}", max_tokens=6, seed=i, temperature=1.0) for i in range(8)]
    lines.append(line("bad", prompt="x", model="other"))
    lines.append(line("odd", prompt="x", temperature="hot"))
    batch = create(client, upload(client, lines), metadata={"who": "me"})
    assert (batch.status, batch.object, batch.endpoint) == ("validating", "batch", PATH)
    assert batch.expires_at == batch.created_at + 24 * 3600 and batch.metadata == {"who": "me"}
    batch = ended(server, client, batch)
    assert batch.status == "completed" and batch.model == "tiny" and batch.errors is None
    assert batch.request_counts.to_dict() == {"total": 10, "completed": 8, "failed": 2}
    assert batch.created_at <= batch.in_progress_at <= batch.finalizing_at <= batch.completed_at
    output, wrong = results(client, batch.output_file_id), results(client, batch.error_file_id)
    assert output.keys() == {f"q{i}" for i in range(8)} and wrong.keys() == {"bad", "odd"}
    for asked in lines[:8]:
        told = output[asked["custom_id"]]
        assert told["error"] is None and told["response"]["status_code"] == 200
        assert comparable(told["response"]["body"]) == comparable(server.complete(**asked["body"]))
    used = [one["response"]["body"]["usage"] for one in output.values()]
    assert batch.usage.input_tokens == sum(one["prompt_tokens"] for one in used) > 0
    assert batch.usage.output_tokens == sum(one["completion_tokens"] for one in used) > 0
    assert batch.usage.total_tokens == batch.usage.input_tokens + batch.usage.output_tokens
    for asked in lines[8:]:
        direct = server.post(PATH, **asked["body"])
        response = wrong[asked["custom_id"]]["response"]
        assert (response["status_code"], response["body"]) == (direct.status_code, direct.json())
    for file_id in (batch.output_file_id, batch.error_file_id):
        file = client.files.retrieve(file_id)
        assert file.purpose == "batch_output" and file.bytes == len(client.files.content(file_id).read())
        assert client.files.delete(file_id).deleted
    assert client.batches.list().data[0].id == batch.id


def test_chats_and_results_that_expire(server: Server, client: openai.OpenAI) -> None:
    path = "/v1/chat/completions"
    lines = [line(str(i), path, messages=[{"role": "user", "content": "Hi"}], max_tokens=4) for i in range(3)]
    after = {"anchor": "created_at", "seconds": 7200}
    batch = ended(server, client, create(client, upload(client, lines), path, output_expires_after=after))
    output = results(client, batch.output_file_id)
    assert {one["response"]["body"]["object"] for one in output.values()} == {"chat.completion"}
    file = client.files.retrieve(batch.output_file_id)
    assert file.expires_at == file.created_at + 7200 and batch.error_file_id is None


def test_embeddings(server: Server, client: openai.OpenAI) -> None:
    path = "/v1/embeddings"
    lines = [line(str(i), path, model="tiny", input=f"text {i}") for i in range(3)]
    batch = ended(server, client, create(client, upload(client, lines), path))
    output = results(client, batch.output_file_id)
    for one in lines:
        assert output[one["custom_id"]]["response"]["body"] == server.post(path, **one["body"]).json()
    assert batch.usage.input_tokens > 0 == batch.usage.output_tokens


def test_a_file_that_is_wrong_fails_line_by_line(server: Server, client: openai.OpenAI) -> None:
    lines = [line("a", prompt="x"), line("a", prompt="x"), line("c", "/v1/responses", input="x")]
    batch = ended(server, client, create(client, upload(client, lines)))
    assert batch.status == "failed" and batch.failed_at and batch.output_file_id is None
    told = [(error.code, error.line, error.param) for error in batch.errors.data]
    assert told == [("duplicate_custom_id", 2, "custom_id"), ("mismatched_endpoint", 3, "url")]


def test_what_cannot_be_a_batch_is_refused(client: openai.OpenAI) -> None:
    file_id = upload(client, [line("a", prompt="x")])
    with pytest.raises(openai.NotFoundError, match="There is no file") as missing:
        create(client, "file-none")
    assert missing.value.param == "input_file_id"
    other = client.files.create(file=("a", b"x"), purpose="user_data").id
    with pytest.raises(openai.BadRequestError, match="purpose 'batch'"):
        create(client, other)
    with pytest.raises(openai.BadRequestError, match="/v1/completions"):
        create(client, file_id, "/v1/moderations")
    for ask in (client.batches.retrieve, client.batches.cancel):
        with pytest.raises(openai.NotFoundError, match="There is no batch"):
            ask("batch_none")
    with pytest.raises(openai.BadRequestError):
        client.batches.list(after="batch_none")


LONG: dict[str, Any] = {"prompt": "Once", "max_tokens": 300, "ignore_eos": True}


@pytest.fixture(scope="module")
def narrow(tiny_engine: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two slots, nobody may wait, and the log of its steps."""
    folder = tmp_path_factory.mktemp("narrow")
    engine = {**tiny_engine, "max_running": 2, "step_log": str(folder / "log")}
    server = Server(engine, access={"max_queued_requests": 0}, data_dir=str(folder / "data"))
    yield server
    assert server.stop() == 0


def test_a_batch_takes_what_others_leave(narrow: Server) -> None:
    lines = [line(str(i), prompt=f"a {i}", max_tokens=20, ignore_eos=True, profile="chat") for i in range(5)]
    with narrow.openai(max_retries=0) as client:
        batch: Any = create(client, upload(client, lines))
        while (batch := client.batches.retrieve(batch.id)).status not in ENDED:
            narrow.complete(prompt="b", max_tokens=2)  # however many lines run: it is not refused
        assert _completed(client, batch) == 5
    added = [
        message.service.profile
        for event in read_log(narrow.data.parent / "log")
        if isinstance(event, Scheduled)
        for message in event.inputs.messages
        if isinstance(message, Add)
    ]
    assert added.count("batch") == 5 and added.count(None) == len(added) - 5 > 0


def test_a_cancelled_batch_keeps_what_is_answered(narrow: Server) -> None:
    with narrow.openai() as client:
        lines = [line("first", prompt="a", max_tokens=1), *(line(str(i), **LONG) for i in range(40))]
        file_id = upload(client, lines)
        batch = create(client, file_id)
        narrow.until(lambda: _completed(client, batch) >= 1)
        with pytest.raises(openai.ConflictError, match=batch.id):
            client.files.delete(file_id)
        assert client.batches.cancel(batch.id).status in ("cancelling", "cancelled")
        batch = ended(narrow, client, batch)
        assert batch.status == "cancelled" and batch.cancelled_at >= batch.cancelling_at
        narrow.until_idle()
        output, left = results(client, batch.output_file_id), results(client, batch.error_file_id)
        assert (
            "first" in output and left and output.keys() | left.keys() == {one["custom_id"] for one in lines}
        )
        assert {one["error"]["code"] for one in left.values()} == {"batch_cancelled"}
        assert client.batches.cancel(batch.id).status == "cancelled"
        assert client.files.delete(file_id).deleted
        done = ended(narrow, client, create(client, upload(client, lines[:1])))
        with pytest.raises(openai.ConflictError, match="completed and cannot be cancelled"):
            client.batches.cancel(done.id)


def _stored(server: Server) -> int:
    """Lines with a result."""
    return sum(path.read_bytes().count(b"\n") for path in (server.data / "files").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_no_line_is_lost_or_doubled_when_the_server_ends(
    tiny_engine: dict[str, Any], tmp_path: Path, end: signal.Signals
) -> None:
    settings = {**tiny_engine, "max_running": 4}
    data = str(tmp_path / "data")
    first = Server(settings, data_dir=data)
    lines = [line(str(i), prompt=f"Once {i}", max_tokens=20, temperature=1.0) for i in range(40)]
    for number, one in enumerate(lines[::2]):
        one["body"]["seed"] = number
    with first.openai() as client:
        batch = create(client, upload(client, lines))
    inputs = len(lines) - 1
    first.until(lambda: _stored(first) >= inputs + 8)
    first.process.send_signal(end)
    code = first.wait()
    assert code == (0 if end == signal.SIGTERM else -9)
    before = _stored(first) - inputs
    assert 8 <= before < len(lines)

    second = Server(settings, data_dir=data)
    with second.openai() as client:
        batch = ended(second, client, batch)
        assert batch.request_counts.to_dict() == {"total": 40, "completed": 40, "failed": 0}
        output = results(client, batch.output_file_id)
        assert output.keys() == {one["custom_id"] for one in lines}
        with sqlite3.connect(second.data / "octavo.db") as database:
            [(seed,)] = database.execute("SELECT seed FROM batches").fetchall()
        database.close()
        for number, one in enumerate(lines, 1):
            body = json.loads(with_seed(json.dumps(one["body"]).encode(), seed, number))
            told = output[one["custom_id"]]["response"]["body"]
            assert told["choices"] == second.complete(**body)["choices"]
    assert not list((second.data / "batches").iterdir())
    assert second.stop() == 0


@pytest.mark.slow
def test_one_of_two_servers_runs_the_batches(narrow: Server, tiny_engine: dict[str, Any]) -> None:
    other = Server(tiny_engine, data_dir=str(narrow.data))
    with narrow.openai() as client, other.openai(max_retries=0) as second:
        file_id = upload(client, [line(str(i), **LONG) for i in range(60)])
        batch = create(client, file_id)
        with pytest.raises(openai.ConflictError, match="Another server runs the batches"):
            create(second, file_id)
        other.complete(prompt="a", max_tokens=1)
        assert second.batches.cancel(batch.id).status == "cancelling"  # the first one sees it
        assert ended(narrow, client, batch).status == "cancelled"
        assert second.batches.retrieve(batch.id).status == "cancelled"
    assert other.stop() == 0


@pytest.mark.slow
def test_batches_are_their_key_s_whatever_its_number(tiny_engine: dict[str, Any], tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    engine = {**tiny_engine, "max_running": 1}
    first = Server(engine, data_dir=data, access={"api_keys": ["one", "two"]})
    with first.openai(api_key="two") as client, first.openai(api_key="one") as other:
        file_id = upload(client, [line(str(i), **LONG | {"max_tokens": 60}) for i in range(6)])
        with pytest.raises(openai.NotFoundError):
            create(other, file_id)
        batch = create(client, file_id)
        with pytest.raises(openai.NotFoundError):
            other.batches.cancel(batch.id)
        assert not other.batches.list().data
    assert first.stop() == 0

    second = Server(engine, data_dir=data, access={"api_keys": ["two", "three"]})
    with second.openai(api_key="two") as client:
        batch = ended(second, client, batch)
        assert batch.request_counts.completed == 6
        assert len(results(client, batch.output_file_id)) == 6
    assert second.stop() == 0

    third = Server(engine, data_dir=data)  # an open server is no way to what had a key
    with third.openai() as client:
        assert not client.batches.list().data and not client.files.list().data
    assert third.stop() == 0


@pytest.mark.slow
def test_time_that_is_over_ends_a_batch(tiny_engine: dict[str, Any], tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    first = Server({**tiny_engine, "max_running": 1}, data_dir=data)
    with first.openai() as client:
        lines = [
            line("first", prompt="a", max_tokens=1),
            *(line(str(i), **LONG | {"max_tokens": 60}) for i in range(6)),
        ]
        batch = create(client, upload(client, lines))
        first.until(lambda: _stored(first) >= len(lines))
    assert first.stop() == 0
    with sqlite3.connect(tmp_path / "data" / "octavo.db") as database:
        database.execute("UPDATE batches SET expires_at = ?", [int(time.time())])
    database.close()

    second = Server(tiny_engine, model_name="another", data_dir=data)  # which could not answer them
    with second.openai() as client:
        batch = ended(second, client, batch)
        assert batch.status == "expired" and batch.expired_at
        output, left = results(client, batch.output_file_id), results(client, batch.error_file_id)
        assert "first" in output and len(output) + len(left) == 7
        assert {one["error"]["code"] for one in left.values()} == {"batch_expired"}
    assert second.stop() == 0
