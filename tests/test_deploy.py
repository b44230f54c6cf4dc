"""The unit for systemd: well formed, with the times and folders that the server needs."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from octavo.engine.client import EXIT_S
from octavo.server.run import CLOSE_S
from tests.conftest import REPOSITORY

UNIT = REPOSITORY / "deploy" / "octavo.service"


def test_the_server_gets_the_time_that_it_takes_to_end() -> None:
    text = UNIT.read_text()
    [drain] = re.findall(r"^ExecStart=.* --drain-timeout (\d+)$", text, re.MULTILINE)
    [stop] = re.findall(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)
    assert int(stop) > int(drain) + CLOSE_S + EXIT_S
    assert "\nExecReload=kill -HUP $MAINPID\n" in text


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
def test_systemd_understands_every_line(tmp_path: Path) -> None:
    program = shutil.which("true")
    assert program is not None
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/octavo/bin/octavo", program))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    assert not [line for line in (done.stdout + done.stderr).splitlines() if UNIT.name in line]
