"""`serve --config FILE`: the options in a file, what wins over them, and what is wrong with a file."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from octavo.cli import main
from octavo.config import EngineConfig

Runs = list[tuple[EngineConfig, dict[str, Any]]]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    """What would have been served."""
    seen: Runs = []
    monkeypatch.setattr("octavo.server.run.run", lambda config, **rest: seen.append((config, rest)))
    return seen


TOML = """
model = "{model}"
port = 8123
api-key = ["a", "b"]
key_profile = "2=batch"
kv_memory = "64MiB"
max-num-seqs = 4
tbt-target = "50ms"
priority-aging = "30s"
prefix-cache = false
strict = true
speculation = "off"
"""
YAML = """
model: {model}
port: 8123
api-key: [a, b]
key_profile: 2=batch
kv_memory: 64MiB
max-num-seqs: 4
tbt-target: 50ms
priority-aging: 30s
prefix-cache: false
strict: true
speculation: "off"
"""
JSON = """
{{"model": "{model}", "port": 8123, "api-key": ["a", "b"], "key_profile": "2=batch", "kv_memory": 67108864,
"max-num-seqs": 4, "tbt-target": "50ms", "priority-aging": "30s", "prefix-cache": false, "strict": true,
"speculation": "off"}}
"""


@pytest.mark.parametrize(
    ("name", "text"), [("a.toml", TOML), ("a.yaml", YAML), ("a.yml", YAML), ("a.json", JSON)]
)
def test_a_file_says_all_that_the_command_line_can(
    runs: Runs, tiny_model_path: Path, tmp_path: Path, name: str, text: str
) -> None:
    file = tmp_path / name
    file.write_text(text.format(model=tiny_model_path))
    assert main.run(["serve", "--config", str(file)]) == 0
    [(config, rest)] = runs
    assert config == EngineConfig(
        model_dir=config.model_dir,
        kv_memory_bytes=64 << 20,
        max_running=4,
        tbt_target_s=0.05,
        priority_aging_s=30.0,
        prefix_cache=False,
        speculation="off",
    )
    assert (rest["model_name"], rest["port"], rest["strict"]) == (str(tiny_model_path), 8123, True)
    assert rest["access"].api_keys == ("a", "b")
    assert rest["access"].key_profiles == {1: "batch"}


def test_the_command_line_and_the_environment_win(
    runs: Runs, tiny_model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.toml"
    file.write_text(TOML.format(model="nothing-of-this-name"))
    monkeypatch.setenv("OCTAVO_API_KEY", "c d")
    options = ["--max-running", "8", "--prefix-cache", "--port", "0", "--config", str(file)]
    assert main.run(["serve", str(tiny_model_path), *options]) == 0
    [(config, rest)] = runs
    assert (config.max_running, config.prefix_cache, config.kv_memory_bytes) == (8, True, 64 << 20)
    assert (rest["port"], rest["access"].api_keys) == (0, ("c", "d"))


def test_an_empty_file_says_nothing(runs: Runs, tiny_model_path: Path, tmp_path: Path) -> None:
    for name in ("a.toml", "a.yaml"):
        (tmp_path / name).write_text("# nothing\n")
        assert main.run(["serve", str(tiny_model_path), "--config", str(tmp_path / name)]) == 0
    assert [config for config, _ in runs] == [EngineConfig(model_dir=runs[0][0].model_dir)] * 2


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.toml", "prot = 3", "prot is no option of serve; did you mean port?"),
        ("a.toml", "max_runing = 3", "did you mean max-running?"),
        ("a.toml", "no-prefix-cache = true", "write prefix-cache with the value false"),
        ("a.toml", 'config = "b.toml"', "names no other"),
        ("a.toml", "help = true", "help is no option"),
        ("a.toml", "[serve]\nport = 3", "serve is no option"),
        ("a.toml", 'port = "8203"', 'port is "8203"; it must be a whole number.'),
        ("a.toml", "port = 8203.0", "port is 8203.0; it must be a whole number."),
        ("a.toml", "port = true", "port is true; it must be a whole number."),
        ("a.toml", "port = 70000", "port is 70000: '70000' is not a port"),
        ("a.yaml", "port: '8203'", 'port is "8203"; it must be a whole number.'),
        ("a.json", '{"port": "8203"}', 'port is "8203"; it must be a whole number.'),
        ("a.toml", "kv-memory = 0.5", 'it must be a text such as "2GiB", or a whole number of bytes.'),
        ("a.toml", "tbt-target = 0.5", 'it must be a text such as "50ms", or 0.'),
        ("a.toml", 'drain-timeout = "3"', 'drain-timeout is "3"; it must be a number.'),
        ("a.toml", 'kv-memory = "many"', "kv-memory is \"many\": 'many' is not a size"),
        ("a.toml", 'policy = "fast"', "'stall-free'"),
        ("a.toml", "policy = 3", "policy is 3; it must be one of static, "),
        ("a.toml", "drain-timeout = -1", "drain-timeout is -1: "),
        ("a.toml", "max-queued-requests = 1.5", "must be a whole number"),
        ("a.toml", 'strict = "yes"', 'strict is "yes"; it must be true or false'),
        ("a.toml", "api-key = [1]", "api-key is [1]; it must be a text or a list of texts"),
        ("a.toml", "api-key = ''", "The API key is empty"),
        ("a.toml", "a = = 3", "cannot be read as TOML"),
        ("a.toml", b"\xff", "cannot be read as TOML"),
        ("a.json", "{", "cannot be read as JSON"),
        ("a.json", "[1]", "it must hold keys and values"),
        ("a.json", '{"port": 1, "port": 2}', "the key port is there twice"),
        ("a.json", '{"max_running": "3"}', 'max_running is "3"; it must be a whole number'),
        ("a.yaml", "port: 1\nport: 2", "the key port is there twice"),
        ("a.yaml", "max-running: 1\nmax_num_seqs: 2", "max_num_seqs says what max-running says"),
        ("a.yaml", "speculation: off", "off, on, yes and no as words need quotes"),
        ("a.yaml", "api-key:", "api-key has no value"),
        ("a.yaml", "a: [", "cannot be read as YAML"),
        ("a.yaml", "1: 2", "1 is no option"),
        ("a.ini", "x", "ends in .toml, .yaml, .yml, .json"),
        ("a.toml", None, "No such file"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    runs: Runs,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    name: str,
    text: str | bytes | None,
    words: str,
) -> None:
    file = tmp_path / name
    if text is not None:
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert main.run(["serve", "--config", str(file)]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("error: ") and shown.count("\n") == 1
    assert words in shown
    assert not re.search(r"[.?!][.?!]\s*$", shown)
    assert str(file) in shown or "API key" in words
    assert not runs


def test_yaml_without_its_library_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    file = tmp_path / "a.yaml"
    file.write_text("port: 1")
    assert main.run(["serve", "--config", str(file)]) == 2
    assert "octavo[yaml]" in capsys.readouterr().err
