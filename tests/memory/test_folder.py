"""Named blocks in files: what is kept, what is given up, and what damage does (nothing)."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from octavo.memory.folder import BlockFolder

DATA = bytes(range(256)) * 4
HEADER = 136
FILE = HEADER + len(DATA)


def key(number: int) -> bytes:
    return bytes([number]) * 33


class Opener(Protocol):
    def __call__(
        self, root: Path, size: int = 1 << 30, identity: bytes = b"model"
    ) -> tuple[BlockFolder, list[bytes]]: ...


@pytest.fixture
def folder() -> Iterator[Opener]:
    """Makes a folder and gives what it found; closes all at the end."""
    opened = []

    def make(root: Path, size: int = 1 << 30, identity: bytes = b"model") -> tuple[BlockFolder, list[bytes]]:
        opened.append(BlockFolder(root, identity, size))
        return opened[-1], opened[-1].scan()

    yield make
    for each in opened:
        each.close()


def files(root: Path) -> list[Path]:
    return sorted(root.glob("*/*.kv"))


def test_what_is_stored_is_fetched_again(folder: Opener, tmp_path: Path) -> None:
    kept, known = folder(tmp_path / "new" / "deep")
    assert known == [] and kept.fetch(key(1)) is None
    assert kept.store(key(1), DATA) == [] and kept.store(key(2), b"") == []
    assert kept.fetch(key(1)) == DATA and kept.fetch(key(2)) == b"" and kept.fetch(key(3)) is None
    assert kept.used_bytes == FILE + HEADER
    assert kept.store(key(1), DATA) == [] and kept.used_bytes == FILE + HEADER


def test_a_later_process_finds_it_in_the_order_of_use(folder: Opener, tmp_path: Path) -> None:
    first, _ = folder(tmp_path)
    for number in range(4):
        first.store(key(number), DATA)
        os.utime(files(tmp_path)[-1], ns=(number, number))
    first.touch(key(1))
    first.close()
    again, known = folder(tmp_path)
    assert known == [key(0), key(2), key(3), key(1)]
    assert again.fetch(key(2)) == DATA and again.used_bytes == 4 * FILE


def test_the_least_recently_used_are_given_up(folder: Opener, tmp_path: Path) -> None:
    kept, _ = folder(tmp_path, size=3 * FILE)
    for number in range(3):
        assert kept.store(key(number), DATA) == []
    kept.fetch(key(0))
    kept.touch(key(1))
    assert kept.store(key(3), DATA) == [key(2)]
    assert kept.store(key(4), DATA + DATA) == [key(0), key(1)]
    assert kept.fetch(key(2)) is None and len(files(tmp_path)) == 2
    assert kept.used_bytes == sum(path.stat().st_size for path in files(tmp_path))
    assert kept.store(key(5), DATA * 4) == [key(5)], "larger than the folder may be"
    os.utime(files(tmp_path)[1], ns=(1, 1))
    kept.close()
    less, known = folder(tmp_path, size=FILE)
    assert known == [key(3)] and less.used_bytes == FILE


def test_blocks_of_another_identity_are_not_found_and_make_room(folder: Opener, tmp_path: Path) -> None:
    other, _ = folder(tmp_path, identity=b"other model")
    for number in range(2):
        other.store(key(number), DATA)
    other.close()
    kept, known = folder(tmp_path, size=3 * FILE)
    assert known == [] and kept.fetch(key(0)) is None and kept.used_bytes == 2 * FILE
    for number in range(3):
        assert kept.store(key(number), DATA[::-1]) == []
    assert kept.fetch(key(0)) == DATA[::-1] and len(files(tmp_path)) == 3


def test_a_file_that_was_moved_here_from_another_identity_or_key_is_refused(
    folder: Opener, tmp_path: Path
) -> None:
    other, _ = folder(tmp_path, identity=b"other model")
    other.store(key(0), DATA)
    other.close()
    kept, _ = folder(tmp_path)
    kept.store(key(1), DATA)
    [mine] = [path for path in files(tmp_path) if path.stem == key(1).hex()]
    [foreign] = [path for path in files(tmp_path) if path != mine]
    kept.close()
    foreign.rename(mine.parent / foreign.name)
    mine.rename(mine.with_name(f"{key(2).hex()}.kv"))
    again, known = folder(tmp_path)
    assert sorted(known) == [key(0), key(2)]
    assert again.fetch(key(0)) is again.fetch(key(2)) is None and again.used_bytes == 0


def test_a_flipped_bit_anywhere_is_a_warning_and_the_file_goes(
    folder: Opener, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept, _ = folder(tmp_path)
    for place in (*range(HEADER), HEADER, HEADER + 500, FILE - 1):
        assert kept.store(key(1), DATA) == [] and kept.fetch(key(1)) == DATA
        [path] = files(tmp_path)
        whole = bytearray(path.read_bytes())
        assert len(whole) == FILE
        whole[place] ^= 1 << place % 8
        path.write_bytes(whole)
        assert kept.fetch(key(1)) is None, place
        assert not files(tmp_path) and kept.used_bytes == 0
    assert f"{key(1).hex()}.kv is damaged" in caplog.text


@pytest.mark.parametrize("length", [0, 1, HEADER - 1, HEADER, FILE - 1, FILE + 1])
def test_a_file_of_another_length_is_a_warning_and_goes(
    folder: Opener, tmp_path: Path, length: int, caplog: pytest.LogCaptureFixture
) -> None:
    first, _ = folder(tmp_path)
    first.store(key(1), DATA)
    first.close()
    [path] = files(tmp_path)
    path.write_bytes((path.read_bytes() + b"x")[:length])
    kept, known = folder(tmp_path)
    assert known == [key(1)]
    assert kept.fetch(key(1)) is None and not files(tmp_path) and "is damaged" in caplog.text


def test_what_others_put_there_is_left_alone_and_what_a_dead_process_left_is_not(
    folder: Opener, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, _ = folder(tmp_path)
    first.store(key(1), DATA)
    first.close()
    [path] = files(tmp_path)
    (tmp_path / "thesis.txt").write_text("mine")
    (path.parent / "photo.jpg").write_text("mine")
    (path.parent / f"{key(9).hex()}.kv").symlink_to(tmp_path / "thesis.txt")
    (path.parent / "abc.part").write_text("unfinished")
    kept, known = folder(tmp_path, size=FILE)
    assert known == [key(1)]
    kept.store(key(2), DATA)
    assert (tmp_path / "thesis.txt").read_text() == (path.parent / "photo.jpg").read_text() == "mine"
    assert not (path.parent / "abc.part").exists()
    assert caplog.text.count("left alone") == 3


def test_a_file_that_disappeared_or_cannot_be_read_is_gone(
    folder: Opener, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept, _ = folder(tmp_path)
    kept.store(key(1), DATA)
    kept.store(key(2), DATA)
    first, second = files(tmp_path)
    first.unlink()
    assert kept.fetch(key(1)) is None and not caplog.records
    second.unlink()
    second.mkdir()
    assert kept.fetch(key(2)) is None and "Is a directory" in caplog.text and kept.used_bytes == 0


def test_a_full_disk_leaves_nothing_behind(
    folder: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, _ = folder(tmp_path)
    kept.store(key(1), DATA)

    def full(self: Path, target: Path) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        with pytest.raises(OSError, match="No space left"):
            kept.store(key(2), DATA)
    assert kept.fetch(key(2)) is None and kept.fetch(key(1)) == DATA and kept.used_bytes == FILE
    assert [path.name for path in files(tmp_path)[0].parent.iterdir()] == [f"{key(1).hex()}.kv"]


def test_one_process_at_a_time(folder: Opener, tmp_path: Path) -> None:
    first, _ = folder(tmp_path)
    with pytest.raises(BlockingIOError):
        folder(tmp_path, identity=b"other model")
    first.close()
    folder(tmp_path)


def test_a_folder_that_cannot_be_is_an_oserror(folder: Opener, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"file"):
        folder(tmp_path / "file" / "cache")


def test_a_disk_full_of_damage_does_not_fill_the_log(
    folder: Opener, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept, _ = folder(tmp_path)
    for number in range(30):
        kept.store(key(number), DATA)
    for path in files(tmp_path):
        path.write_bytes(b"")
    assert not any(kept.fetch(key(number)) for number in range(30))
    assert len(caplog.records) == 10 and "not told" in caplog.records[-1].message
