"""`make serve` hands on what it was given, whatever characters a name has."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
@pytest.mark.parametrize(
    "model", ["smollm2", "/a/my model.gguf", 'it\'s (1) & "2"; `3`.gguf', "a*b\\c, d.gguf", "x=$$y.gguf"]
)
def test_serve_takes_any_name(tmp_path: Path, model: str) -> None:
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    fake.chmod(0o755)
    arguments = [
        f"MODEL={model}",
        "PORT=9000",
        "ARGS=--max-running 8 --served-model-name 'a b'",
        f"BIN={tmp_path}",
    ]
    done = subprocess.run(
        # -o: the environment counts as made
        ["make", "-o", ".venv/.installed", "serve", *arguments],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
        text=True,
    )
    named = model.replace("$$", "$")
    options = ["--host", "127.0.0.1", "--port", "9000", "--max-running", "8", "--served-model-name", "a b"]
    assert done.stdout.splitlines() == ["-m", "octavo", "serve", named, *options]
