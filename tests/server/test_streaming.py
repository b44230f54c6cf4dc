"""Streamed equals whole, byte for byte, on every endpoint: over any tokens, however they are grouped into outputs.

The engine is scripted (tests/server/scripted_engine.py); server, sockets, tokenizer and scheduler are real.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo.models.store import StoredModel
from octavo.text.tokenizer import Tokenizer
from tests.server.conftest import Server
from tests.server.endpoints import ENDPOINTS, PROMPT, Endpoint
from tests.server.scripted import Case, Parts, cases, cases_with_tools, expected_text
from tests.server.scripted_engine import Script

every_endpoint = pytest.mark.parametrize("name", ENDPOINTS)
with_tools = pytest.mark.parametrize("name", [name for name in ENDPOINTS if ENDPOINTS[name].tools])


RULES: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture]}
"""The fixtures are the module's, but pytest gives them to a function."""


class Scripted(NamedTuple):
    """A server over the scripted engine, and where its script is written."""

    server: Server
    file: Path
    tokenizer: Tokenizer
    ends: tuple[int, ...]

    def ask(self, path: str, body: dict[str, Any]) -> bytes:
        """The bytes of an answer that must succeed."""
        response = self.server.post(path, **body)
        assert response.status_code == 200, response.text
        return response.content


@pytest.fixture(scope="module")
def scripted(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scripted]:
    """The model's template has reasoning here."""
    folder = tmp_path_factory.mktemp("scripted")
    for path in model_dir.iterdir():
        (folder / path.name).symlink_to(path)
    spec = (model_dir / "spec.json").read_text()
    system = "You are a helpful AI assistant named SmolLM"
    assert system in spec
    (folder / "spec.json").unlink()
    (folder / "spec.json").write_text(
        spec.replace(system, "</think>".ljust(len(system)))
    )  # its size is known
    file = folder / "script.json"
    command = [sys.executable, "-m", "tests.server.scripted_engine", "--script", str(file)]
    server = Server({"model_dir": str(folder)}, engine_command=command)
    model = StoredModel.load(folder)
    yield Scripted(server, file, model.tokenizer(), model.spec.eos_ids)
    assert server.stop() == 0


def check(scripted: Scripted, endpoint: Endpoint, case: Case, *, tools: bool = False) -> None:
    """Ask both ways."""
    case.script.write(scripted.file)
    body = endpoint.body(case)
    if tools:
        assert endpoint.tools is not None
        body |= endpoint.tools()
    whole = endpoint.take(msgspec.json.decode(scripted.ask(endpoint.path, {**body, "stream": False})))
    usage = {"include_usage": True, "continuous_usage_stats": case.continuous_usage}
    options = {"stream_options": usage} if endpoint.choices else {}
    joined = endpoint.join(scripted.ask(endpoint.path, {**body, "stream": True, **options}), case)
    assert joined == whole
    if case.parts is not None:
        assert whole.parts == list(case.parts)
    elif "tools" not in body:
        before = PROMPT if case.echo and "prompt" in body else ""
        vocabulary = scripted.tokenizer.vocabulary
        texts = [before + expected_text(case, child, vocabulary, scripted.ends) for child in range(case.n)]
        assert whole.parts == [Parts(text) for text in texts]


def draw_case(scripted: Scripted, endpoint: Endpoint, data: st.DataObject) -> Case:
    return data.draw(cases(scripted.tokenizer, scripted.ends, choices=endpoint.choices))


def draw_tools(scripted: Scripted, endpoint: Endpoint, data: st.DataObject) -> Case:
    return data.draw(cases_with_tools(scripted.tokenizer, choices=endpoint.choices))


@every_endpoint
@settings(max_examples=15, **RULES)
@given(data=st.data())
def test_streamed_equals_whole(scripted: Scripted, name: str, data: st.DataObject) -> None:
    """Also: what was said is what the script says, and every delta is valid UTF-8 (cases 15 to 17)."""
    check(scripted, ENDPOINTS[name], draw_case(scripted, ENDPOINTS[name], data))


@with_tools
@settings(max_examples=10, **RULES)
@given(data=st.data())
def test_calls_and_reasoning_streamed_equal_the_whole(
    scripted: Scripted, name: str, data: st.DataObject
) -> None:
    """Case 30."""
    check(scripted, ENDPOINTS[name], draw_tools(scripted, ENDPOINTS[name], data), tools=True)


@pytest.mark.slow
@every_endpoint
@settings(max_examples=150, **RULES)
@given(data=st.data())
def test_streamed_equals_whole_at_length(scripted: Scripted, name: str, data: st.DataObject) -> None:
    check(scripted, ENDPOINTS[name], draw_case(scripted, ENDPOINTS[name], data))


@pytest.mark.slow
@with_tools
@settings(max_examples=100, **RULES)
@given(data=st.data())
def test_calls_and_reasoning_at_length(scripted: Scripted, name: str, data: st.DataObject) -> None:
    check(scripted, ENDPOINTS[name], draw_tools(scripted, ENDPOINTS[name], data), tools=True)


@every_endpoint
def test_the_script_decides_where_a_stream_is_cut(scripted: Scripted, name: str) -> None:
    """Else the property would hold for one grouping only."""
    endpoint = ENDPOINTS[name]
    tokens = scripted.tokenizer.encode("One two three four five six seven eight nine ten eleven twelve")
    counts = []
    for group in (1, 4):
        case = Case(Script([tokens], [[group]], pause_s=0.01), max_tokens=100)
        case.script.write(scripted.file)
        stream = scripted.ask(endpoint.path, {**endpoint.body(case), "stream": True})
        counts.append(stream.count(b"\n"))
    assert counts[0] > counts[1] + len(tokens) // 2
