"""Files of lines: what is read, and that no crash and no full disk leaves half a line."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from octavo.errors import ServerError
from octavo.storage.lines import LineFile, lines_of


def everything(_: bytes) -> bool:
    return True


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lines"


def test_lines_have_their_numbers_and_blank_ones_are_passed_over(path: Path) -> None:
    path.write_bytes(b"\xef\xbb\xbf{}\r\n\n  \nb\nlast")
    assert list(lines_of(path, 100)) == [(1, b"{}"), (4, b"b"), (5, b"last")]


def test_a_line_that_is_too_long_is_cut_and_the_next_one_whole(path: Path) -> None:
    path.write_bytes(b"a" * 35 + b"\nb\n" + b"c" * 10)
    assert list(lines_of(path, 10)) == [(1, b"a" * 11), (2, b"b"), (3, b"c" * 10)]
    path.write_bytes(b"")
    assert list(lines_of(path, 10)) == []


def test_a_file_that_is_gone_is_named(path: Path) -> None:
    with pytest.raises(ServerError, match="lines' cannot be used: No such file"):
        list(lines_of(path, 10))


@pytest.mark.parametrize(
    ("left", "kept"),
    [
        (b"", b""),
        (b"one\ntwo\n", b"one\ntwo\n"),
        (b"one\ntw", b"one\n"),
        (b"one\nbad\ntwo\n", b"one\n"),
        (b"on", b""),
    ],
)
def test_what_a_crash_cut_in_two_is_cut_off(path: Path, left: bytes, kept: bytes) -> None:
    path.write_bytes(left)
    seen = list[bytes]()

    def take(line: bytes) -> bool:
        seen.append(line)
        return line != b"bad\n"

    file = LineFile(path, take)
    assert (file.nbytes, file.count) == (len(kept), kept.count(b"\n"))
    assert path.read_bytes() == kept
    file.append([b"new\n", b"newer\n"])
    file.append([])
    file.close()
    assert path.read_bytes() == kept + b"new\nnewer\n"
    assert [line for line in seen if line != b"bad\n"] == kept.splitlines(keepends=True)


@contextmanager
def _files_of_at_most(nbytes: int) -> Iterator[None]:
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, usual[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)


def test_a_full_disk_leaves_whole_lines_and_writing_goes_on_later(path: Path) -> None:
    file = LineFile(path, everything)
    file.append([b"one\n"])
    with (
        _files_of_at_most(10),
        pytest.raises(ServerError, match=r"lines' cannot be used: .*; free some space"),
    ):
        file.append([b"two\n", b"three\n"])
    assert path.read_bytes() == b"one\n"
    file.append([b"two\n"])
    assert (file.nbytes, file.count) == (8, 2)
    file.close()
    assert path.read_bytes() == b"one\ntwo\n"
