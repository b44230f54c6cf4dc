"""The disk cache's thread: nothing is waited for, and whatever the disk does, it is news and no error."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from octavo.memory.disk import DiskCache, News
from octavo.memory.folder import BlockFolder

DATA = bytes(range(256)) * 4


def key(number: int) -> bytes:
    return bytes([number]) * 33


class Collector:
    """A disk cache and all its news so far."""

    def __init__(self, folder: BlockFolder, queue_bytes: int = 1 << 20) -> None:
        self.disk = DiskCache(folder, queue_bytes)
        self.news = News([], {}, [])

    def until(self, condition: Callable[[News], object]) -> News:
        deadline = time.monotonic() + 20
        while not condition(self.news):
            assert time.monotonic() < deadline, self.news
            self.disk.wait(0.1)
            if news := self.disk.take_news():
                self.news.known.extend(news.known)
                self.news.fetched.update(news.fetched)
                self.news.gone.extend(news.gone)
        return self.news


@pytest.fixture
def folder(tmp_path: Path) -> BlockFolder:
    return BlockFolder(tmp_path, b"model", 1 << 20)


@pytest.fixture
def collector(folder: BlockFolder) -> Iterator[Collector]:
    made = Collector(folder)
    yield made
    made.disk.close(5)


def test_what_was_stored_comes_back_with_the_news(collector: Collector) -> None:
    disk = collector.disk
    for number in range(20):
        disk.store(key(number), DATA + key(number))
    for number in range(20):
        disk.fetch(key(number))
    disk.fetch(key(99))
    news = collector.until(lambda news: news.gone)
    assert news.fetched == {key(number): DATA + key(number) for number in range(20)}
    assert news.gone == [key(99)] and not disk.fetching


def test_what_waits_is_written_at_the_end_and_found_by_the_next(collector: Collector, tmp_path: Path) -> None:
    for number in range(50):
        collector.disk.store(key(number), DATA)
    collector.disk.close(20)
    collector.disk.close(20)
    again = Collector(BlockFolder(tmp_path, b"model", 1 << 20))
    assert sorted(again.until(lambda news: news.known).known) == [key(number) for number in range(50)]
    assert again.disk.used_bytes == 50 * (136 + len(DATA))
    again.disk.close(5)


def test_after_the_end_everything_is_gone_and_nothing_waits(collector: Collector) -> None:
    collector.disk.close(5)
    assert collector.disk.full
    collector.disk.store(key(1), DATA)
    collector.disk.fetch(key(2))
    collector.disk.drop(key(3))
    collector.disk.touch(key(4))
    assert collector.until(lambda news: news.gone).gone == [key(1), key(2), key(3)]


class Gate:
    """Stops the disk's thread in its next `store`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open, self.reached = threading.Event(), threading.Event()
        real = BlockFolder.store

        def store(folder: BlockFolder, key: bytes, data: bytes) -> list[bytes]:
            self.reached.set()
            assert self.open.wait(20)
            return real(folder, key, data)

        monkeypatch.setattr(BlockFolder, "store", store)


def test_stores_that_a_slow_disk_has_no_room_for_are_dropped(
    folder: BlockFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    collector = Collector(folder, queue_bytes=3 * len(DATA))
    for number in range(3):
        assert not collector.disk.full
        collector.disk.store(key(number), DATA)
    assert collector.disk.full
    collector.disk.store(key(3), DATA)
    assert collector.until(lambda news: news.gone).gone == [key(3)]
    gate.open.set()
    collector.disk.close(20)
    assert folder.used_bytes == 3 * (136 + len(DATA))


def test_what_is_not_written_yet_can_be_fetched(folder: BlockFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    collector = Collector(folder)
    collector.disk.store(key(1), DATA)
    collector.disk.store(key(2), DATA)
    assert gate.reached.wait(20)
    collector.disk.fetch(key(2))
    gate.open.set()
    assert collector.until(lambda news: news.fetched).fetched == {key(2): DATA}
    collector.disk.close(5)


def test_a_disk_that_hangs_does_not_hold_up_the_end(
    folder: BlockFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    collector = Collector(folder)
    collector.disk.store(key(1), DATA)
    assert gate.reached.wait(20)
    began = time.monotonic()
    collector.disk.close(0.1)
    assert time.monotonic() - began < 5
    gate.open.set()
    collector.disk._thread.join(20)  # or it would write in the middle of another test


def test_a_full_disk_is_one_warning_until_there_is_room(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(self: Path, target: Path) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        for number in range(5):
            collector.disk.store(key(number), DATA)
        assert collector.until(lambda news: len(news.gone) == 5).gone == [key(number) for number in range(5)]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "No space left on device" in caplog.text
    collector.disk.store(key(6), DATA)
    collector.disk.fetch(key(6))
    assert collector.until(lambda news: news.fetched).fetched == {key(6): DATA}


def test_a_fault_of_ours_ends_the_cache_and_not_the_engine(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fault(*_: object) -> bytes:
        raise ZeroDivisionError

    monkeypatch.setattr(BlockFolder, "fetch", fault)
    collector.disk.fetch(key(1))
    collector.disk.fetch(key(2))
    assert sorted(collector.until(lambda news: len(news.gone) == 2).gone) == [key(1), key(2)]
    assert "ZeroDivisionError" in caplog.text and collector.disk.full


def test_a_folder_that_cannot_be_read_begins_empty(
    folder: BlockFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unreadable(self: BlockFolder) -> list[bytes]:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(BlockFolder, "scan", unreadable)
    collector = Collector(folder)
    collector.disk.store(key(1), DATA)
    collector.disk.fetch(key(1))
    assert collector.until(lambda news: news.fetched).fetched == {key(1): DATA}
    assert "begins empty" in caplog.text
    collector.disk.close(5)
