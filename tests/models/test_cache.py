"""The cache folder: where it is, hashes, locks."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

import pytest

from octavo.errors import ModelError, ServerError
from octavo.models.cache import Hashes, cache_root, locked, need_space, replace_file, storing


def test_where_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("OCTAVO_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_root() == tmp_path / ".cache" / "octavo"
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_root() == Path("/xdg/octavo")
    monkeypatch.setenv("OCTAVO_CACHE", "~/own")
    assert cache_root() == tmp_path / "own"


def aged(path: Path, data: bytes, seconds: int = 100) -> Path:
    """A file that was last changed some time ago."""
    path.write_bytes(data)
    then = path.stat().st_mtime_ns - seconds * 10**9
    os.utime(path, ns=(then, then))
    return path


def test_a_hash_is_read_once(tmp_path: Path) -> None:
    path = aged(tmp_path / "f", b"one")
    hashes = Hashes(tmp_path / "cache")
    seen: list[tuple[int, int, str]] = []
    one = hashlib.sha256(b"one").hexdigest()
    assert hashes.known(path) is None
    assert hashes.sha256(path, lambda *args: seen.append(args)) == one
    assert seen == [(3, 3, "hashing f")]
    assert Hashes(tmp_path / "cache").known(path) == one
    assert Hashes(tmp_path / "cache").sha256(path, lambda *args: seen.append(args)) == one
    assert len(seen) == 1


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = aged(tmp_path / "f", b"one")
    hashes = Hashes(tmp_path)
    hashes.sha256(path)
    aged(path, b"two", seconds=50)
    assert hashes.sha256(path) == hashlib.sha256(b"two").hexdigest()
    assert hashes.known(path) == hashlib.sha256(b"two").hexdigest()


def test_a_file_that_just_changed_may_change_again_unseen(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"one")
    hashes = Hashes(tmp_path)
    assert hashes.sha256(path) == hashlib.sha256(b"one").hexdigest()
    assert hashes.known(path) is None
    hashes.remember(path, "abc", settled=True)
    assert hashes.known(path) == "abc"


@pytest.mark.parametrize("damage", [b"", b"{", b'{"a": 1}'])
def test_a_damaged_list_is_a_lost_one(tmp_path: Path, damage: bytes) -> None:
    path = aged(tmp_path / "f", b"one")
    hashes = Hashes(tmp_path)
    hashes.sha256(path)
    (tmp_path / "hashes.json").write_bytes(damage)
    assert hashes.known(path) is None
    hashes.sha256(path)
    assert hashes.known(path) is not None


def test_a_list_that_cannot_be_written(tmp_path: Path) -> None:
    path = aged(tmp_path / "f", b"one")
    assert Hashes(path / "impossible").sha256(path) == hashlib.sha256(b"one").hexdigest()


def test_one_at_a_time(tmp_path: Path) -> None:
    entered, inside, most = threading.Barrier(4), 0, 0

    def work() -> None:
        nonlocal inside, most
        entered.wait()
        for _ in range(20):
            with storing(tmp_path / "new" / "target"):
                inside += 1
                most = max(most, inside)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert not list((tmp_path / "new").iterdir())


def test_a_lock_leaves_nothing_behind_and_can_be_refused(tmp_path: Path) -> None:
    with locked(tmp_path / "t"):
        with pytest.raises(BlockingIOError), locked(tmp_path / "t", wait=False):
            pass
        assert [path.name for path in tmp_path.iterdir()] == ["t.lock"]
    with pytest.raises(ModelError), storing(tmp_path / "t"):
        raise ModelError("no such thing.")
    assert not list(tmp_path.iterdir())


def test_what_the_disk_refuses(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="Disk quota exceeded; free some space"), storing(tmp_path / "t"):
        raise OSError(122, os.strerror(122))
    with pytest.raises(ModelError, match="Permission denied; make it writable"), storing(tmp_path / "t"):
        raise PermissionError(13, os.strerror(13))


def test_need_space(tmp_path: Path) -> None:
    need_space(tmp_path, 1, "A byte")
    with pytest.raises(ServerError, match="A lot needs 1000000000000 MB in"):
        need_space(tmp_path, 10**18, "A lot")


def test_replace_file(tmp_path: Path) -> None:
    path = tmp_path / "f"
    replace_file(path, b"one")
    replace_file(path, b"two")
    assert path.read_bytes() == b"two"
    assert [each.name for each in tmp_path.iterdir()] == ["f"]
