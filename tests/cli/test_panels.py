"""Help in sections, and words that are no command's name."""

from __future__ import annotations

from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from octavo.cli.panels import GroupWithDefault, PanelCommand

EPILOG = """Examples:
  tool one
  tool two"""


def _app(seen: list[str]) -> typer.Typer:
    app = typer.Typer(cls=GroupWithDefault, rich_markup_mode=None)

    @app.command(cls=PanelCommand, epilog=EPILOG)
    def run(
        word: Annotated[str, typer.Argument()],
        size: Annotated[int, typer.Option(rich_help_panel="The size")] = 1,
        colour: Annotated[str, typer.Option(rich_help_panel="The look")] = "red",
        height: Annotated[int, typer.Option(rich_help_panel="The size")] = 2,
    ) -> None:
        """Run it."""
        seen.append(f"run {word} {size} {colour} {height}")

    @app.command(cls=PanelCommand)
    def report(word: str) -> None:
        """Report it."""
        seen.append(f"report {word}")

    return app


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["x"], "run x 1 red 2"),
        (["run", "x"], "run x 1 red 2"),
        (["--size", "7", "x"], "run x 7 red 2"),
        (["x", "--colour", "blue"], "run x 1 blue 2"),
        (["report", "x"], "report x"),
        (["run", "report"], "run report 1 red 2"),
    ],
)
def test_words_that_begin_with_no_command_are_those_of_run(arguments: list[str], wanted: str) -> None:
    seen: list[str] = []
    result = CliRunner().invoke(_app(seen), arguments)
    assert (result.exit_code, seen) == (0, [wanted]), result.output


def test_help_has_a_section_for_each_panel_and_the_epilog_as_it_is() -> None:
    result = CliRunner().invoke(_app([]), ["--help"])
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert [line for line in lines if line.endswith(":") and not line.startswith(" ")] == [
        "Arguments:",
        "The size:",
        "The look:",
        "Options:",
        "Examples:",
    ]
    size = lines.index("The size:")
    assert "--size" in lines[size + 1] and "--height" in lines[size + 2]
    assert result.output.endswith("Examples:\n  tool one\n  tool two\n")
    assert " run " not in lines[0]
    assert CliRunner().invoke(_app([]), []).output == result.output


def test_what_is_wrong_is_told_as_ever() -> None:
    result = CliRunner().invoke(_app([]), ["x", "--size", "a"])
    assert result.exit_code == 2 and "'a'" in result.output
