"""Progress: seldom, in one line, and in a log a line now and then."""

from __future__ import annotations

import io
import os
from collections import Counter, deque

import pytest

from octavo.bench.client import Progress
from octavo.bench.progress import Live


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class _Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def _progress(elapsed_s: float, *, done: int = 3, tokens: int = 0, failed: int = 0) -> Progress:
    return Progress(
        elapsed_s=elapsed_s,
        offered=done + 2,
        running=2,
        done=done,
        errors=Counter({"timeout": failed}),
        output_tokens=tokens,
        recent_ttft_s=deque([0.1, 0.2, 0.9]),
        late_us=300,
    )


def test_a_log_has_a_line_every_ten_seconds() -> None:
    file, clock = io.StringIO(), _Clock()
    live = Live(file, now=clock)
    live.begin("4 requests/s", requests=100, span_s=60.0)
    for tenth in range(250):
        clock.now = 100.0 + tenth / 10
        live.update(_progress(tenth / 10, tokens=20 * tenth, failed=1))
    lines = file.getvalue().splitlines()
    assert len(lines) == 2
    assert lines[1] == (
        "4 requests/s: 5 of 100 sent, 2 running, 3 done, 1 failed, 200 tokens/s, TTFT 200 ms, 40 s left, 300 µs late"
    )


def test_a_terminal_s_line_is_drawn_anew_and_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((60, 20)))
    file, clock = _Terminal(), _Clock()
    with Live(file, now=clock) as live:
        live.begin("4 requests/s", requests=100)
        for place in range(20):
            clock.now += 0.1
            live.update(_progress(place / 10, tokens=place))
    drawn = file.getvalue().split("\r")[1:]
    assert len(drawn) == 5, "each half second, and once to clear"
    for line in drawn[:-1]:
        text = line.removesuffix("\x1b[K")
        assert line.endswith("\x1b[K") and len(text) < 60 and "\n" not in text
        assert text.startswith("4 requests/s: 5 of 100 sent, 2 running, 3 done")
    assert drawn[-1] == "\x1b[K"


def test_words_stay_and_the_line_goes_before_them() -> None:
    file = _Terminal()
    live = Live(file)
    live.begin("x")
    live.update(_progress(1.0))
    live.say("a rate is met")
    assert file.getvalue().endswith("\r\x1b[Ka rate is met\n")


def test_a_quiet_one_says_nothing() -> None:
    file = io.StringIO()
    with Live(file, quiet=True) as live:
        live.begin("x")
        live.update(_progress(99.0))
        live.say("words")
    assert file.getvalue() == ""


def test_the_time_left_follows_from_what_is_known() -> None:
    def last(requests: int | None, span_s: float | None, progress: Progress) -> str:
        file, clock = io.StringIO(), _Clock()
        live = Live(file, now=clock)
        live.begin("x", requests=requests, span_s=span_s)
        clock.now += 11
        live.update(progress)
        return file.getvalue()

    assert "20 s left" in last(None, 30.0, _progress(10.0))
    assert "waiting for the last answers" in last(None, 30.0, _progress(31.0))
    assert "70 s left" in last(24, None, _progress(10.0))
    assert "left" not in last(None, None, _progress(10.0)) and "left" not in last(
        9, None, _progress(1.0, done=0)
    )
