"""A real server over the tiny model, in a process of its own; one for all tests that leave it as it was."""

from __future__ import annotations

import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import openai
import pytest

from octavo.models.store import open_model

TIMEOUT_S = 60.0


class Server:
    """A server process. `client` speaks HTTP with it. What it stores is in `data`, and gone with it by default."""

    def __init__(
        self, engine: dict[str, Any], *, verify: ssl.SSLContext | bool = True, **settings: Any
    ) -> None:
        self.data = Path(
            settings.setdefault("data_dir", tempfile.gettempdir() + f"/octavo-{uuid.uuid4().hex}")
        )
        arguments = {"engine": engine, "model_name": "tiny", "port": 0, **settings}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.server.serve", msgspec.json.encode(arguments).decode()],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        match = re.search(r"https?://\S+", line)
        if match is None:
            raise AssertionError(f"the server did not start: {line!r} {self.process.communicate()}")
        self.url = match[0]
        self._verify = verify
        self.client = httpx2.Client(base_url=self.url, timeout=TIMEOUT_S, trust_env=False, verify=verify)

    def openai(self, **settings: Any) -> openai.OpenAI:
        http = httpx2.Client(trust_env=False, verify=self._verify)
        return openai.OpenAI(base_url=f"{self.url}/v1", http_client=http, **{"api_key": "none", **settings})

    def post(self, path: str, **body: Any) -> httpx2.Response:
        return self.client.post(path, json=body)

    def complete(self, **body: Any) -> dict[str, Any]:
        """A completion that must succeed."""
        response = self.post("/v1/completions", **body)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    def events(self, path: str, **body: Any) -> list[Any]:
        """The events of a stream that must succeed: JSON, or "[DONE]"."""
        with self.client.stream("POST", path, json={**body, "stream": True}) as response:
            text = response.read().decode()
            assert response.status_code == 200, text
            assert response.headers["content-type"].startswith("text/event-stream")
        assert text.endswith("\n\n")
        events = text.removesuffix("\n\n").split("\n\n")
        assert all(event.startswith("data: ") and "\n" not in event for event in events)
        data = [event.removeprefix("data: ") for event in events]
        return [one if one == "[DONE]" else msgspec.json.decode(one) for one in data]

    def metrics(self) -> dict[str, float]:
        """Every sample by name and labels, the model's name left out."""
        lines = [line for line in self.client.get("/metrics").text.splitlines() if not line.startswith("#")]
        pairs = [line.replace('model_name="tiny"', "").rsplit(" ", 1) for line in lines]
        return {name.replace(",}", "}").removesuffix("{}"): float(value) for name, value in pairs}

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            assert time.monotonic() < deadline, "waited in vain"
            time.sleep(0.01)

    def until_idle(self) -> None:
        """Every sequence is gone and every block is free."""
        gauges = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
        self.until(lambda: not any(self.metrics()[name] for name in gauges))

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        self.process.terminate()
        return self.wait()

    def wait(self) -> int:
        """The exit code, when it ends by itself."""
        return self.end()[0]

    def end(self) -> tuple[int, str]:
        """The exit code and what it logged, when it ends by itself."""
        self.client.close()
        _, log = self.process.communicate(timeout=TIMEOUT_S)
        if self.data.parent == Path(tempfile.gettempdir()):  # nobody else has named it
            shutil.rmtree(self.data, ignore_errors=True)
        return self.process.returncode, log


@pytest.fixture(scope="session")
def tiny_dir(tiny_model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model's folder in a store, without packed weights: for the reference backend."""
    return open_model(tiny_model_path, cache=tmp_path_factory.mktemp("store"), packed=False).dir


@pytest.fixture(scope="session")
def tiny_engine(tiny_dir: Path) -> dict[str, Any]:
    """Settings of an engine over the tiny model: 200 blocks, 64 sequences."""
    return {"model_dir": str(tiny_dir), "backend": "reference", "num_blocks": 200}


@pytest.fixture(scope="session")
def server(tiny_engine: dict[str, Any]) -> Iterator[Server]:
    server = Server(tiny_engine)
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="session")
def real_server(model_dir: Path) -> Iterator[Server]:
    """Over the default model, for what has no room in the tiny one's 512 tokens. It is called "tiny" too."""
    server = Server({"model_dir": str(model_dir), "num_blocks": 1024})
    yield server
    assert server.stop() == 0
