"""Reading pip's settings."""

from __future__ import annotations

import pytest

from octavo.models.pip_settings import PipSettings, parse_pip_settings, read_pip_settings

HELP = """
  -i, --index-url <url>       Base URL of the Python Package Index (default
                              https://index.example/simple). This should
"""


def test_no_settings_take_the_index_that_pip_names() -> None:
    assert parse_pip_settings("", HELP) == PipSettings(
        indexes=("https://index.example/simple",), cafile=None, proxy=None, timeout_s=15.0, odd=""
    )


def test_precedence_and_every_key() -> None:
    lines = """
:env:.index-url='https://env.example/simple'
download.index-url='https://command.example/simple'
global.index-url='https://global.example/simple'
global.extra-index-url='file:///a/folder\\nhttps://extra.example/simple'
global.cert='/certs.pem'
global.proxy='http://proxy.example:3128'
global.default-timeout='60'
install.cert='/of/another/command.pem'
WARNING: some noise
"""
    assert parse_pip_settings(lines, HELP) == PipSettings(
        indexes=("https://env.example/simple", "https://extra.example/simple"),
        cafile="/certs.pem",
        proxy="http://proxy.example:3128",
        timeout_s=60.0,
        odd="",
    )
    assert (
        parse_pip_settings("\n".join(lines.splitlines()[2:]), HELP).indexes[0][:20] == "https://command.exam"
    )


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("global.index-url='file:///folder'", "no index over HTTP is known"),
        ("global.index-url='https://me:secret@index.example/simple'", "an index needs a login"),
        ("global.trusted-host='index.example'", "trusted-host is set"),
        ("global.no-index='true'", "no-index is set"),
    ],
)
def test_what_only_pip_can_use(line: str, reason: str) -> None:
    assert parse_pip_settings(line, HELP).odd == reason


def test_odd_lines_are_passed_over() -> None:
    settings = parse_pip_settings("global.timeout='soon'\nglobal.cert=not a literal\n", "")
    assert (settings.timeout_s, settings.cafile) == (15.0, None)
    assert settings.odd == "no index over HTTP is known"


def test_this_pip_can_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://index.example/simple")
    monkeypatch.setenv("PIP_PROXY", "http://proxy.example:1")
    settings = read_pip_settings()
    assert settings.indexes[0] == "https://index.example/simple"
    assert settings.proxy == "http://proxy.example:1"


def test_this_pip_names_its_default_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_INDEX_URL", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    assert read_pip_settings().indexes[0].startswith("https://")
