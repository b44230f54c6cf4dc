"""Options made from settings: sizes, help texts, one option per field."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from octavo.cli.options import engine_options, field_help, flag_of, parse_duration, parse_size
from octavo.config import EngineConfig

RUNNER = CliRunner()


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1234", 1234),
        ("7b", 7),
        ("2GiB", 2 << 30),
        ("2gib", 2 << 30),
        ("512 MiB", 512 << 20),
        ("1.5KiB", 1536),
        ("3k", 3000),
        ("2GB", 2 * 10**9),
        ("1T", 10**12),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "-1", "2Gix", "GiB", "1e9", "2i", "2iB", "nan", "1.GiB", "2 GiB 3"])
def test_what_is_no_size_is_named(text: str) -> None:
    with pytest.raises(typer.BadParameter) as caught:
        parse_size(text)
    assert repr(text) in str(caught.value)
    assert "2GiB" in str(caught.value)


@given(st.integers(0, 2**40))
def test_plain_numbers_are_bytes(size: int) -> None:
    assert parse_size(str(size)) == parse_size(f"{size}b") == size


def _given(*arguments: str) -> dict[str, Any]:
    """What a command with engine options receives for these arguments."""
    seen: list[dict[str, Any]] = []
    app = typer.Typer()

    @app.command()
    @engine_options
    def command(model: Annotated[str, typer.Argument()] = "m", *, settings: dict[str, Any]) -> None:
        seen.append(settings)

    result = RUNNER.invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return seen[0]


def test_only_given_options_are_settings() -> None:
    assert _given() == {}
    assert _given("other", "--max-running", "3") == {"max_running": 3}


def test_every_field_but_the_folder_has_an_option_with_its_docstring_as_help() -> None:
    helps = field_help(EngineConfig)
    app = typer.Typer(rich_markup_mode=None)

    @app.command()
    @engine_options
    def command(*, settings: dict[str, Any]) -> None: ...

    shown = " ".join(RUNNER.invoke(app, ["--help"], terminal_width=1000).output.split())
    for field in msgspec.structs.fields(EngineConfig):
        if field.name == "model_dir":
            continue
        assert flag_of(field.name) in shown
        assert helps[field.name] in shown


def test_types_are_the_fields_own() -> None:
    settings = _given(
        "--kv-memory", "2GiB", "--backend", "reference", "--threads", "2", "--step-log", "x.log"
    )
    config = EngineConfig(model_dir="/m", **settings)
    assert config.kv_memory_bytes == 2 << 30
    assert config.backend == "reference"
    assert config.threads == 2
    assert msgspec.convert(msgspec.to_builtins(config), EngineConfig) == config  # strict about types


@pytest.mark.parametrize(
    ("vllm", "field"),
    [("--max-num-seqs", "max_running"), ("--max-num-batched-tokens", "max_step_tokens")],
)
def test_vllm_names_are_aliases(vllm: str, field: str) -> None:
    assert _given(vllm, "7") == {field: 7}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("250us", 250e-6), ("50ms", 0.05), ("1.5s", 1.5), ("2 MIN", 120.0), ("1h", 3600.0), ("0", 0.0)],
)
def test_a_time_has_its_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["5", "-1s", "1d", "s", "1h30min", "nans"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not a time"):
        parse_duration(text)
