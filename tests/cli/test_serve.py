"""`octavo serve` as a process: what it prints, how it ends, what it refuses before it starts."""

from __future__ import annotations

import os
import pty
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from octavo.cli import main
from octavo.config import EngineConfig
from octavo.server.access import Access, digest_of
from octavo.server.edge import Edge
from octavo.telemetry.logs import FORMAT_VARIABLE, LEVEL_VARIABLE
from tests.processes import engine_of


def _hang_up(process: subprocess.Popen[str]) -> str:
    """SIGHUP, and what it logs."""
    process.send_signal(signal.SIGHUP)
    return _logged(process)


def _logged(process: subprocess.Popen[str]) -> str:
    """The next line that tells of no request."""
    assert process.stderr is not None
    return next(line for line in process.stderr if "octavo.access:" not in line)


@contextmanager
def _served(*arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "octavo", "serve", *arguments]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | environment
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _announced(process: subprocess.Popen[str]) -> tuple[str, str]:
    """The two lines that a server prints when it serves."""
    assert process.stdout is not None
    sentence, curl = process.stdout.readline(), process.stdout.readline()
    if not curl:
        assert process.stderr is not None
        pytest.fail(f"the server did not start: {process.stderr.read()}")
    return sentence.rstrip("\n"), curl.rstrip("\n")


def _as_curl_would(line: str, **environment: str) -> str:
    """Send what `line` says and return the answer's text."""
    curl, no_buffer, url, *rest = shlex.split(line)
    assert (curl, no_buffer) == ("curl", "-N")
    headers, body = {}, ""
    for flag, value in zip(rest[::2], rest[1::2], strict=True):
        if flag == "-H":
            name, _, content = value.partition(": ")
            for variable, replacement in environment.items():
                content = content.replace(f"${variable}", replacement)
            headers[name] = content
        else:
            assert flag == "-d"
            body = value
    return httpx2.post(url, headers=headers, content=body, timeout=120).raise_for_status().text


def _end(process: subprocess.Popen[str], number: signal.Signals) -> tuple[int, str]:
    process.send_signal(number)
    _, error = process.communicate(timeout=120)
    return process.returncode, error


def test_the_printed_request_works_and_the_end_is_clean(tiny_model_path: Path, tmp_path: Path) -> None:
    log = tmp_path / "steps.log"
    with _served(
        str(tiny_model_path), "--port", "0", "--kv-memory", "4MiB", "--step-log", str(log)
    ) as process:
        sentence, curl = _announced(process)
        assert sentence.startswith(f"Octavo serves {tiny_model_path} on http://127.0.0.1:")
        assert _as_curl_would(curl).endswith("data: [DONE]\n\n")
        code, logged = _end(process, signal.SIGINT)
        assert code == 0
        (line,) = logged.splitlines()
        assert " INFO octavo.access: request request_id=req_" in line and " status=200 " in line
    assert main.run(["replay", str(log)]) == 0


def test_a_key_and_a_name_of_one_s_own(tiny_model_path: Path) -> None:
    arguments = [str(tiny_model_path), "--port", "0", "--kv-memory", "4MiB", "--served-model-name", "it's"]
    arguments.append("--no-access-log")
    with _served(*arguments, OCTAVO_API_KEY="secret", HF_TOKEN="hf_secret") as process:
        sentence, curl = _announced(process)
        assert sentence.startswith("Octavo serves it's on ")
        assert "secret" not in sentence + curl
        engine = engine_of(process.pid)
        assert b"secret" not in Path(f"/proc/{engine}/environ").read_bytes()
        assert _as_curl_would(curl, OCTAVO_API_KEY="secret").endswith("data: [DONE]\n\n")
        with pytest.raises(httpx2.HTTPStatusError, match="401"):
            _as_curl_would(curl, OCTAVO_API_KEY="guess")
        assert _end(process, signal.SIGTERM) == (0, "")


def test_settings_are_read_again(tiny_model_path: Path, tmp_path: Path) -> None:
    """The key file and the config file; the environment, which nobody can see any more, still wins over the latter."""
    keys, config = tmp_path / "keys.toml", tmp_path / "octavo.toml"
    first, second = "first-key-of-some-length", "second-key-of-some-length"

    def write(*names: str) -> None:
        keys.write_text(
            "".join(f'[keys.{n[:5]}]\nhash = "sha256:{digest_of(n.encode()).hex()}"\n' for n in names)
        )
        keys.chmod(0o600)

    write(first)
    config.write_text("max-queued-requests = 4\napi-key = 'of-the-file'\n")
    arguments = [str(tiny_model_path), "--port", "0", "--kv-memory", "4MiB", "--tokens-per-minute", "5000"]
    files = ["--api-key-file", str(keys), "--config", str(config)]
    with _served(*arguments, *files, OCTAVO_API_KEY="secret") as process:
        sentence, _ = _announced(process)
        url = sentence.split(" on ")[1].split(" ")[0]

        def statuses() -> list[int]:
            return [
                httpx2.get(f"{url}/v1/models", headers={"x-api-key": key}).status_code
                for key in (first, second, "secret", "of-the-file")
            ]

        assert statuses() == [200, 401, 200, 401]
        write(second)
        config.write_text("max-queued-requests = 5\ntokens-per-minute = 1\nkv-memory = '8MiB'\nport = 1\n")
        # Of what the command line says, the file's word does not count.
        line = _hang_up(process)
        assert "settings read again: keys added: secon; removed: first; max-queued-requests 4 → 5\n" in line
        assert statuses() == [401, 200, 200, 401]
        config.write_text("threads = 1\n")
        assert "not before the server is started again: threads" in _hang_up(process)
        assert "max-queued-requests 5 → none\n" in _logged(process)
        config.write_text("max-queued-requests = -1\n")
        line = _hang_up(process)
        assert "stay as they are" in line and "max-queued-requests" in line
        config.write_text("")
        keys.write_text("[keys.first]\nkey = 'plain-text'\n")
        line = _hang_up(process)
        assert "'first' has a plain key" in line and "plain-text" not in line
        keys.unlink()
        assert str(keys) in _hang_up(process)
        assert statuses() == [401, 200, 200, 401]
        write()
        assert "has no keys" not in _hang_up(process)  # the environment's is one
        assert statuses() == [401, 401, 200, 401]
        assert _end(process, signal.SIGTERM)[0] == 0


@pytest.mark.slow
def test_a_server_with_keys_does_not_become_an_open_one(tiny_model_path: Path, tmp_path: Path) -> None:
    config = tmp_path / "octavo.toml"
    config.write_text("api-key = 'some-key'\n")
    with _served(
        str(tiny_model_path), "--port", "0", "--kv-memory", "4MiB", "--config", str(config)
    ) as process:
        sentence, _ = _announced(process)
        config.write_text("")
        assert "would let everybody in" in _hang_up(process)
        url = sentence.split(" on ")[1].split(" ")[0]
        assert httpx2.get(f"{url}/v1/models").status_code == 401
        config.write_text("api-key = ''\n")
        assert "is empty" in _hang_up(process)
        assert _end(process, signal.SIGTERM)[0] == 0


def test_a_server_ends_with_its_terminal(tiny_model_path: Path) -> None:
    """And is not left behind, reading its settings again."""
    command = [
        sys.executable,
        "-m",
        "octavo",
        "serve",
        str(tiny_model_path),
        "--port",
        "0",
        "--num-blocks",
        "64",
    ]
    pid, terminal = pty.fork()
    if pid == 0:  # pragma: no cover
        os.execv(command[0], command)
    shown = b""
    while b"\n" not in shown.partition(b"curl")[2]:
        shown += os.read(terminal, 4096)
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_an_end_that_waits_says_so_and_a_second_signal_ends_at_once(tiny_model_path: Path) -> None:
    arguments = ["--port", "0", "--num-blocks", "64", "--backend", "reference", "--drain-timeout", "600"]
    with _served(str(tiny_model_path), *arguments) as process:
        sentence, _ = _announced(process)
        url = sentence.split(" on ")[1].split(" ")[0] + "/v1/completions"
        body = {"prompt": "Hello", "n": 32, "max_tokens": None, "ignore_eos": True, "stream": True}
        with httpx2.stream("POST", url, json=body, timeout=120) as response:
            lines = response.iter_lines()
            assert next(lines).startswith("data: ")
            os.kill(engine_of(process.pid), signal.SIGSTOP)  # now it cannot finish by itself
            process.send_signal(signal.SIGINT)
            assert process.stderr is not None
            assert "running requests: 1; waiting up to 600 s" in process.stderr.readline()
            code, error = _end_while_read(process, lines)
        assert code == 0
        assert "1 requests are ended unfinished" in error


def _end_while_read(process: subprocess.Popen[str], lines: Iterator[str]) -> tuple[int, str]:
    process.send_signal(signal.SIGINT)
    assert list(lines)[-2:] == ["data: [DONE]", ""]
    _, error = process.communicate(timeout=120)
    return process.returncode, error


def test_the_environment_holds_several_keys(
    runs: list[tuple[EngineConfig, dict[str, Any]]], tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCTAVO_API_KEY", "k1 k2")
    assert main.run(["serve", str(tiny_model_path)]) == 0
    [(_, rest)] = runs
    assert rest["access"].api_keys == ("k1", "k2")


def test_a_model_may_have_several_names(
    runs: list[tuple[EngineConfig, dict[str, Any]]], tiny_model_path: Path
) -> None:
    names = ("--served-model-name", "a", "--served-model-name", "b", "--served-model-name", "a")
    assert main.run(["serve", str(tiny_model_path), *names]) == 0
    [(_, rest)] = runs
    assert (rest["model_name"], rest["aliases"]) == ("a", ["b"])


def _refusal(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main.run(["serve", *arguments]) == 2
    shown = capfd.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: ")
    assert shown.err.count("\n") == 1
    return shown.err


@pytest.mark.parametrize("arguments", [["--api-key="], ["--api-key", " "], ["--api-key", "k", "--api-key="]])
def test_an_empty_key_is_no_open_server(capfd: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert "The API key is empty" in _refusal(capfd, *arguments)


@pytest.mark.parametrize("value", ["", "  "])
def test_nor_is_an_empty_key_in_the_environment(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("OCTAVO_API_KEY", value)
    assert "The API key is empty" in _refusal(capfd)


def test_a_key_that_no_header_carries_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    for key in ("two words", "schlüssel", "line\nbreak"):
        line = _refusal(capfd, "--api-key", key)
        assert "visible ASCII" in line
        assert key not in line


def test_a_taken_port_is_refused(capfd: pytest.CaptureFixture[str], tiny_model_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert port in _refusal(capfd, str(tiny_model_path), "--port", port)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--kv-memory", "1KiB"], ["1024", "block"]),
        (["--max-model-len", "999999"], ["max_model_len", "999999"]),
        (["--threads", "-2"], ["threads", "-2"]),
        (["--gpu-memory-utilization", "7"], ["memory_utilization", "7"]),
        (["--step-log", "/no/such/folder/steps.log"], ["/no/such/folder/steps.log"]),
        (["--host", "nowhere.invalid"], ["nowhere.invalid"]),
        (["--speculation", "much"], ["speculation is 'much'", "draft: and a model"]),
        (["--speculation", "draft:/no/such/file.gguf"], ["/no/such/file.gguf"]),
        (["--speculation-tokens", "17"], ["speculation_tokens is 17", "1 to 16"]),
    ],
)
def test_settings_that_cannot_work_are_refused(
    capfd: pytest.CaptureFixture[str], tiny_model_path: Path, arguments: list[str], parts: list[str]
) -> None:
    line = _refusal(capfd, str(tiny_model_path), "--port", "0", *arguments)
    assert all(part in line for part in parts)


def test_a_model_guesses_for_another_one(tiny_model_path: Path) -> None:
    draft = f"draft:{tiny_model_path}"
    arguments = [str(tiny_model_path), "--port", "0", "--kv-memory", "8MiB", "--speculation", draft]
    arguments.append("--disable-uvicorn-access-log")
    with _served(*arguments, "--speculation-tokens", "3") as process:
        _, curl = _announced(process)
        assert _as_curl_would(curl).endswith("data: [DONE]\n\n")
        metrics = httpx2.get(shlex.split(curl)[2].replace("/v1/chat/completions", "/metrics")).text
        counted = {
            name.removeprefix("vllm:spec_decode_num_").partition("{")[0]: float(value)
            for name, _, value in (line.rpartition(" ") for line in metrics.splitlines())
            if name.startswith("vllm:spec_decode_num_") and "position" not in name
        }
        assert counted["accepted_tokens_total"] == counted["draft_tokens_total"] > 0
        assert _end(process, signal.SIGINT) == (0, "")


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[EngineConfig, dict[str, Any]]]:
    """What would have been served."""
    seen: list[tuple[EngineConfig, dict[str, Any]]] = []
    monkeypatch.setattr("octavo.server.run.run", lambda config, **rest: seen.append((config, rest)))
    monkeypatch.setattr("octavo.cli.serve.configure", lambda *_: None)
    for name in (FORMAT_VARIABLE, LEVEL_VARIABLE):
        monkeypatch.setenv(name, "")
    return seen


def test_paths_are_absolute_and_defaults_are_the_settings_own(
    runs: list[tuple[EngineConfig, dict[str, Any]]], tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tiny_model_path.parent)
    paths = ["--step-log", "steps.log", "--cache-disk", "blocks"]
    assert main.run(["serve", tiny_model_path.name, *paths, "--api-key", "k"]) == 0
    [(config, rest)] = runs
    assert config.step_log == str(tiny_model_path.parent / "steps.log")
    assert config.cache_disk == str(tiny_model_path.parent / "blocks")
    assert Path(config.model_dir).is_absolute()
    assert config == EngineConfig(
        model_dir=config.model_dir, step_log=config.step_log, cache_disk=config.cache_disk
    )
    assert rest.pop("on_ready")
    assert rest.pop("reread")() == rest["access"]
    assert rest == {
        "model_name": tiny_model_path.name,
        "host": "127.0.0.1",
        "port": 8000,
        "access": Access(api_keys=("k",)),
        "max_connections": None,
        "stream_buffer_bytes": 4 << 20,
        "send_timeout_s": 60.0,
        "strict": False,
        "pooling": "last",
        "aliases": [],
        "on_end": None,
        "drain_timeout_s": 30.0,
        "data_dir": None,
        "edge": Edge(access_log=True),
    }


def test_without_kernels_numpy_serves_and_says_so(
    runs: list[tuple[EngineConfig, dict[str, Any]]],
    tiny_model_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("octavo.cli.pull.kernels_built", lambda: False)
    assert main.run(["serve", str(tiny_model_path)]) == 0
    [(config, _)] = runs
    assert config.backend == "reference"
    assert "C++ compiler" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--cache-disk", ""], "--cache-disk"),
        (["--data-dir", ""], "--data-dir"),
        (["--served-model-name", ""], "--served-model-name"),
        (["--key-profile", "2=batch", "--api-key", "k"], "given 1 times"),
        (["--key-profile", "1=fast", "--api-key", "k"], "1=fast"),
        (["--tbt-target", "50"], "50ms"),
        (["--ttft-target", "-5ms"], "not below 0"),
        (["--cors-origin", "https://a.example/"], "no slash at the end"),
        (["--ssl-certfile", "/no/cert.pem"], "--ssl-certfile /no/cert.pem cannot be read"),
        (["--ssl-keyfile", "key.pem"], "needs --ssl-certfile"),
    ],
)
def test_what_means_nothing_is_refused_before_anything_runs(
    runs: list[tuple[EngineConfig, dict[str, Any]]],
    tiny_model_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    words: str,
) -> None:
    assert main.run(["serve", str(tiny_model_path), *options]) == 2
    assert words in " ".join(capsys.readouterr().err.split()) and not runs


def test_a_key_may_have_a_profile(
    runs: list[tuple[EngineConfig, dict[str, Any]]], tiny_model_path: Path
) -> None:
    options = ["--api-key", "a", "--api-key", "b", "--key-profile", "2=batch", "--tbt-target", "50ms"]
    assert main.run(["serve", str(tiny_model_path), *options]) == 0
    [(config, rest)] = runs
    assert rest["access"].key_profiles == {1: "batch"} and config.tbt_target_s == 0.05
