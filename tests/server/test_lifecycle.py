"""A server from start to exit: port, keys, health, the engine's death, draining."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import openai
import pytest

from tests.processes import children_of, engine_of
from tests.server.conftest import TIMEOUT_S, Server


def launch(settings: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """A server that must fail."""
    command = [sys.executable, "-m", "tests.server.serve", msgspec.json.encode(settings).decode()]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)


def engine_pid(server: Server) -> int:
    return engine_of(server.process.pid)


@pytest.fixture
def own_server(tiny_engine: dict[str, Any]) -> Iterator[Server]:
    server = Server(tiny_engine)
    yield server
    if server.process.returncode is None:
        server.stop()


def test_a_taken_port_is_said_before_anything_is_loaded(tiny_engine: dict[str, Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = launch(
            {"engine": {**tiny_engine, "model_dir": "/nowhere"}, "model_name": "tiny", "port": port}
        )
    assert done.returncode == 1
    assert re.search(
        rf"SettingsError: port {port} on 127.0.0.1 cannot be opened: .*another port", done.stderr
    )
    assert "Traceback" not in done.stderr


def test_an_engine_that_cannot_start_ends_the_server_with_its_reason(tiny_engine: dict[str, Any]) -> None:
    done = launch({"engine": {**tiny_engine, "depth": 7}, "model_name": "tiny", "port": 0})
    assert done.returncode == 1
    assert "SettingsError: depth is 7" in done.stderr
    assert "Traceback" not in done.stderr


def test_streams_outlive_their_engine(own_server: Server) -> None:
    """kill -9 in the middle: greedy and seeded streams, n = 2, end exactly as undisturbed ones."""
    bodies = [
        {"prompt": "Hello world", "max_tokens": 60, "temperature": 0, "ignore_eos": True},
        {"prompt": "Hello", "max_tokens": 60, "seed": 7, "n": 2, "ignore_eos": True, "logprobs": 1},
        {"prompt": "the", "max_tokens": 60, "seed": 8, "stop": "ab", "ignore_eos": True},
    ]
    undisturbed = [own_server.events("/v1/completions", **body) for body in bodies]
    disturbed: list[list[Any]] = [[] for _ in bodies]

    def ask(place: int) -> None:
        disturbed[place] = own_server.events("/v1/completions", **bodies[place])

    threads = [threading.Thread(target=ask, args=(place,)) for place in range(len(bodies))]
    tokens = own_server.metrics()["vllm:generation_tokens_total"]
    for thread in threads:
        thread.start()
    own_server.until(lambda: own_server.metrics()["vllm:generation_tokens_total"] > tokens + 20)
    os.kill(engine_pid(own_server), signal.SIGKILL)
    for thread in threads:
        thread.join(TIMEOUT_S)
    for before, after in zip(undisturbed, disturbed, strict=True):
        assert told(after) == told(before)
    metrics = own_server.metrics()
    assert metrics["octavo_engine_restarts_total"] == 1
    assert metrics['vllm:request_success_total{finished_reason="error"}'] == 0
    own_server.until_idle()
    assert own_server.client.get("/health").json() == {"status": "ready"}
    assert own_server.stop() == 0


def told(events: list[Any]) -> dict[int, tuple[str, list[Any], list[Any]]]:
    """Text, log-probabilities and end of every choice."""
    choices: dict[int, tuple[str, list[Any], list[Any]]] = {}
    for event in events[:-1]:
        for choice in event["choices"]:
            text, scores, ends = choices.get(choice["index"], ("", [], []))
            scores = scores + ((choice["logprobs"] or {}).get("token_logprobs") or [])
            ends = ends + ([choice["finish_reason"]] if choice["finish_reason"] else [])
            choices[choice["index"]] = (text + choice["text"], scores, ends)
    return choices


def test_health_tells_of_a_restart(own_server: Server) -> None:
    assert own_server.client.get("/health/ready").status_code == 200
    os.kill(engine_pid(own_server), signal.SIGKILL)
    own_server.until(lambda: own_server.client.get("/health").status_code == 503)
    assert own_server.client.get("/health/live").status_code == 200
    own_server.until(lambda: own_server.client.get("/health/ready").status_code == 200)


def test_sigterm_lets_running_streams_finish_and_turns_new_ones_away(own_server: Server) -> None:
    body = {"prompt": [70] * 100, "max_tokens": 100, "ignore_eos": True, "seed": 1}
    results: list[list[Any]] = []
    threads = [
        threading.Thread(target=lambda: results.append(own_server.events("/v1/completions", **body)))
        for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    own_server.until(lambda: own_server.metrics()["vllm:generation_tokens_total"] >= 10)
    own_server.process.terminate()
    own_server.until(lambda: own_server.client.get("/health").status_code == 503)
    refused = own_server.post("/v1/completions", prompt="a")
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) > 0
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert own_server.wait() == 0
    assert len(results) == 5
    for events in results:
        assert events[-1] == "[DONE]"
        assert events[-2]["choices"][0]["finish_reason"] == "length"


def test_while_it_drains_no_route_takes_anything_new(own_server: Server) -> None:
    """Case 36: each says so before a byte of an answer, streamed or not, on an old connection and on a new one."""
    turns = [{"role": "user", "content": "a"}]
    bodies: dict[str, dict[str, Any]] = {
        "/v1/completions": {"prompt": "a"},
        "/v1/chat/completions": {"messages": turns},
        "/v1/responses": {"input": "a"},
        "/v1/messages": {"messages": turns, "max_tokens": 1},
        "/v1/embeddings": {"input": "a"},
        "/v1/batches": {"input_file_id": "a", "endpoint": "/v1/completions", "completion_window": "24h"},
        "/api/chat": {"model": "tiny", "messages": turns},
        "/api/generate": {"model": "tiny", "prompt": "a"},
        "/api/embed": {"model": "tiny", "input": "a"},
    }
    streamed: list[list[Any]] = []
    body = {"prompt": "a", "max_tokens": 300, "ignore_eos": True}
    thread = threading.Thread(target=lambda: streamed.append(own_server.events("/v1/completions", **body)))
    thread.start()
    own_server.until(lambda: own_server.metrics()["vllm:num_requests_running"] == 1)
    pid = engine_pid(own_server)
    os.kill(pid, signal.SIGSTOP)
    try:
        own_server.process.terminate()
        own_server.until(lambda: own_server.client.get("/health").json() == {"status": "draining"})
        with httpx2.Client(base_url=own_server.url, trust_env=False, timeout=TIMEOUT_S) as other:
            for path, asked in bodies.items():
                for client in (own_server.client, other):
                    for more in ({}, {"stream": True}):
                        reply = client.post(path, json=asked | more)
                        assert reply.status_code == (529 if path == "/v1/messages" else 503), (
                            path,
                            reply.text,
                        )
                        assert int(reply.headers["retry-after"]) > 0
                        assert "shutting down" in reply.text and "data:" not in reply.text
        assert own_server.client.get("/health/live").status_code == 200
    finally:
        os.kill(pid, signal.SIGCONT)
    thread.join(TIMEOUT_S)
    assert own_server.wait() == 0
    assert streamed[0][-2]["choices"][0]["finish_reason"] == "length"


def test_at_the_drain_deadline_what_is_not_finished_ends_with_an_error(tiny_engine: dict[str, Any]) -> None:
    server = Server(tiny_engine, drain_timeout_s=0.2)
    streamed: list[list[Any]] = []
    whole: list[httpx2.Response] = []
    body = {"prompt": [70] * 100, "max_tokens": None, "ignore_eos": True}
    threads = [
        threading.Thread(target=lambda: streamed.append(server.events("/v1/completions", **body))),
        threading.Thread(target=lambda: whole.append(server.post("/v1/completions", **body))),
    ]
    for thread in threads:
        thread.start()
    server.until(lambda: server.metrics()["vllm:num_requests_running"] == 2)
    server.process.terminate()
    for thread in threads:
        thread.join(TIMEOUT_S)
    code, log = server.end()
    assert code == 0
    assert log.count("2 requests are ended unfinished, 0 connections are cut off") == 1
    assert_cut_off(streamed[0])
    assert whole[0].status_code == 503
    assert whole[0].json()["error"]["code"] == "overloaded"
    assert "retry-after" in whole[0].headers


def assert_cut_off(events: list[Any]) -> None:
    """The stream tells that it is no whole answer, with no finish reason that OpenAI's clients do not know."""
    assert "could not finish this answer" in events[-2]["error"]["message"]
    assert events[-1] == "[DONE]"
    assert all(choice["finish_reason"] is None for event in events[:-2] for choice in event["choices"])


def test_openais_client_raises_for_an_answer_that_was_cut_off(tiny_engine: dict[str, Any]) -> None:
    server = Server(tiny_engine, drain_timeout_s=0.2)
    with server.openai(max_retries=0) as client:
        stream = client.completions.create(
            model="tiny", prompt="a", max_tokens=500, stream=True, extra_body={"ignore_eos": True}
        )
        next(iter(stream))
        server.process.terminate()
        with pytest.raises(openai.APIError, match="could not finish this answer"):
            list(stream)
    assert server.wait() == 0


def test_who_neither_sends_nor_reads_does_not_hold_up_the_end(tiny_engine: dict[str, Any]) -> None:
    """A body that stops on its way is refused, a stream that nobody reads is cut; one line of log, no traceback."""
    # With the usual buffer the server would cut such a reader off before.
    server = Server(tiny_engine, drain_timeout_s=1.0, stream_buffer_bytes=1 << 30)
    address = ("127.0.0.1", int(server.url.rsplit(":", 1)[1]))
    body = msgspec.json.encode(
        {"prompt": "a", "max_tokens": 400, "n": 40, "logprobs": 1, "stream": True, "ignore_eos": True}
    )
    head = b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n"
    with socket.socket() as stalled, socket.socket() as unsent:
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stalled.connect(address)
        stalled.sendall(head % len(body) + body)
        server.until(lambda: server.metrics()["vllm:generation_tokens_total"] > 4000)
        unsent.connect(address)  # not before: on a slow machine its head would be late
        unsent.sendall(head % 5000 + b"{")
        server.until(lambda: server.client.get("/health").status_code == 200)
        server.process.terminate()
        unsent.settimeout(TIMEOUT_S)
        refused = unsent.recv(1 << 16)
        assert refused.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 5" in refused and b"shutting down" in refused
        assert unsent.recv(1) == b""
        code, log = server.end()
    assert code == 0
    assert log.count("1 connections are cut off") == 1
    assert "Traceback" not in log


def test_a_server_whose_engine_cannot_be_brought_back_ends(
    own_server: Server,
) -> None:
    """Who waits is told, and the exit code is 1, so that a supervisor starts it again."""
    answers: list[httpx2.Response] = []
    body = {"prompt": [70] * 400, "max_tokens": 100, "ignore_eos": True}
    threads = [
        threading.Thread(target=lambda: answers.append(own_server.post("/v1/completions", **body)))
        for _ in range(3)
    ]
    killed: set[int] = set()
    for thread in threads:
        thread.start()
    own_server.until(lambda: own_server.metrics()["vllm:num_requests_running"] == 3)
    while own_server.process.poll() is None:
        for pid in children_of(own_server.process.pid):
            if pid not in killed:
                killed.add(pid)
                os.kill(pid, signal.SIGKILL)
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert [(answer.status_code, answer.json()["error"]["code"]) for answer in answers] == [
        (503, "engine_died")
    ] * 3
    code, log = own_server.end()
    assert code == 1
    assert "EngineDied: The engine died 10 times without progress" in log
    assert "Traceback" not in log


class Loading:
    """A server whose engine is stopped (SIGSTOP) before it has loaded."""

    def __init__(self, engine: dict[str, Any]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        settings = {"engine": engine, "model_name": "tiny", "port": self.port}
        command = [sys.executable, "-m", "tests.server.serve", msgspec.json.encode(settings).decode()]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        pids: list[str] = []
        while not pids or "octavo.engine" not in Path(f"/proc/{pids[0]}/cmdline").read_text():
            pids = children.read_text().split()  # stopped before its exec, it would hold up its parent
        self.engine_pid = int(pids[0])
        os.kill(self.engine_pid, signal.SIGSTOP)
        self.client = httpx2.Client(
            base_url=f"http://127.0.0.1:{self.port}", trust_env=False, timeout=TIMEOUT_S
        )

    def stop(self) -> int:
        self.client.close()
        self.process.terminate()
        self.process.communicate(timeout=TIMEOUT_S)
        return self.process.returncode


def gone(pid: int) -> bool:
    """The process has ended (a zombie has, too)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_before_the_model_is_loaded_the_address_answers_503(tiny_engine: dict[str, Any]) -> None:
    loading = Loading(tiny_engine)
    client = loading.client
    health = client.get("/health")
    assert (health.status_code, health.json()) == (503, {"status": "loading"})
    assert client.head("/health").status_code == 503
    assert client.get("/health/live").status_code == 200
    refused = client.post("/v1/completions", json={"prompt": "a"})
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "overloaded"
    os.kill(loading.engine_pid, signal.SIGCONT)
    assert loading.process.stdout is not None
    assert loading.process.stdout.readline().startswith("http://127.0.0.1:")
    assert client.get("/health").status_code == 200
    assert loading.stop() == 0


def test_sigterm_while_loading_ends_both_processes(tiny_engine: dict[str, Any]) -> None:
    loading = Loading(tiny_engine)
    assert loading.client.get("/health").status_code == 503
    assert loading.stop() == 0
    assert gone(loading.engine_pid)


def test_the_engine_does_not_outlive_its_server(own_server: Server) -> None:
    pid = engine_pid(own_server)
    own_server.process.kill()
    own_server.wait()
    own_server.until(lambda: gone(pid))


def test_a_second_signal_does_not_wait_for_streams(own_server: Server) -> None:
    body = {"prompt": [70] * 100, "max_tokens": None, "ignore_eos": True, "n": 20}
    results: list[list[Any]] = []
    thread = threading.Thread(target=lambda: results.append(own_server.events("/v1/completions", **body)))
    thread.start()
    own_server.until(lambda: own_server.metrics()["vllm:generation_tokens_total"] >= 2)
    own_server.process.send_signal(signal.SIGINT)
    own_server.until(lambda: own_server.client.get("/health").json() == {"status": "draining"})
    own_server.process.send_signal(signal.SIGINT)
    thread.join(TIMEOUT_S)
    assert own_server.wait() == 0
    assert_cut_off(results[0])
