"""Mutated bodies to every route that takes one: each is answered, never with 500, and every error has its API's shape.

OCTAVO_FUZZ_SEED=7 OCTAVO_FUZZ_COUNT=100000 pytest tests/fuzz/test_bodies.py -m slow     other cases, and more
OCTAVO_FUZZ_CASE=4711 pytest tests/fuzz/test_bodies.py -m slow                           one of them again
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any, NamedTuple

import msgspec
import pytest

from octavo.protocol.anthropic_schema import AnthropicErrorReply
from octavo.protocol.ollama_schema import OllamaErrorReply
from octavo.server.document import ErrorReply
from tests.fuzz import mutator
from tests.fuzz.bodies import EXAMPLES, FIELDS, FORM, OTHERS
from tests.fuzz.http import Connection, Reply, request_bytes
from tests.fuzz.mutator import chosen, damaged, generator, mutated, written
from tests.server.conftest import Server

AT_ONCE = 8
_COMPUTING = frozenset(
    path
    for path in EXAMPLES
    if "max" in path
    or path
    in {
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/responses",
        "/v1/embeddings",
        "/v1/messages",
        "/api/chat",
        "/api/generate",
        "/api/embed",
        "/api/embeddings",
    }
)
"""Paths whose 200 the engine has a part in."""
_WEIGHTS = {"/v1/completions": 20, "/v1/chat/completions": 20, "/v1/responses": 12, "/v1/messages": 12}
_TYPES = (
    "text/plain",
    "application/x-www-form-urlencoded",
    "multipart/form-data",
    "application/json; charset=utf-16",
    "",
    "*",
)


class Case(NamedTuple):
    number: int
    path: str
    body: bytes
    headers: dict[str, str]


def case_of(number: int, names: dict[str, str]) -> Case:
    """The case of a number. `names`: ids of stored things, by their places in the examples."""
    random = generator(number, "bodies")
    paths = [*EXAMPLES, *OTHERS, "/v1/files"]
    [path] = random.choices(
        paths, [_WEIGHTS.get(path, 3 if path in EXAMPLES or path == "/v1/files" else 1) for path in paths]
    )
    headers = {"content-type": "application/json"}
    if path == "/v1/files":
        body = FORM if random.random() < 0.1 else damaged(random, FORM, 4)
        headers["content-type"] = "multipart/form-data; boundary=B"
    else:
        body = _body(random, random.choice(EXAMPLES.get(path, [{}])))
    if random.random() < 0.05:
        headers["content-type"] = random.choice(_TYPES)
    if random.random() < 0.05:
        headers["anthropic-version"] = "2023-06-01"
    if random.random() < 0.02:
        headers["content-encoding"] = random.choice(("gzip", "identity", "br, gzip", "x"))
    for place, name in names.items():
        body, path = body.replace(place.encode(), name.encode()), path.replace(place, name)
    return Case(number, path, body, headers)


def _body(random: random.Random, example: dict[str, Any]) -> bytes:
    changes = random.choices((0, 1, 2, 3, 5, 9), (10, 58, 18, 8, 4, 2))[0]
    body = written(random, mutated(random, example, FIELDS, changes), FIELDS)
    return damaged(random, body) if random.random() < 0.1 else body


class Told:
    """What became of the cases."""

    def __init__(self) -> None:
        self.statuses: Counter[tuple[str, int]] = Counter()
        self.parsed = 0
        self.computed = 0
        self.failures: list[str] = []

    @property
    def count(self) -> int:
        return self.statuses.total()

    def take(self, case: Case, reply: Reply) -> None:
        route = case.path if case.path in EXAMPLES else "/v1/files" if case.path == "/v1/files" else "others"
        self.statuses[route, reply.status] += 1
        self.parsed += _parses(case)
        self.computed += reply.status == 200 and case.path in _COMPUTING
        if reply.status != 200:
            wrong = wrong_error(case, reply)
        else:
            wrong = "its stream has a failure of the server's" if b'"server_error"' in reply.body else ""
        if wrong:
            self.fail(case, f"{wrong}: {reply.status} {reply.body[:400]!r}")

    def fail(self, case: Case, why: str) -> None:
        self.failures.append(
            f"OCTAVO_FUZZ_SEED={mutator.SEED} OCTAVO_FUZZ_CASE={case.number}: {why}\n"
            f"    POST {case.path} {case.headers}\n    {case.body[:1500]!r}"
        )

    def table(self) -> str:
        """Shares, and statuses by route."""
        by_route: dict[str, Counter[int]] = {}
        for (route, status), count in self.statuses.items():
            by_route.setdefault(route, Counter())[status] += count
        lines = [
            f"{route:28} " + "  ".join(f"{status}: {count}" for status, count in sorted(statuses.items()))
            for route, statuses in sorted(by_route.items())
        ]
        accepted = sum(count for (_, status), count in self.statuses.items() if status == 200)
        shares = ", ".join(
            f"{name} {count} ({count / max(self.count, 1):.0%})"
            for name, count in (
                ("read as JSON or a form", self.parsed),
                ("accepted", accepted),
                ("computed", self.computed),
            )
        )
        return "\n".join([f"{self.count} bodies: {shares}", *lines])


def _parses(case: Case) -> bool:
    if case.path == "/v1/files":
        return case.body.count(b"--B") >= 4 and case.body.rstrip().endswith(b"--B--")
    try:
        msgspec.json.decode(case.body)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def wrong_error(case: Case, reply: Reply) -> str:
    """What is wrong with an error; "" if nothing."""
    if reply.status >= 500:
        return "it is the server's fault"
    if not 400 <= reply.status < 500:
        return "it is no error"
    shape: Any = ErrorReply
    if "anthropic-version" in case.headers or case.path.startswith("/v1/messages"):
        shape = AnthropicErrorReply
    elif case.path.startswith("/api/"):
        shape = OllamaErrorReply
    try:
        msgspec.json.decode(reply.body, type=shape)
    except msgspec.DecodeError as error:
        return f"its shape is not its API's ({error})"
    return "" if reply.headers.get("content-type") == "application/json" else "it is not told as JSON"


def stored_names(server: Server) -> dict[str, str]:
    """A file, a batch and a response that cases can name."""
    form = server.client.post(
        "/v1/files", content=FORM, headers={"content-type": "multipart/form-data; boundary=B"}
    )
    file_id = form.json()["id"]
    batch = server.post(
        "/v1/batches", input_file_id=file_id, endpoint="/v1/completions", completion_window="24h"
    )
    response = server.post("/v1/responses", input="Hi.", max_output_tokens=3)
    assert form.status_code == batch.status_code == response.status_code == 200
    return {"<file>": file_id, "<batch>": batch.json()["id"], "<response>": response.json()["id"]}


def attack(server: Server, few: int) -> Told:
    """Send the cases, some at once."""
    names, told = stored_names(server), Told()
    cases = (case_of(number, names) for number in chosen(few))
    host, port = server.url.removeprefix("http://").split(":")

    async def one() -> None:
        connection = Connection(host, int(port))
        for case in cases:
            try:
                told.take(
                    case, await connection.ask(request_bytes("POST", case.path, case.body, case.headers))
                )
            except (TimeoutError, ConnectionError, EOFError) as error:
                told.fail(case, f"it has no answer ({error!r})")
                await connection.close()
            if len(told.failures) >= 20:
                break
        await connection.close()

    async def all_at_once() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(one())

    asyncio.run(all_at_once())
    return told


def check(server: Server, told: Told) -> None:
    print(told.table())
    assert not told.failures, "\n".join([f"{len(told.failures)} failures", *told.failures])
    assert server.client.get("/health").status_code == 200
    assert server.metrics().get("octavo:engine_restarts_total", 0) == 0
    server.until_idle()
    if told.count >= 200:
        assert told.parsed > told.count / 2
        assert told.computed > told.count / 10


def test_every_body_is_answered(target: Server) -> None:
    check(target, attack(target, 200))


@pytest.mark.slow
def test_twenty_thousand_bodies_are_answered(target: Server) -> None:
    check(target, attack(target, 20_000))


def test_the_examples_are_right(target: Server) -> None:
    """Else the mutated ones would be refused for what they have in common."""
    names = stored_names(target)
    for path, examples in EXAMPLES.items():
        for example in examples:
            text = msgspec.json.encode(example).decode()
            for place, name in names.items():
                text = text.replace(place, name)
            reply = target.client.post(path, content=text, headers={"content-type": "application/json"})
            assert reply.status_code == 200, (path, example, reply.text)
