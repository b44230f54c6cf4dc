"""Values without pydantic: the same as typer's own, and no import of it where nothing is odd."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import typer
from typer.core import TyperCommand
from typer.testing import CliRunner

from octavo.cli.options import parse_port, parse_size
from octavo.cli.values import QuickCommand


def _answer(kind: type[TyperCommand], *arguments: str) -> tuple[int, str, list[Any]]:
    """Exit code, what was printed, and what the command got."""
    seen: list[Any] = []
    app = typer.Typer(rich_markup_mode=None)

    @app.command(cls=kind)
    def command(
        name: Annotated[str, typer.Argument()] = "m",
        port: Annotated[int, typer.Option(parser=parse_port)] = 8000,
        size: Annotated[int | None, typer.Option(parser=parse_size)] = None,
        count: int | None = None,
        least: Annotated[int, typer.Option(min=2)] = 4,
        share: Annotated[float, typer.Option(min=0)] = 0.5,
        mode: Literal["a", "b"] | None = None,
        keys: Annotated[list[str] | None, typer.Option(envvar="TEST_KEYS")] = None,
        path: Path | None = None,
        flag: bool = False,
    ) -> None:
        seen.extend([name, port, size, count, least, share, mode, keys, path, flag])

    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.output, seen


@pytest.mark.parametrize(
    "line",
    [
        "",
        "m --port 0 --size 2GiB --count 007 --least 3 --share 0.25 --mode b --keys x --keys y --path . --flag",
        "--port x",
        "--port 70000",
        "--size 2Gix",
        "--count -3",
        "--count ½",
        "--count 1.5",
        "--count x",
        "--least 1",
        "--share -1",
        "--share 1e-3",
        "--mode c",
        "--mode A",
        "--no-flag",
        "--unknown",
    ],
)
def test_values_and_refusals_are_typer_s_own(line: str) -> None:
    (code, _, seen), own = _answer(QuickCommand, *line.split()), _answer(TyperCommand, *line.split())
    assert (code, seen) == (own[0], own[2])


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--count x", "'--count': 'x' should be a valid integer."),
        ("--count 1.5", "'--count': '1.5' should be a valid integer."),
        ("--least 1", "'--least': '1' should be greater than or equal to 2."),
        ("--share much", "'--share': 'much' should be a valid number."),
        ("--mode c", "'--mode': 'c' is not one of 'a', 'b'."),
        ("--size 2Gix", "'--size': '2Gix' is not a size; write a number and a unit"),
    ],
)
def test_a_refusal_names_option_value_and_what_is_allowed(line: str, words: str) -> None:
    code, output, _ = _answer(QuickCommand, *line.split())
    assert code == 2
    assert f"Invalid value for {words}" in output


def test_lists_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_KEYS", "a b")
    answer = _answer(QuickCommand)
    assert answer == _answer(TyperCommand)
    assert answer[2][7] == ["a", "b"]


def test_a_start_does_not_import_pydantic(tiny_model_path: Path) -> None:
    script = """
import sys
import octavo.server.run
from octavo.cli import main
octavo.server.run.run = lambda config, **rest: print(config.kv_memory_bytes, config.threads, config.backend)
arguments = ["--host", "127.0.0.1", "--port", "0", "--kv-memory", "4MiB", "--threads", "2", "--backend", "native"]
assert main.run(["serve", sys.argv[1], *arguments]) == 0
assert "pydantic" not in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tiny_model_path)], check=True, capture_output=True, text=True
    )
    assert done.stdout == f"{4 << 20} 2 native\n"
