"""A disk that is full, that may not be written, a folder that is gone: chats go on, what needs the disk says so, and
what was begun goes on when there is room again."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from octavo.engine.replay import replay
from tests.fuzz.bodies import FORM
from tests.fuzz.conftest import Target

SIZE = "4m"
FORM_HEADERS = {"content-type": "multipart/form-data; boundary=B"}


class SmallDisk:
    """A disk of its own, small enough to be filled."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / "filler"

    def fill(self) -> None:
        """Not a byte is left."""
        with self._filler.open("ab", buffering=0) as file:
            for size in (1 << 20, 4096, 1):
                try:
                    while True:
                        file.write(b"x" * size)
                except OSError:
                    continue

    def free(self) -> None:
        self._filler.unlink()

    def remount(self, options: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{options}", str(self.path)], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    path = tmp_path / "disk"
    path.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(path)], check=False, capture_output=True
    )
    if done.returncode:
        pytest.skip("only root may mount a small disk")
    yield SmallDisk(path)
    subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.fixture
def server(disk: SmallDisk, tiny_engine: dict[str, Any]) -> Iterator[Target]:
    """All that it writes is on the small disk."""
    engine = tiny_engine | {
        "step_log": str(disk.path / "steps.jsonl"),
        "cache_disk": str(disk.path / "cache"),
    }
    server = Target(engine, data_dir=str(disk.path / "data"))
    yield server
    if server.process.poll() is None:
        server.process.kill()
        server.end()


def _chats(server: Target) -> None:
    """Answers as ever, of prompts long enough to be cached."""
    for place in range(4):
        answer = server.post(
            "/v1/chat/completions",
            messages=[{"role": "user", "content": f"{place} " * 60}],
            max_tokens=4,
            ignore_eos=True,
        )
        assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 4


def _upload(server: Target, content: bytes = FORM) -> httpx2.Response:
    return server.client.post("/v1/files", content=content, headers=FORM_HEADERS)


def _lines(count: int) -> bytes:
    """A form with a batch of so many lines."""
    lines = [
        {
            "custom_id": f"line {i}",
            "method": "POST",
            "url": "/v1/completions",
            "body": {"prompt": f"{i}", "max_tokens": 3},
        }
        for i in range(count)
    ]
    text = "\n".join(map(json.dumps, lines)).encode()
    head = b'--B\r\nContent-Disposition: form-data; name="'
    return (
        head
        + b'purpose"\r\n\r\nbatch\r\n'
        + head
        + b'file"; filename="in.jsonl"\r\n\r\n'
        + text
        + b"\r\n--B--\r\n"
    )


def _batch(server: Target, file_id: str) -> httpx2.Response:
    return server.post(
        "/v1/batches", input_file_id=file_id, endpoint="/v1/completions", completion_window="24h"
    )


def _end(server: Target) -> str:
    """Its log; it must end as ever."""
    server.process.terminate()
    code, log = server.end()
    assert code == 0 and "Traceback" not in log, log[-4000:]
    return log


def test_a_full_disk_stops_what_needs_it_and_nothing_else(server: Target, disk: SmallDisk) -> None:
    file_id = _upload(server).json()["id"]
    _chats(server)
    disk.fill()
    _chats(server)
    refused = [_upload(server), _batch(server, file_id)]
    refused.append(server.post("/v1/responses", input="Hi.", max_output_tokens=3, background=True))
    for answer in refused:
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["type"]) == (507, "storage_full", "server_error"), (
            error
        )
        assert str(disk.path) in error["message"] and "free some space" in error["message"]
    answer = server.post("/v1/responses", input="Hi.", max_output_tokens=3)
    assert answer.status_code == 200  # it is kept in memory, and says so when it is asked for again
    assert server.client.get("/health").status_code == 200
    assert server.metrics()["octavo_engine_restarts_total"] == 0
    disk.free()
    _chats(server)
    assert _upload(server).status_code == _batch(server, file_id).status_code == 200
    log = _end(server)
    assert log.count("The step log") == 1 and "ends here" in log
    [run] = replay(disk.path / "steps.jsonl")
    assert run.steps and run.difference is None


@pytest.mark.slow
def test_a_pull_to_a_full_disk_leaves_nothing(disk: SmallDisk, tiny_model_path: Path) -> None:
    disk.fill()
    pull = [sys.executable, "-m", "octavo", "pull", str(tiny_model_path)]
    environment = {**os.environ, "OCTAVO_CACHE": str(disk.path / "models")}
    done = subprocess.run(pull, check=False, capture_output=True, text=True, env=environment)
    assert done.returncode == 1
    assert (
        done.stderr.startswith("error: ") and done.stderr.count("\n") == 1 and str(disk.path) in done.stderr
    )
    disk.free()
    done = subprocess.run(pull, check=True, capture_output=True, text=True, env=environment)
    assert Path(done.stdout.strip()).is_dir()


@pytest.mark.slow
def test_a_batch_stands_still_on_a_full_disk_and_loses_no_line(server: Target, disk: SmallDisk) -> None:
    count = 60
    disk.fill()
    disk.free()
    file_id = _upload(server, _lines(count)).json()["id"]
    batch = _batch(server, file_id).json()
    url = f"/v1/batches/{batch['id']}"
    server.until(lambda: server.client.get(url).json()["request_counts"]["completed"] > 0)
    disk.fill()
    _chats(server)
    server.until(lambda: any("stands still" in line for line in server.log) or _ended(server, url))
    disk.free()
    server.until(lambda: _ended(server, url))
    told = server.client.get(url).json()
    assert told["status"] == "completed" and told["request_counts"]["completed"] == count
    text = server.client.get(f"/v1/files/{told['output_file_id']}/content").text
    assert sorted(json.loads(line)["custom_id"] for line in text.splitlines()) == sorted(
        f"line {i}" for i in range(count)
    )
    _end(server)


def _ended(server: Target, url: str) -> bool:
    answer = server.client.get(url)
    return answer.status_code == 200 and answer.json()["status"] in ("completed", "failed")


@pytest.mark.slow
def test_a_disk_that_may_only_be_read_is_named(disk: SmallDisk, tiny_engine: dict[str, Any]) -> None:
    server = Target(tiny_engine, data_dir=str(disk.path / "data"))
    disk.remount("ro")
    _chats(server)
    answer = _upload(server)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (503, "storage_unavailable"), error
    assert str(disk.path) in error["message"]
    disk.remount("rw")
    assert _upload(server).status_code == 200
    _end(server)


@pytest.mark.slow
def test_a_folder_that_is_removed_is_made_again(server: Target, disk: SmallDisk) -> None:
    file_id = _upload(server).json()["id"]
    _chats(server)
    for path in disk.path.iterdir():
        shutil.rmtree(path, ignore_errors=True)
    _chats(server)
    statuses = {_upload(server).status_code for _ in range(3)}
    assert statuses <= {200, 503} and _upload(server).status_code == 200
    assert server.client.get(f"/v1/files/{file_id}/content").status_code in (404, 503)
    _chats(server)
    _end(server)
