"""What the documents name exists: links, files, make targets, commands and their options, defaults."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import msgspec
import pytest
import typer

from octavo.cli.main import app
from octavo.cli.options import flag_of, shown_default
from octavo.config import EngineConfig
from octavo.protocol.body import MAX_DEPTH
from octavo.protocol.bounds import BOUNDS
from octavo.protocol.openai import MAX_PROMPTS
from octavo.protocol.unserved import INERT
from octavo.sampling import grammar, params
from octavo.server import limits
from octavo.server.app import ROUTES
from octavo.server.openai import MAX_SEQUENCES
from tests.conftest import REPOSITORY

PAGES = [*sorted(REPOSITORY.glob("*.md")), *sorted((REPOSITORY / "docs").glob("*.md"))]
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def _options(command: str) -> set[str]:
    commands = [COMMANDS[command], *getattr(COMMANDS[command], "commands", {}).values()]
    parameters = [parameter for one in commands for parameter in one.params]
    return {"--help", *(name for one in parameters for name in [*one.opts, *one.secondary_opts])}


def _code(page: Path) -> list[str]:
    """Every piece of code on the page: the lines of blocks, and what stands between backticks."""
    text = page.read_text()
    fenced = re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    rest = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    indented = re.findall(r"^ {4}(.*)$", rest, re.MULTILINE)
    inline = re.findall(r"`([^`\n]+)`", rest)
    lines = "\n".join(fenced).replace("\\\n", " ").splitlines()
    return [*lines, *indented, *inline]


@every_page
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        linked = (page.parent / file) if file else page
        assert linked.exists(), f"{page.name} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", linked.read_text(), re.MULTILINE)
            anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in anchors, f"{page.name} links to {target}"


@every_page
def test_files_and_rooms_exist(page: Path) -> None:
    homes = (REPOSITORY, REPOSITORY / "src" / "octavo")
    for code in _code(page):
        if re.fullmatch(r"[\w.\-/]+(\.(py|md|toml|h|cpp|txt)|/)", code) and "/" in code:
            assert any((home / code).exists() for home in homes), f"{page.name} names {code}"


@every_page
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([\w-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    for code in _code(page):
        for target in re.findall(r"^make ([a-z][\w-]*)", code):
            assert target in targets, f"{page.name} says make {target}"


@every_page
def test_commands_and_options_exist(page: Path) -> None:
    for code in _code(page):
        match = re.match(r"(?:\$ )?(?:\.venv/bin/)?octavo ([a-z][\w|]*)(.*)", code)
        if match is None:
            continue
        for command in match[1].split("|"):
            assert command in COMMANDS, f"{page.name} names octavo {command}"
            for option in re.findall(r"(?<!\S)(--[a-z][a-z-]*)", match[2]):
                assert option in _options(command), f"{page.name} names octavo {command} {option}"


@every_page
def test_options_named_alone_belong_to_some_command(page: Path) -> None:
    every = set().union(*(_options(command) for command in COMMANDS), {"--version"})
    for code in _code(page):
        if option := re.match(r"--[a-z][a-z-]*", code):
            assert option[0] in every, f"{page.name} names {option[0]}"


@every_page
def test_python_blocks_are_python(page: Path) -> None:
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        ast.parse(block)


@pytest.mark.parametrize("name", ["getting-started.md", "structured-output.md"])
def test_the_script_of_a_page_prints_an_answer(
    name: str, model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (REPOSITORY / "docs" / name).read_text()
    [script] = re.findall(r"^```python\n(from octavo.*?)^```", page, re.MULTILINE | re.DOTALL)
    exec(script, {})
    assert "Paris" in capsys.readouterr().out


def test_the_page_of_clients_has_every_route() -> None:
    page = (REPOSITORY / "docs" / "clients.md").read_text()
    shown = set(re.findall(r"`((?:GET|HEAD|POST|DELETE) /[^`\s]*)`", page))
    served = {
        f"{method} {re.sub(r':[a-z_]+', '', route.path)}"
        for route in ROUTES
        for method in (route.methods or set()) - {"HEAD"}
    }
    assert shown == served


def test_the_knobs_page_has_the_limits_of_the_api() -> None:
    page = (REPOSITORY / "docs" / "knobs.md").read_text()
    section = page.partition("## The limits of the API")[2].partition("##")[0]
    shown = dict(re.findall(r"^\| ([^|]*) \| ([^|]*) \|$", section, re.MULTILINE))
    assert f"{limits.MAX_BODY_BYTES >> 20} MiB" in shown["body"]
    assert f"nested {MAX_DEPTH} deep" in shown["body"]
    assert f"{limits.MAX_HEAD_BYTES >> 10} KiB" in shown["headers"]
    times = shown["time for the headers to arrive, and for the body"]
    assert times.startswith(f"{limits.HEAD_S:g} s, {limits.BODY_S:g} s")
    assert shown["prompts in one completion request"] == str(MAX_PROMPTS)
    assert shown["`n`"].startswith(f"{params.MAX_N},")
    grammars = shown["a JSON schema, a regular expression, a list of choices, a grammar"]
    assert grammars.startswith(
        f"{grammar.MAX_SOURCE_BYTES >> 20} MiB, in GBNF {grammar.MAX_GBNF_BYTES >> 10} KiB"
    )
    assert shown["prompts × `n`"] == str(MAX_SEQUENCES)
    assert shown["`stop`"] == f"{params.MAX_STOPS} strings of {params.MAX_STOP_BYTES} bytes"
    assert shown["`stop_token_ids`"] == str(params.MAX_STOPS)
    assert shown["`logprobs` of a completion, `top_logprobs` of a chat"] == str(params.MAX_LOGPROBS)


def test_the_knobs_page_has_every_option_of_serve_with_its_default() -> None:
    page = (REPOSITORY / "docs" / "knobs.md").read_text()
    flags = {option for option in _options("serve") if option.startswith("--")} - {"--help"}
    assert flags <= set(re.findall(r"--[a-z-]+", page))
    shown = dict(re.findall(r"^\| `(--[a-z-]+)`[^|]*\| ([^|]*) \|", page, re.MULTILINE))
    for field in msgspec.structs.fields(EngineConfig):
        flag = flag_of(field.name)
        if field.name != "model_dir" and field.default is not None:
            assert shown[flag] == f"`{shown_default(field)}`", f"docs/knobs.md gives {shown[flag]} for {flag}"


def test_the_bounds_of_fields_are_told() -> None:
    page = (REPOSITORY / "docs" / "api.md").read_text()
    section = page.partition("## Bounds")[2].partition("\n## ")[0]
    shown = dict(re.findall(r"^\| `(\w+)` \| [^|]* \| ([^|]*) \|", section, re.MULTILINE))
    assert shown.keys() == BOUNDS.keys()
    for name, bounds in BOUNDS.items():
        assert re.match(re.escape(str(bounds)) + r"(\b|$)", shown[name]), name
    told = set(re.findall(r"`(\w+)", page))
    assert told >= INERT - {"parallel_tool_calls"}
