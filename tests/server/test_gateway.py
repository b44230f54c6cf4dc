"""`octavo route serve` as its clients see it: a process of its own in front of tiers that are processes, too."""

from __future__ import annotations

import concurrent.futures
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import openai
import pytest

from octavo.cli.main import run
from tests.routing.mock_tier import MockTier
from tests.server.conftest import Server

HELLO = [{"role": "user", "content": "Hello there"}]


class GatewayProcess:
    """A gateway, from outside."""

    def __init__(self, folder: Path, text: str, *options: str, **environment: str) -> None:
        file = folder / "tiers.toml"
        file.write_text(text)
        command = [sys.executable, "-m", "octavo", "route", "serve", str(file), "--port", "0", *options]
        kept = {name: value for name, value in os.environ.items() if name != "OCTAVO_API_KEY"}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=kept | environment
        )
        assert self.process.stdout is not None
        match = re.search(r"http://\S+(?=/v1)", self.process.stdout.readline())
        if match is None:
            raise AssertionError(self.process.communicate())
        self.url = match[0]
        self.client = httpx2.Client(base_url=self.url, timeout=60, trust_env=False)

    def chat(self, **more: Any) -> httpx2.Response:
        headers = more.pop("headers", {})
        body = {"model": "auto", "messages": HELLO, "max_tokens": 3, **more}
        return self.client.post("/v1/chat/completions", json=body, headers=headers)

    def metrics(self) -> dict[str, float]:
        lines = self.client.get("/metrics").text.splitlines()
        return {
            name: float(value)
            for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")
        }

    def stop(self) -> str:
        """What it logged."""
        self.client.close()
        self.process.send_signal(signal.SIGTERM)
        _, log = self.process.communicate(timeout=30)
        return log


def tier(name: str, url: str, price: tuple[float, float], more: str = "") -> str:
    prices = "price = {{ input = {}, output = {} }}".format(*price)
    return f'[tiers.{name}]\nurl = "{url}"\nmodel = "scripted"\n{prices}\n{more}\n'


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    small = MockTier(ttft_s=0.005, gap_s=0.001, input_tokens=7, cached_tokens=2)
    large = MockTier(ttft_s=0.005, gap_s=0.001, input_tokens=7, completions=False)
    text = tier("small", small.url, (1, 2)) + tier("large", large.url, (10, 20), 'abilities = ["tools"]')
    process = GatewayProcess(tmp_path_factory.mktemp("gateway"), text)
    yield process
    process.stop()
    small.kill()
    large.kill()


def test_an_answer_has_its_tier_reason_and_cost(gateway: GatewayProcess) -> None:
    response = gateway.chat()
    assert response.status_code == 200
    assert response.json()["choices"][0]["message"]["content"] == " word word word"
    headers = response.headers
    assert (headers["x-octavo-tier"], headers["x-octavo-reason"]) == ("small", "default tier")
    assert float(headers["x-octavo-cost"]) == pytest.approx((7 * 1 + 3 * 2) / 1e6)
    assert headers["x-request-id"].startswith("req_")
    assert gateway.chat(model="large").headers["x-octavo-tier"] == "large"
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert gateway.chat(tools=tools).headers["x-octavo-reason"] == "only able tier"


def test_openai_s_client_streams(gateway: GatewayProcess) -> None:
    http = httpx2.Client(trust_env=False)
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", http_client=http) as client:
        stream = client.chat.completions.create(
            model="auto",
            messages=[{"role": "user", "content": "Hello"}],
            max_tokens=4,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = list(stream)
        assert {model.id for model in client.models.list()} == {"auto", "small", "large"}
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == " word" * 4
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 4


def test_a_stream_ends_with_its_cost(gateway: GatewayProcess) -> None:
    response = gateway.chat(stream=True)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["x-octavo-tier"] == "small"
    assert response.text.endswith(": x-octavo-cost: 0.000013\n\ndata: [DONE]\n\n")
    assert '"usage"' not in response.text


def test_faults_of_the_client_are_sentences(gateway: GatewayProcess) -> None:
    response = gateway.chat(model="lage")
    assert response.status_code == 404
    assert response.json()["error"]["message"] == "The model 'lage' is not served here; did you mean large?"
    assert gateway.chat(headers={"x-octavo-tier": "x"}).status_code == 400
    assert gateway.client.post("/v1/chat/completions", content=b"{").status_code == 400
    assert gateway.client.get("/v1/models/nobody").status_code == 404
    assert gateway.client.get("/v1/models/large").json()["id"] == "large"
    assert gateway.client.get("/nothing").status_code == 404
    assert gateway.client.get("/health", headers={"host": "evil.example.com"}).status_code == 403


def test_a_tier_that_lacks_a_route_hands_on(gateway: GatewayProcess) -> None:
    body = {"model": "large", "prompt": "Hello there", "max_tokens": 2}
    response = gateway.client.post("/v1/completions", json=body)
    assert response.json()["choices"][0]["text"] == " word word"
    assert response.headers["x-octavo-reason"] == "model; large model"
    assert response.headers["x-octavo-attempts"] == "large=model, small=answered"
    response = gateway.client.post("/v1/embeddings", json={"model": "auto", "input": "x"})
    assert response.status_code == 502
    assert response.headers["x-octavo-attempts"] == "small=model"
    assert response.json()["error"]["code"] == "tier_failed"


def test_what_it_tells_of_itself(gateway: GatewayProcess) -> None:
    gateway.chat()
    assert gateway.client.get("/health").json() == {"status": "ready"}
    assert gateway.client.get("/health/live").status_code == 200
    assert "version" in gateway.client.get("/version").json()
    told = gateway.client.get("/tiers").json()
    assert [one["tier"] for one in told["tiers"]] == ["small", "large"]
    assert told["tiers"][0]["price"] == {"input": 1.0, "cached": None, "output": 2.0}
    metrics = gateway.metrics()
    assert metrics['octavo_route_requests_total{tier="small"}'] >= 1
    assert metrics['octavo_route_tokens_total{kind="cached",tier="small"}'] >= 2
    assert metrics['octavo_route_tier_state{state="closed",tier="small"}'] == 1
    assert 0 < metrics['octavo_route_share{tier="small"}'] <= 1
    assert metrics["octavo_route_decision_seconds_count"] >= 1


def test_a_tier_that_is_killed_loses_no_request_and_the_bill_is_the_sum(tmp_path: Path) -> None:
    small, large = MockTier(ttft_s=0.05, gap_s=0.002), MockTier(ttft_s=0.02, gap_s=0.001)
    text = tier("small", small.url, (1, 2)) + tier("large", large.url, (10, 20), "most_running = 16")
    gateway = GatewayProcess(tmp_path, text)
    price = {"small": (1, 2), "large": (10, 20)}

    def one(number: int) -> tuple[int, str, float, float]:
        if number == 40:
            small.kill()
        response = gateway.chat(max_tokens=1 + number % 7)
        tier, usage = response.headers["x-octavo-tier"], response.json()["usage"]
        owed = usage["prompt_tokens"] * price[tier][0] + usage["completion_tokens"] * price[tier][1]
        return response.status_code, tier, float(response.headers["x-octavo-cost"]), owed / 1e6

    try:
        with concurrent.futures.ThreadPoolExecutor(8) as threads:
            found = list(threads.map(one, range(120)))
        assert {status for status, *_ in found} == {200}
        assert {tier for _, tier, *_ in found} == {"small", "large"}
        assert all(told == pytest.approx(owed) for _, _, told, owed in found)
        metrics = gateway.metrics()
        billed = sum(metrics[f'octavo_route_cost_total{{tier="{name}"}}'] for name in price)
        assert billed == pytest.approx(sum(told for _, _, told, _ in found))
        assert metrics['octavo_route_fallbacks_total{chosen="small",tier="large"}'] > 0
        assert gateway.client.get("/tiers").json()["tiers"][0]["state"] == "open"
    finally:
        log = gateway.stop()
        large.kill()
        small.kill()
    assert "the tier small is left alone for a while: " in log


def test_a_stream_of_a_tier_that_is_killed_ends_with_an_error(tmp_path: Path) -> None:
    small = MockTier(ttft_s=0.01, gap_s=0.05)
    gateway = GatewayProcess(tmp_path, tier("small", small.url, (1, 2)))
    try:
        body = {"model": "auto", "messages": HELLO, "stream": True, "max_tokens": 1000}
        with gateway.client.stream("POST", "/v1/chat/completions", json=body) as response:
            lines = response.iter_lines()
            while "word" not in next(lines):
                pass
            small.kill()
            rest = [line for line in lines if line]
        error = msgspec.json.decode(rest[-2].removeprefix("data: "))["error"]
        assert error["code"] == "tier_failed"
        assert rest[-1] == "data: [DONE]"
        response = gateway.chat()
        assert (response.status_code, response.headers["x-octavo-tier"]) == (502, "none")
        assert response.json()["error"]["message"] == "No tier answered: small: connection refused."
    finally:
        small.kill()
        assert "broke off an answer" in gateway.stop()


@pytest.mark.slow
def test_keys_and_rules_for_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = tmp_path / "keys.toml"
    assert run(["key", "new", str(keys), "law"]) == 0
    [law] = re.findall(r"sk-octavo-\S+", capsys.readouterr().out)
    small, large = MockTier(ttft_s=0.0), MockTier(ttft_s=0.0)
    text = tier("small", small.url, (1, 2), 'key_variable = "SMALL_KEY"') + tier("large", large.url, (10, 20))
    text += '[[rules]]\nkeys = ["law"]\ntier = "large"\n'
    options = ("--api-key", "sk-plain", "--api-key-file", str(keys), "--metrics-without-key")
    gateway = GatewayProcess(tmp_path, text, *options, SMALL_KEY="s")
    try:
        assert gateway.chat().status_code == 401
        assert gateway.client.get("/metrics").status_code == 200
        assert gateway.client.get("/health").status_code == 200
        headers = {"authorization": "Bearer sk-plain"}
        assert gateway.chat(headers=headers).headers["x-octavo-tier"] == "small"
        headers = {"authorization": f"Bearer {law}"}
        assert gateway.chat(headers=headers).headers["x-octavo-tier"] == "large"
    finally:
        gateway.stop()
        small.kill()
        large.kill()


@pytest.mark.slow
def test_running_requests_end_before_the_gateway_does(tmp_path: Path) -> None:
    small = MockTier(ttft_s=0.5)
    gateway = GatewayProcess(tmp_path, tier("small", small.url, (1, 2)))
    try:
        with concurrent.futures.ThreadPoolExecutor(1) as threads:
            asked = threads.submit(gateway.chat)
            while not gateway.metrics().get('octavo_route_running{tier="small"}'):
                time.sleep(0.01)
            gateway.process.send_signal(signal.SIGTERM)
            assert asked.result().status_code == 200
        assert gateway.process.wait(30) == 0
    finally:
        gateway.stop()
        small.kill()


@pytest.mark.slow
def test_two_octavo_servers_answer_as_one_also_when_one_is_killed(model_dir: Path, tmp_path: Path) -> None:
    small, large = (Server({"model_dir": str(model_dir), "threads": 1, "num_blocks": 512}) for _ in range(2))
    text = "".join(
        f'[tiers.{name}]\nurl = "{server.url}"\nmodel = "tiny"\nprice = {{ input = {price}, output = {price} }}\n'
        'abilities = ["tools", "json"]\n'
        for name, server, price in (("small", small, 1), ("large", large, 10))
    )
    gateway = GatewayProcess(tmp_path, text)
    asked = {
        "max_tokens": 24,
        "temperature": 0,
        "messages": [{"role": "user", "content": "Name three fruits."}],
    }
    try:
        direct = small.post("/v1/chat/completions", model="tiny", **asked).json()
        said = direct["choices"][0]["message"]["content"]
        response = gateway.chat(**asked)
        assert response.json()["choices"][0]["message"]["content"] == said
        usage = response.json()["usage"]
        owed = (usage["prompt_tokens"] + usage["completion_tokens"]) / 1e6
        assert float(response.headers["x-octavo-cost"]) == pytest.approx(owed)
        streamed = gateway.chat(stream=True, **asked).text
        events = [line.removeprefix("data: ") for line in streamed.splitlines() if line.startswith("data: {")]
        pieces = [msgspec.json.decode(event)["choices"][0]["delta"].get("content") or "" for event in events]
        assert "".join(pieces) == said
        body = {"model": "auto", "input": "An octavo"}
        assert len(gateway.client.post("/v1/embeddings", json=body).json()["data"][0]["embedding"]) > 100
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "integer"}}}
        whole_number = gateway.chat(response_format=form).json()["choices"][0]["message"]["content"]
        assert re.fullmatch(r"-?\d+", whole_number)

        def one(number: int) -> tuple[int, str, str]:
            if number == 8:
                small.process.kill()
            answer = gateway.chat(**asked)
            return (
                answer.status_code,
                answer.json()["choices"][0]["message"]["content"],
                answer.headers["x-octavo-tier"],
            )

        with concurrent.futures.ThreadPoolExecutor(6) as threads:
            found = list(threads.map(one, range(30)))
        assert {status for status, *_ in found} == {200}
        assert {text for _, text, _ in found} == {said}
        assert {name for *_, name in found} == {"small", "large"}
    finally:
        gateway.stop()
        small.process.kill()
        small.stop()
        large.stop()


def test_feedback_is_for_own_answers_and_is_counted(tmp_path: Path) -> None:
    small = MockTier(ttft_s=0.005, gap_s=0.001)
    text = tier("small", small.url, (1, 2)) + '[feedback]\noutcomes = "outcomes.jsonl"\n'
    process = GatewayProcess(tmp_path, text, OCTAVO_API_KEY="key-of-ann")
    try:
        process.client.headers["authorization"] = "Bearer key-of-ann"
        again = [{"role": "user", "content": "Why is the sky blue?"}]
        name = process.chat(messages=again).json()["id"]
        streamed = process.chat(messages=again, stream=True).text
        assert '"id"' in streamed

        def say(**fields: object) -> httpx2.Response:
            return process.client.post("/v1/feedback", json=fields)

        assert say(response_id=name, thumbs="down").json()["tier"] == "small"
        assert say(response_id="chatcmpl-none", thumbs="up").status_code == 404
        assert say(response_id=name, thumbs="sideways").status_code == 400
        assert (
            process.client.post(
                "/v1/feedback", json={}, headers={"authorization": "Bearer other"}
            ).status_code
            == 401
        )
        told = 'octavo_route_outcomes_total{good="no",source="thumbs",tier="small"}'
        assert process.metrics()[told] == 1
    finally:
        process.stop()
        small.kill()
    lines = (tmp_path / "outcomes.jsonl").read_text().splitlines()
    said = [one for one in map(msgspec.json.decode, lines) if one["type"] == "outcome"]
    assert [one["source"] for one in said] == ["reask", "thumbs"]  # one key asked the same twice
    assert len(lines) == 4
