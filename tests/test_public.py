"""The package as its users see it: public names, cheap imports, the shape of rooms and modules."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import octavo
from tests.conftest import REPOSITORY

PACKAGE = REPOSITORY / "src" / "octavo"
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")

every_module = pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))


def _name(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)


def _rooms() -> list[str]:
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    [contract] = settings["tool"]["importlinter"]["contracts"]
    return [name.strip("() ") for layer in contract["layers"] for name in layer.split(":")]


def _loaded_by(code: str) -> set[str]:
    """The top-level packages that a new interpreter has loaded after `code`."""
    script = f"{code}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("name", octavo.__all__)
def test_public_names_are_there(name: str) -> None:
    assert getattr(octavo, name) is not None
    assert name in dir(octavo)


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        _ = octavo.nonsense


def test_the_version_is_the_distribution_s() -> None:
    assert importlib.metadata.version("octavo") == octavo.__version__


def test_importing_the_package_loads_nothing_else() -> None:
    assert not _loaded_by("import octavo") & {"numpy", "msgspec", "tokenizers", "typer", "fastapi"}


def test_the_command_line_s_help_loads_nothing_heavy() -> None:
    heavy = {"numpy", "tokenizers", "fastapi", "uvicorn", "rich", "prometheus_client", "jinja2", "gguf"}
    code = "import contextlib, os, octavo.cli.main as m\n"
    code += "with open(os.devnull, 'w') as null, contextlib.redirect_stdout(null): m.run(['serve', '--help'])"
    assert not _loaded_by(code) & heavy


@every_module
def test_all_lists_what_is_there(path: Path) -> None:
    if path.name == "__main__.py":
        return
    module = importlib.import_module(_name(path))
    assert isinstance(module.__all__, list), f"{_name(path)} has no list __all__"
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


@every_module
def test_a_module_says_what_it_is_for_and_is_of_readable_size(path: Path) -> None:
    source = path.read_text()
    assert ast.get_docstring(ast.parse(source)), f"{path} has no docstring"
    assert source.count("\n") <= 500, f"{path} is too long for one noun"


def test_every_room_is_a_layer_and_is_tested() -> None:
    rooms = {path.parent.relative_to(PACKAGE).parts[0] for path in MODULES if path.parent != PACKAGE}
    assert rooms <= set(_rooms())
    untested = {room for room in rooms if not list((REPOSITORY / "tests" / room).glob("test_*.py"))}
    assert not untested


def test_tests_mirror_rooms() -> None:
    folders = {path.parent.name for path in (REPOSITORY / "tests").glob("*/test_*.py")}
    assert folders <= {*_rooms(), "kernels", "benchmarks", "clients", "fuzz", "faults"}


def test_nothing_that_is_made_is_in_the_repository() -> None:
    """An environment of 70 MB once was, for one line was missing in .gitignore."""
    listed = subprocess.run(
        ["git", "ls-files", "--", "."], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("this is no clone")
    top = {path.partition("/")[0] for path in listed.stdout.splitlines() if "/" in path}
    assert top <= {".ci", "benchmarks", "deploy", "docs", "kernels", "locks", "src", "tests"}
