"""The key file: what is read and refused, and changes that leave all else as it stands."""

from __future__ import annotations

import logging
import multiprocessing
from pathlib import Path

import pytest

from octavo.errors import SettingsError
from octavo.server.access import digest_of
from octavo.server.key_file import KeyEntry, add_entry, entries_of, remove_entry, warn_of_key_file

HASH = f"sha256:{digest_of(b'a key').hex()}"
OTHER = f"sha256:{digest_of(b'another key').hex()}"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.toml"


def test_what_is_written_is_read(path: Path) -> None:
    entry = KeyEntry(hash=HASH, profile="rag", max_requests=2, tokens_per_minute=7, cache_scope="server")
    add_entry(path, "ann", entry)
    for name in ('a "b" \\c', "naïve 🙂", "dots.and@signs"):
        add_entry(path, name, KeyEntry(hash=f"sha256:{digest_of(name.encode()).hex()}"))
    assert list(entries_of(path)) == ["ann", 'a "b" \\c', "naïve 🙂", "dots.and@signs"]
    assert entries_of(path)["ann"] == entry
    assert path.stat().st_mode & 0o777 == 0o600


def test_underscores_will_do(path: Path) -> None:
    path.write_text(f'[keys.a]\nhash = "{HASH}"\ntokens_per_minute = 20_000\n')
    assert entries_of(path)["a"].tokens_per_minute == 20_000


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("my-plain-key\nanother\n", ["TOML", "octavo key add"]),
        ('[keys.a]\nkey = "s3cret-s3cret"\n', ["'a' has a plain key", "octavo key add"]),
        ('[keys]\na = "s3cret-s3cret"\n', ["'a' is no table", "octavo key add"]),
        ('[keys.a]\nhash = "s3cret-s3cret"\n', ["the hash of 'a'", "octavo key add"]),
        (f'[keys.a]\nhash = "{HASH[:-1]}"\n', ["64 hexadecimal digits"]),
        ("[keys.a]\nprofile = 'chat'\n", ["'a' has no hash"]),
        (f'[keys.a]\nhash = "{HASH}"\nmax-request = 1\n', ["'a'", "max-request"]),
        (f'[keys.a]\nhash = "{HASH}"\nmax-requests = 0\n', ["'a'", "max-requests"]),
        (f'[keys.a]\nhash = "{HASH}"\nmax-requests = "2"\n', ["'a'", "max-requests"]),
        (f'[keys.a]\nhash = "{HASH}"\nprofile = "fast"\n', ["'a'", "profile"]),
        (f'[keys.a]\nhash = "{HASH}"\n[keys.b]\nhash = "{HASH}"\n', ["'a' and 'b' are the same"]),
        (f'[keys.a]\nhash = "{HASH}"\n[other]\n', ["'other'"]),
        (f'[keys.""]\nhash = "{HASH}"\n', ["a key's name is ''"]),
    ],
)
def test_what_is_not_right_is_refused_and_no_key_is_told(path: Path, text: str, words: list[str]) -> None:
    path.write_text(text)
    with pytest.raises(SettingsError) as refused:
        entries_of(path)
    told = str(refused.value)
    assert str(path) in told and all(word in told for word in words), told
    assert "s3cret" not in told and HASH not in told and "my-plain-key" not in told


def test_what_is_no_text_is_refused(path: Path) -> None:
    path.write_bytes(b"\xff")
    with pytest.raises(SettingsError, match="TOML"):
        entries_of(path)


def test_changes_leave_the_rest_as_it_stands(path: Path) -> None:
    text = f'# ours\n\n[keys.a]  # first\nhash = "{HASH}"\n\n# of the night\n[ keys . b ]\nhash = "{OTHER}"\n# end\n'
    path.write_text(text)
    path.chmod(0o640)
    remove_entry(path, "a")
    assert path.read_text() == f'# ours\n\n# of the night\n[ keys . b ]\nhash = "{OTHER}"\n# end\n'
    add_entry(path, "c", KeyEntry(hash=HASH))
    assert path.read_text().startswith("# ours\n\n# of the night\n") and list(entries_of(path)) == ["b", "c"]
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(path.parent.iterdir()) == [path]


def test_a_layout_of_ones_own_is_left_alone(path: Path) -> None:
    text = f'keys = {{ a = {{ hash = "{HASH}" }} }}\n'
    path.write_text(text)
    with pytest.raises(SettingsError, match="by hand"):
        remove_entry(path, "a")
    assert path.read_text() == text


def test_names_and_keys_are_there_once(path: Path) -> None:
    add_entry(path, "a", KeyEntry(hash=HASH))
    before = path.read_text()
    for name, key, words in (
        ("a", OTHER, "named 'a' already"),
        ("b", HASH, "already, as 'a'"),
        ("", OTHER, "''"),
    ):
        with pytest.raises(SettingsError, match=words):
            add_entry(path, name, KeyEntry(hash=key))
    with pytest.raises(SettingsError, match="no key named 'b'"):
        remove_entry(path, "b")
    assert path.read_text() == before


def test_where_a_link_leads_the_link_stays(path: Path, tmp_path: Path) -> None:
    real = tmp_path / "real.toml"
    real.touch()
    path.symlink_to(real)
    add_entry(path, "a", KeyEntry(hash=HASH))
    assert path.is_symlink() and "keys.a" in real.read_text()


def _add_some(path: Path, first: int) -> None:
    for number in range(first, first + 10):
        add_entry(path, str(number), KeyEntry(hash=f"sha256:{digest_of(str(number).encode()).hex()}"))


def test_two_at_once_lose_nothing(path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    others = [context.Process(target=_add_some, args=(path, first)) for first in (100, 200)]
    for other in others:
        other.start()
    for other in others:
        other.join(60)
    assert len(entries_of(path)) == 20


@pytest.mark.parametrize(("mode", "words"), [(0o600, ""), (0o644, "can be read"), (0o660, "can be changed")])
def test_a_file_that_others_reach_is_told(
    path: Path, mode: int, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    path.touch()
    path.chmod(mode)
    with caplog.at_level(logging.WARNING):
        warn_of_key_file(path)
    assert (words in caplog.text) if words else not caplog.text
