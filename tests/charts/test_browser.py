"""A page in a real browser: nothing is refused, nothing fails, and the curves are on the paper."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import zlib
from pathlib import Path

import numpy as np
import pytest

from octavo.charts.figure import Axis, Bound, Figure, Lanes, Series, Shade
from octavo.charts.page import Page, Section

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
COLOURS = {"light": (0x2F, 0x6F, 0xD0), "dark": (0x6E, 0xA8, 0xFE)}
"""The first series' in page.css."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="no chromium is installed"),
]


def browse(page: Path, *options: str) -> subprocess.CompletedProcess[str]:
    assert BROWSER is not None
    always = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr"]
    settings = [f"--user-data-dir={page.parent / 'profile'}", "--virtual-time-budget=3000"]
    command = [BROWSER, *always, *settings, *options, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)


def _pixels(path: Path) -> np.ndarray:
    """A PNG's pixels, [height, width, 3]. Only what a browser writes: 8 bits, red, green, blue, perhaps alpha."""
    data = path.read_bytes()
    width, height, bits, colours, *_ = struct.unpack(">IIBBBBB", data[16:29])
    assert bits == 8 and colours in (2, 6)
    size = 3 if colours == 2 else 4
    packed, place = b"", 8
    while place < len(data):
        length, name = struct.unpack(">I4s", data[place : place + 8])
        packed += data[place + 8 : place + 8 + length] if name == b"IDAT" else b""
        place += 12 + length
    rows = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(height, 1 + width * size)
    above = np.zeros((width, size), np.uint8)
    made = np.empty((height, width, size), np.uint8)
    for number, row in enumerate(rows):
        line = row[1:].reshape(width, size)
        match row[0]:
            case 0:
                made[number] = line
            case 1:
                made[number] = np.cumsum(line, axis=0, dtype=np.uint8)
            case 2:
                made[number] = line + above
            case kind:
                left, corner = np.zeros(size, np.int32), np.zeros(size, np.int32)
                for at in range(width):
                    up = above[at].astype(np.int32)
                    guess = (left + up) // 2 if kind == 3 else _paeth(left, up, corner)
                    left, corner = (line[at] + guess) % 256, up
                    made[number, at] = left
        above = made[number]
    return made[:, :, :3]


def _paeth(left: np.ndarray, up: np.ndarray, corner: np.ndarray) -> np.ndarray:
    guess = left + up - corner
    far_left, far_up, far_corner = abs(guess - left), abs(guess - up), abs(guess - corner)
    nearest = np.where(far_up <= far_corner, up, corner)
    return np.where((far_left <= far_up) & (far_left <= far_corner), left, nearest)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    time, wide = Axis(label="time", quantity="time"), Axis(label="wide", log=True)
    series = [
        Series(name="a line", x=[1, 2, 3], y=[1, 20, 300], low=[0.5, 10, 200], high=[2, 30, 400]),
        Series(name="a step", kind="step", x=[1, 3], y=[5, 6]),
        Series(name="points", kind="points", x=[2, 2], y=[9, 0]),
        Series(name="a path", kind="path", x=[3, 1], y=[1, 2], low=[1, 1], high=[2, None]),
    ]
    curve = Figure(
        title="curve",
        x=time,
        y=wide,
        series=series,
        bounds=[Bound(at=7, label="a target"), Bound(at=2, label="here", axis="x")],
        shades=[Shade(start=1, end=1.5, label="before")],
        group="g",
    )
    lanes = Lanes(
        title="lanes",
        x=time,
        classes=[("one", 1), ("two", 2)],
        names=["first", "second"],
        lane=[0, 1],
        start=[1, 2],
        end=[2, 3],
        of=[0, 1],
        group="g",
    )
    empty = Figure(title="empty", x=time, y=wide, series=[Series(name="nothing", x=[], y=[])])
    spans = [(0.0104, 0.0841), (1e-6, 1e3), (1.0, 1.0 + 1e-9), (0.99, 1.01), (5e-324, 1e300)]
    logs = [
        Figure(title="log", x=wide, y=wide, series=[Series(name="a", x=span, y=span, colour=1)])
        for span in spans
    ]
    made = Page(title="</script>", sections=[Section(title="s", parts=[curve, lanes, empty, *logs])]).html()
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(made)
    return path


def test_every_figure_is_drawn_and_nothing_is_refused(page: Path) -> None:
    done = browse(page, "--dump-dom")
    assert not re.findall(r"CONSOLE.*", done.stderr)
    assert done.stdout.count("<canvas ") == 8
    assert len(re.findall(r"<button[^>]* aria-pressed=", done.stdout)) == 4 + 2


@pytest.mark.parametrize("scheme", COLOURS)
def test_curves_are_seen_in_light_and_dark(page: Path, scheme: str) -> None:
    path = page.with_name(f"{scheme}.png")
    preferred = f"--blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}"
    browse(page, f"--screenshot={path}", "--window-size=500,1200", preferred)
    pixels = _pixels(path)
    assert pixels[:, 0].mean() > 200 if scheme == "light" else pixels[:, 0].mean() < 60
    drawn = (pixels == np.array(COLOURS[scheme], np.uint8)).all(axis=2).sum()
    assert drawn > 1000, "a lane alone has more pixels"
