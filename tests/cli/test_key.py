"""`octavo key`: makes keys, shows each once, and keeps only hashes."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from octavo.cli import main
from octavo.server.access import Access, Limits, keys_of
from octavo.server.keys import Keys


def test_a_new_key_is_printed_once_and_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "keys.toml"
    limits = ["--max-requests", "2", "--requests-per-minute", "3", "--tokens-per-minute", "4"]
    assert main.run(["key", "new", str(file), "ann", "--profile", "rag", *limits]) == 0
    shown = capsys.readouterr()
    key = shown.out.strip()
    assert key.startswith("sk-octavo-") and len(key) > 50 and "ann is in" in shown.err
    assert key not in file.read_text() + shown.err
    access = Access(key_file=str(file))
    [known] = keys_of(access)
    assert Keys(access, [known]).identity_of(key.encode())
    assert (known.name, known.profile) == ("ann", "rag")
    assert known.limits == Limits(max_requests=2, requests_per_minute=3, tokens_per_minute=4)
    assert main.run(["key", "list", str(file)]) == 0
    listed = capsys.readouterr().out
    assert listed == "ann\tprofile=rag\tmax-requests=2\trequests-per-minute=3\ttokens-per-minute=4\n"
    assert main.run(["key", "remove", str(file), "ann"]) == 0
    assert keys_of(access) == []


def test_a_key_of_ones_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "keys.toml"

    def add(key: str) -> tuple[int, str]:
        monkeypatch.setattr("sys.stdin", io.StringIO(f"{key}\n"))
        code = main.run(["key", "add", str(file), "ann"])
        shown = capsys.readouterr()
        assert key not in shown.out + shown.err
        return code, shown.err

    for key, words in (("xyzzy", "5 characters"), ("with a blank, and long enough", "visible ASCII")):
        code, told = add(key)
        assert code == 2 and words in told and not file.exists()
    own = "0123456789abcdef-0123456789"
    assert add(own)[0] == 0
    access = Access(key_file=str(file))
    assert Keys(access, keys_of(access)).identity_of(own.encode())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["list", "/no/such/file"], "/no/such/file"),
        (["remove", "/no/such/folder/file", "a"], "/no/such/folder"),
        (["new", "/no/such/folder/file", "a"], "/no/such/folder"),
        (["new", "keys.toml", "a", "--max-requests", "0"], "'0' should be"),
        (["new", "keys.toml", "a", "--profile", "fast"], "fast"),
        (["new", "keys.toml", "a\nb"], "visible characters"),
        (["new", "keys.toml"], "NAME"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main.run(["key", *arguments]) == 2
    shown = capsys.readouterr()
    assert words in shown.err and shown.err.count("\n") == 1 and not shown.out
    assert not (tmp_path / "keys.toml").exists()
