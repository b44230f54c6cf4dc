"""Log lines: text and JSON, with the request's id, and nothing that a client has sent."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from octavo.telemetry.logs import (
    FORMAT_VARIABLE,
    LEVEL_VARIABLE,
    PRIVATE,
    REQUEST_ID,
    configure,
    configure_child,
    with_fields,
)

SECRET = "open sesame"


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    root, own = logging.getLogger(), logging.getLogger("octavo")
    handlers, level, own_level = root.handlers[:], root.level, own.level
    token = REQUEST_ID.set("")
    yield
    REQUEST_ID.reset(token)
    root.handlers[:] = handlers
    root.setLevel(level)
    own.setLevel(own_level)
    logging.captureWarnings(False)


def _failing() -> None:
    try:
        raise KeyError(SECRET)
    except KeyError as error:
        raise ExceptionGroup(SECRET, [ValueError(SECRET)]) from error


def _log_failure(**extra: Any) -> None:
    try:
        _failing()
    except ExceptionGroup:
        logging.getLogger("octavo.x").exception("it failed", extra=extra)


def test_text_names_level_logger_request_and_fields() -> None:
    out = io.StringIO()
    configure("text", "info", out)
    logger = logging.getLogger("octavo.x")
    logger.debug("not at info")
    logger.info("plain %d", 5)
    REQUEST_ID.set("req_1")
    logger.warning("a\nb", extra=with_fields(path='/a b"', stream=True, none=None, ids=["x", "y"], zero=0))
    first, second = out.getvalue().splitlines()
    assert first.endswith("Z INFO octavo.x: plain 5")
    assert second.endswith(
        r'WARNING octavo.x: a\nb request_id=req_1 path="/a b\"" stream=true ids=x,y zero=0'
    )


def test_json_is_one_object_in_a_line() -> None:
    out = io.StringIO()
    configure("json", "debug", out)
    REQUEST_ID.set("req_1")
    logging.getLogger("octavo.x").debug("a\n\u2028é", extra=with_fields(status=200, left=None))
    line = json.loads(out.getvalue())
    assert out.getvalue().count("\n") == 1 and out.getvalue().isascii()
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "debug",
        "logger": "octavo.x",
        "message": "a\n\u2028é",
        "request_id": "req_1",
        "status": 200,
    }


@pytest.mark.parametrize("log_format", ["text", "json"])
@pytest.mark.parametrize("private", [False, True])
def test_what_failed_in_a_request_is_told_by_its_places(log_format: Any, private: bool) -> None:
    out = io.StringIO()
    configure(log_format, "info", out)
    if not private:
        REQUEST_ID.set("req_1")
    _log_failure(**(PRIVATE if private else {}))
    shown = out.getvalue()
    assert SECRET not in shown
    for part in ("builtins.KeyError", "builtins.ValueError", "in _failing", "it failed", "which led to"):
        assert part in shown


def test_messages_are_told_at_debug_and_outside_of_requests() -> None:
    for level, request_id in (("debug", "req_1"), ("info", "")):
        out = io.StringIO()
        configure(level=level, log_format="text", stream=out)  # type: ignore[arg-type]
        REQUEST_ID.set(request_id)
        _log_failure()
        assert out.getvalue().count(SECRET) == 3


def test_a_circle_of_causes_ends() -> None:
    out = io.StringIO()
    configure("text", "info", out)
    REQUEST_ID.set("req_1")
    first, second = ValueError("a"), TypeError("b")
    first.__cause__, second.__cause__ = second, first
    logging.getLogger("octavo.x").error("it failed", exc_info=first)
    assert out.getvalue().count("builtins.") == 2


def test_other_libraries_are_heard_from_warnings_on() -> None:
    out = io.StringIO()
    configure("text", "debug", out)
    logging.getLogger("other").info("chatter")
    logging.getLogger("other").warning("trouble")
    assert out.getvalue().count("\n") == 1 and "trouble" in out.getvalue()


def test_a_child_reads_the_environment_and_takes_no_nonsense(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(FORMAT_VARIABLE, "json")
    monkeypatch.setenv(LEVEL_VARIABLE, "error")
    configure_child()
    logging.getLogger("octavo.x").warning("not at error")
    logging.getLogger("octavo.x").error("told")
    assert json.loads(capsys.readouterr().err)["message"] == "told"
    monkeypatch.setenv(FORMAT_VARIABLE, "runes")
    monkeypatch.setenv(LEVEL_VARIABLE, "loud")
    configure_child()
    logging.getLogger("octavo.x").info("told")
    assert capsys.readouterr().err.endswith("INFO octavo.x: told\n")
