"""Programs of others in an environment of their own, and real servers of the default model that they speak with."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from tests.conftest import REPOSITORY

INSTALL_TIMEOUT_S = 900.0
TIMEOUT_S = 240.0
OFFLINE = REPOSITORY / "tests" / "clients" / "offline"
MODEL = "smollm2"
QUESTION = "What is an octavo?"
PROMPT = "An octavo is"
BOOK: dict[str, Any] = {
    "title": "Book",
    "description": "A book.",
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 20},
        "pages": {"type": "integer", "minimum": 1, "maximum": 9999},
    },
    "required": ["title", "pages"],
    "additionalProperties": False,
}
"""A schema for answers."""


class Clients:
    """The environment `.venv-clients`; `home` is the folder that its programs may write to."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._bin = REPOSITORY / ".venv-clients" / "bin"

    def run(self, *command: str | Path, **environment: str) -> str:
        """What one of its programs printed; it must succeed. It reaches loopback only and finds nothing of the user's
        settings."""
        program, *arguments = map(str, command)
        done = subprocess.run(
            [self._bin / program, *arguments],
            cwd=self.home,
            env={
                "PATH": f"{self._bin}:{os.environ['PATH']}",
                "LANG": "C.UTF-8",
                "HOME": str(self.home),
                "PYTHONPATH": str(OFFLINE),
                "DO_NOT_TRACK": "1",
                "HF_HUB_OFFLINE": "1",
                "HF_DATASETS_OFFLINE": "1",
                "TRANSFORMERS_OFFLINE": "1",
                "LITELLM_LOCAL_MODEL_COST_MAP": "True",
                "LANGSMITH_TRACING": "false",
                **environment,
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        return done.stdout

    def use(self, script: str, url: str) -> Any:
        """What `tests/clients/SCRIPT` says as JSON on its last line about the server at `url`."""
        task = {"url": f"{url}/v1", "model": MODEL, "question": QUESTION, "prompt": PROMPT, "schema": BOOK}
        printed = self.run("python", REPOSITORY / "tests" / "clients" / script, json.dumps(task))
        return json.loads(printed.splitlines()[-1])


@contextmanager
def serving(*options: str) -> Iterator[str]:
    """`octavo serve` of the default model: its address. What it stores goes with it."""
    with (
        tempfile.TemporaryDirectory() as data,
        subprocess.Popen(
            [
                *(sys.executable, "-m", "octavo", "serve", MODEL),
                *("--port", "0", "--data-dir", data, *options),
            ],
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            match = re.search(r"http://\S+:\d+", process.stdout.readline())
            assert match is not None, "the server did not start"
            yield match[0]
        finally:
            process.terminate()
            process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0


@pytest.fixture(scope="session")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Clients:
    """Made by `make` where it is missing or older than its requirements (minutes, and the network)."""
    made = subprocess.run(
        ["make", ".venv-clients/.installed"],
        cwd=REPOSITORY,
        check=False,
        capture_output=True,
        text=True,
        timeout=INSTALL_TIMEOUT_S,
    )
    assert made.returncode == 0, f"the clients cannot be had: {made.stdout}{made.stderr}"
    return Clients(tmp_path_factory.mktemp("clients"))


@pytest.fixture(scope="session")
def url(model_dir: Path) -> Iterator[str]:
    """A server as a user starts it."""
    with serving() as address:
        yield address


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    """OpenAI's own client, whose answers the others' are compared with."""
    http = httpx2.Client(trust_env=False)
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", http_client=http) as client:
        yield client
