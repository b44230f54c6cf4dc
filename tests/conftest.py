"""Fixtures that every room's tests share: where the default model is, and the data beside the repository."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings

REPOSITORY = Path(__file__).resolve().parents[1]

# Downloads and converted models are kept between runs, apart from the user's own; child processes inherit it.
os.environ.setdefault("OCTAVO_CACHE", str(REPOSITORY / ".cache" / "octavo"))
# A server goes on with the batches in its data folder: that must not be the user's own.
os.environ["XDG_DATA_HOME"] = str(REPOSITORY / ".cache" / "data")


# Started in the background by a shell, the tests and all that they start would ignore Ctrl-C, and with nohup the end of
# their terminal; some are about those.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# CI judges a change, so it tries the same examples each time; everywhere else they are new ones. Nowhere may an example
# fail for having been slow: machines are shared, and timing is for benchmarks/.
settings.register_profile("octavo", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("octavo")


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder with oracles and traces: $OCTAVO_SHARED, or `shared` beside the repository."""
    path = Path(os.environ.get("OCTAVO_SHARED", REPOSITORY.parent / "shared"))
    if not path.is_dir():
        pytest.skip(
            f"{path} is not there; the oracle's data are no part of the repository: set OCTAVO_SHARED"
        )
    return path


@pytest.fixture(scope="session")
def model_dir() -> Path:
    """The store's folder of the default model; `octavo pull` downloads (98 MB) and converts it once."""
    pull = [sys.executable, "-m", "octavo", "pull", "smollm2"]
    done = subprocess.run(pull, check=False, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"the default model cannot be had: {done.stderr}"
    return Path(done.stdout.strip())


@pytest.fixture(scope="session")
def model_path(model_dir: Path) -> Path:
    """The default model's GGUF file."""
    from octavo.models.store import StoredModel

    return StoredModel.load(model_dir).source


@pytest.fixture(scope="session")
def tiny_model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random llama GGUF of a few hundred kB: enough for everything but good sentences."""
    from tests.models.tiny import write_tiny_llama

    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf")
