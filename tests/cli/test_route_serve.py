"""`octavo route serve` before it serves: files that are shown, and faults that are sentences."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.cli.main import run

TIERS = '[tiers.small]\nurl = "http://127.0.0.1:1"\nmodel = "m"\nprice = { input = 0, output = 0 }\n'


def test_check_shows_the_tiers_and_starts_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "tiers.toml"
    file.write_text(TIERS + '[tiers.large]\nurl = "https://x.example"\nmodel = "big"\ncontext = 32768\n')
    assert run(["route", "serve", str(file), "--check"]) == 0
    shown = capsys.readouterr().out
    assert "2 tiers, the default is small" in shown
    assert "not known" in shown


def test_check_reads_the_policy_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "tiers.toml"
    large = '[tiers.large]\nurl = "http://127.0.0.1:2"\nmodel = "big"\n'
    file.write_text(f'{TIERS}{large}[decider]\npolicy = "starting"\n')
    assert run(["route", "serve", str(file), "--check"]) == 0
    assert "2 tiers, starting decides" in capsys.readouterr().out
    file.write_text(f'{TIERS}{large}[decider]\npolicy = "mine.npz"\n')
    assert run(["route", "serve", str(file), "--check"]) == 2
    assert "'mine.npz', which is no file and none of starting" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "options", "sentence"),
    [
        (None, [], "No such file or directory; check the path."),
        ("[tiers", [], "cannot be read as TOML"),
        (TIERS.replace("price", "prize"), [], "has 'prize', which nobody knows; did you mean price?"),
        (TIERS + 'key_variable = "OCTAVO_TEST_NO_SUCH"', [], "OCTAVO_TEST_NO_SUCH, which is not there"),
        (TIERS, ["--api-key", " "], "The API key is empty"),
        (TIERS, ["--port", "99999"], "--port"),
        (TIERS, ["--host", "192.0.2.1"], "is no address of this machine"),
    ],
)
def test_faults(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, options: list[str], sentence: str
) -> None:
    file = tmp_path / "tiers.toml"
    if text is not None:
        file.write_text(text)
    assert run(["route", "serve", str(file), *options]) == 2
    told = capsys.readouterr().err
    assert sentence in " ".join(told.split())
    assert "Traceback" not in told


def test_limits_of_a_key_that_nobody_would_keep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, keys = tmp_path / "tiers.toml", tmp_path / "keys.toml"
    file.write_text(TIERS)
    assert run(["key", "new", str(keys), "law", "--requests-per-minute", "5"]) == 0
    assert run(["route", "serve", str(file), "--api-key-file", str(keys), "--check"]) == 2
    assert (
        "The key of law has limits or a profile, which the gateway does not keep" in capsys.readouterr().err
    )
