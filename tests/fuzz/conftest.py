"""Servers and models that are made to be attacked."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from octavo.models.store import StoredModel, open_model
from tests.models.tiny import write_tiny_llama
from tests.server.conftest import TIMEOUT_S, Server


@pytest.fixture(scope="session")
def packed_model(tmp_path_factory: pytest.TempPathFactory) -> StoredModel:
    """The tiny model with packed weights, for the kernels, and room for the prompts that tools make."""
    folder = tmp_path_factory.mktemp("store")
    return open_model(write_tiny_llama(folder / "tiny.gguf", context=1024, layers=1), cache=folder)


@pytest.fixture(scope="session")
def target_engine(packed_model: StoredModel) -> dict[str, Any]:
    """A context that the examples fit, and soon full for a request that asks for all it can get."""
    return {"model_dir": str(packed_model.dir), "num_blocks": 512, "max_model_len": 700, "max_running": 16}


class Target(Server):
    """A server whose log is read while it runs: there may be more of it than a pipe holds."""

    def __init__(self, engine: dict[str, Any], **settings: Any) -> None:
        super().__init__(engine, **settings)
        self.log: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.log.extend(self.process.stderr)

    def end(self) -> tuple[int, str]:
        code = self.process.wait(TIMEOUT_S)
        self._reader.join(TIMEOUT_S)
        super().end()
        return code, "".join(self.log)


@pytest.fixture(scope="session")
def target(target_engine: dict[str, Any]) -> Iterator[Target]:
    """A server that must be as it was after all that it is sent."""
    server = Target(target_engine)
    yield server
    server.until_idle()
    server.process.terminate()
    code, log = server.end()
    assert code == 0
    for mark in ("Traceback", "restarting", "failed"):
        assert mark not in log, log[max(log.index(mark) - 1000, 0) :][:6000]
