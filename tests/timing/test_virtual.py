"""While time is virtual, our own code that reads the real one is told so; others' may."""

from __future__ import annotations

import logging
import time

import pytest

from octavo.timing import virtual
from octavo.timing.clock import WallClock
from octavo.timing.virtual import WallTimeRead, only_virtual_time, real_time


def test_a_module_of_ours_that_reads_real_time_is_named() -> None:
    with (
        only_virtual_time(),
        pytest.raises(WallTimeRead, match=r"octavo\.timing\.clock calls time\.\w+ while"),
    ):
        WallClock().now_s()
    assert WallClock().now_s() > 0


@pytest.mark.parametrize("name", virtual._READERS)
def test_every_clock_function_is_refused(name: str) -> None:
    scope = {"__name__": "octavo.pretended", "time": time}
    exec(f"def read():\n    return time.{name}(0) if '{name}' == 'sleep' else time.{name}()", scope)
    read = scope["read"]
    assert callable(read)
    read()
    with only_virtual_time():
        with pytest.raises(WallTimeRead, match=rf"octavo\.pretended calls time\.{name} "):
            read()
        with real_time():
            read()
        with pytest.raises(WallTimeRead):
            read()
    read()


def test_others_may_read_it(caplog: pytest.LogCaptureFixture) -> None:
    with only_virtual_time():
        logging.getLogger("octavo.timing").warning("a line has a date")
        assert time.time() > 0
    assert "a line has a date" in caplog.text


def test_no_module_of_the_engine_s_rooms_takes_a_clock_function_by_its_own_name() -> None:
    """`from time import monotonic` would read on, whatever `time.monotonic` is by then."""
    import ast

    from tests.conftest import REPOSITORY

    for path in (REPOSITORY / "src" / "octavo").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            assert not (isinstance(node, ast.ImportFrom) and node.module == "time"), path
