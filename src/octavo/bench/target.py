"""The server that is measured: what it serves, and which requests it takes. Knows the API, no time.

`discover` asks before a run, so that a run does not fail 1,000 times for one reason: which models there are, whether
answers stream, which optional fields are accepted, whether prompts can be token ids. Servers differ: some refuse fields
that they do not know, some pass over them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import orjson

from octavo.bench.address import Address
from octavo.bench.connection import ClockNs, Failure
from octavo.bench.pool import Answer, Pool, fetch
from octavo.bench.prompts import Api, Bodies, Prompts, Shape
from octavo.bench.sse import EventParser
from octavo.bench.stream import AnswerReader, error_message
from octavo.errors import BenchError
from octavo.workload.request import WORDS, Part, Request

__all__ = ["OPTIONAL", "Target", "discover"]

OPTIONAL = (
    "include_usage",
    "continuous_usage_stats",
    "return_token_ids",
    "ignore_eos",
    "min_tokens",
    "temperature",
    "priority",
)
"""What a request has where the server takes it: the first two in `stream_options`, temperature 0. A priority is only
asked about and sent where the workload has some: vLLM refuses one, unless it was started to heed them."""
PROBE_TOKENS = 3
_SECRET_CHARACTERS = 6
PROBE_S = 30.0
"""Of each question before a run, where nobody says otherwise."""
_ROUTES = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
_LEAST_IDS = 32
"""Different ones; with fewer, prompts would share what they should not."""
_ABSENT = (404, 405, 501)
"""What a server says of a route that it does not have."""


@dataclass(frozen=True)
class Target:
    """A server, a model of it, and how it is asked."""

    address: Address
    shape: Shape
    server: str | None = None
    """As it names itself (the header `server`)."""
    key: str | None = field(default=None, repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """More of each request, such as a gateway wants; their values may be secrets, and are in no message."""
    max_connections: int | None = None
    insecure: bool = False
    notes: tuple[str, ...] = ()
    """What the server does not take or do, in sentences."""

    @property
    def url(self) -> str:
        """Without /v1."""
        return self.address.url

    @property
    def model(self) -> str:
        """Its name."""
        return self.shape.model

    @property
    def api(self) -> Api:
        """`chat` or `completions`."""
        return self.shape.api

    @property
    def prompts(self) -> Prompts:
        """`ids` or `text`."""
        return self.shape.prompts

    def options(self) -> dict[str, Any]:
        """For the record: what was sent and what was not."""
        return {
            "prompts": self.shape.prompts,
            "takes": sorted(self.shape.takes),
            "exact_output": self.shape.exact_output,
            "extra": dict(self.shape.extra),
            "notes": list(self.notes),
        }

    def pool(self, clock_ns: ClockNs = time.perf_counter_ns) -> Pool:
        """Connections to it."""
        return Pool(
            self.address, clock_ns=clock_ns, max_connections=self.max_connections, insecure=self.insecure
        )

    def request(self, body: bytes) -> bytes:
        """All bytes of a request."""
        return _post(self, _ROUTES[self.shape.api], body)

    def hide_key(self, text: str) -> str:
        """The same without the key, and without the headers' values where these are long enough to be secrets."""
        for secret in (self.key, *(value for _, value in self.headers if len(value) >= _SECRET_CHARACTERS)):
            text = text.replace(secret, "***") if secret else text
        return text


async def discover(
    url: str,
    *,
    model: str | None = None,
    api: Api | None = None,
    prompts: Prompts | None = None,
    messages: bool = False,
    priorities: bool = False,
    exact_output: bool = True,
    extra: dict[str, Any] | None = None,
    key: str | None = None,
    headers: Sequence[tuple[str, str]] = (),
    max_connections: int | None = None,
    insecure: bool = False,
    timeout_s: float = PROBE_S,
) -> Target:
    """Asks the server what it can. Raises BenchError where it cannot be measured.

    `messages`: the workload has real conversations, so the API is chat; else it is completions, where the server has
    them. `priorities`: it has priorities other than 0. `model`: None takes the first. `prompts`: None takes token ids
    where the server does and counts them exactly. `key` is sent as a bearer token, and is in no message. `timeout_s`
    is of each question.
    """
    address = Address.parse(url)
    shape = Shape(
        model or "", api or "chat", "text", exact_output=exact_output, extra=tuple((extra or {}).items())
    )
    target = Target(
        address,
        shape,
        key=key,
        headers=tuple(headers),
        max_connections=max_connections,
        insecure=insecure,
    )
    pool = target.pool()
    try:
        return await _Probe(target, pool, timeout_s, priorities).discover(api, prompts, messages)
    except Failure as failure:
        raise BenchError(target.hide_key(_failed(address.url, failure))) from None
    finally:
        await pool.close()


class _Probe:
    """The questions, one after another."""

    def __init__(self, target: Target, pool: Pool, timeout_s: float, priorities: bool) -> None:
        self._optional = [name for name in OPTIONAL if priorities or name != "priority"]
        self._target = target
        self._url = target.address.url
        self._pool = pool
        self._timeout_s = timeout_s
        self._notes: list[str] = []

    async def discover(self, api: Api | None, prompts: Prompts | None, messages: bool) -> Target:
        answer = await self._get("/v1/models")
        model = self._model(answer)
        apis: tuple[Api, ...] = (api,) if api else ("chat",) if messages else ("completions", "chat")
        for one in apis:
            shape = replace(self._target.shape, model=model, api=one)
            found, refused = await self._streams(shape)
            if found is not None:
                break
            if one == apis[-1] or refused.status not in _ABSENT:
                raise BenchError(self._refused(_ROUTES[one], refused))
        else:
            raise AssertionError
        shape = found
        if prompts != "text" and shape.api == "completions":
            shape = await self._ids(shape, wanted=prompts == "ids")
        elif prompts == "ids":
            raise BenchError(
                f"Prompts as token ids were asked for, but the API is {shape.api}, which takes only texts."
            )
        server = answer.headers.get("server")
        return replace(self._target, shape=shape, server=server, notes=tuple(self._notes))

    def _model(self, answer: Answer) -> str:
        said = self._target.hide_key(error_message(answer.body))[:200] if answer.status != 200 else ""
        if answer.status in (401, 403):
            has = (
                "the key that was given is not accepted"
                if self._target.key
                else "it wants an API key, and none was given"
            )
            raise BenchError(f"{self._url} answers {answer.status}: {has}{f' ({said})' if said else ''}.")
        if 300 <= answer.status < 400 and (there := answer.headers.get("location")):
            raise BenchError(
                f"{self._url} answers {answer.status}: it is at {there.removesuffix('/v1/models')} now."
            )
        if answer.status == 404:
            raise BenchError(
                f"{self._url}/v1/models answers 404, so this is no OpenAI-compatible server; check the URL's path."
            )
        if answer.status != 200:
            raise BenchError(f"{self._url}/v1/models answers {answer.status}{f' ({said})' if said else ''}.")
        try:
            listed = msgspec.json.decode(answer.body, type=_Models).data
        except msgspec.MsgspecError:
            kind = answer.headers.get("content-type", "nothing").partition(";")[0]
            raise BenchError(
                f"{self._url}/v1/models answers with {kind} and no list of models, so this is no OpenAI-compatible "
                "server; check the URL."
            ) from None
        names = [one.id for one in listed]
        if not names:
            raise BenchError(f"{self._url} serves no model; load one first.")
        wanted = self._target.shape.model
        if not wanted:
            return names[0]
        if wanted not in names:
            shown = ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
            raise BenchError(f"{self._url} does not serve {wanted!r}; it has {shown}.")
        return wanted

    async def _streams(self, shape: Shape) -> tuple[Shape | None, Answer]:
        """The shape with what is taken; or None, with what the server says against the simplest request."""
        full = replace(shape, takes=frozenset(self._optional))
        answer = await self._ask(full)
        if _stream(answer) is not None:
            return self._heard(full, answer), answer
        if answer.status in (401, 403, 429) or answer.status >= 500:
            return None, answer
        bare = shape
        plain = await self._ask(bare)
        if plain.status != 200:  # OpenAI's newer models know only the other name
            bare = replace(shape, limit="max_completion_tokens")
            again = await self._ask(bare)
            if again.status != 200:
                return None, plain
            plain = again
        self._needs_stream(plain)
        taken = []
        for name in self._optional:
            alone = await self._ask(replace(bare, takes=frozenset((name, *_NEEDS.get(name, ())))))
            if _stream(alone) is not None:
                taken.append(name)
        found = replace(bare, takes=frozenset(taken))
        answer = await self._ask(found)
        if _stream(answer) is None:  # they do not go together
            found, answer = bare, plain
        return self._heard(found, answer), answer

    def _heard(self, shape: Shape, answer: Answer) -> Shape:
        """Notes what is not taken, or taken and not heard."""
        reader = self._needs_stream(answer)
        refused = [name for name in self._optional if name not in shape.takes]
        if refused:
            self._notes.append(f"The server refuses {', '.join(refused)}; the fields are left out.")
        if reader.output_tokens is None:
            self._notes.append("The server gives no counts of tokens with its streams.")
        return shape

    def _needs_stream(self, answer: Answer) -> AnswerReader:
        reader = _stream(answer)
        if reader is None:
            kind = answer.headers.get("content-type", "").partition(";")[0] or "no content type"
            if kind == "text/event-stream":
                raise BenchError(f"{self._url} answers with an empty stream; nothing in it can be timed.")
            raise BenchError(
                f"{self._url} answers without streaming (its content type is {kind}); only streams can be timed."
            )
        if reader.error is not None:
            raise BenchError(f"{self._url} fails: {self._target.hide_key(reader.error)[:300]}.")
        return reader

    async def _ids(self, shape: Shape, *, wanted: bool) -> Shape:
        """Token ids instead of texts, where the server takes them and counts as many as were sent."""
        pool = await self._pool_of_ids(shape.model)
        found = replace(shape, prompts="ids", token_pool=pool)
        ids = [256, 31_999] if pool is None else list(pool[:8])
        answer = await self._ask(found, tuple(ids))
        reader = _stream(answer)
        if reader is None:
            reason = f"the server refuses them ({error_message(answer.body)[:200]})"
        elif reader.error is not None:
            reason = f"the server fails with them ({reader.error[:200]})"
        elif reader.input_tokens is None and not wanted:
            reason = "the server gives no count of a prompt's tokens, which would show that it takes them"
        elif reader.input_tokens not in (None, len(ids)):
            reason = f"of {len(ids)} the server counts {reader.input_tokens}"
        else:
            if "return_token_ids" not in shape.takes or not reader.token_ids:
                self._notes.append(
                    "The server streams no token ids, so answers within later prompts are made up, "
                    "of the workload's length."
                )
            return found
        reason = self._target.hide_key(reason)
        if wanted:
            raise BenchError(f"Prompts as token ids were asked for, but {reason}.")
        self._notes.append(f"Prompts are texts of common words and not token ids: {reason}.")
        return shape

    async def _pool_of_ids(self, model: str) -> tuple[int, ...] | None:
        """Tokens of common words, which surely are neither special nor outside the vocabulary; None: not told.

        /tokenize is Octavo's and vLLM's (`prompt`) and llama.cpp's (`content`).
        """
        text = "".join(f" {word}" for word in WORDS)
        for body in (
            {"model": model, "prompt": text, "add_special_tokens": False},
            {"content": text},
        ):
            answer = await self._post("/tokenize", body)
            try:
                tokens = msgspec.json.decode(answer.body, type=_Tokens).tokens if answer.status == 200 else ()
            except msgspec.MsgspecError:
                tokens = ()
            if len(pool := tuple(dict.fromkeys(tokens))) >= _LEAST_IDS:
                return pool
        return None

    def _refused(self, route: str, answer: Answer) -> str:
        said = self._target.hide_key(error_message(answer.body))[:300].rstrip(".")
        if answer.status in _ABSENT and not said:
            return f"{self._url}{route} is not there (it answers {answer.status}); choose the other API."
        asked = f"a request of {PROBE_TOKENS} tokens"
        return f"{self._url}{route} answers {answer.status} to {asked}: {said or 'nothing more'}."

    async def _ask(self, shape: Shape, ids: tuple[int, ...] | None = None) -> Answer:
        request = Request(
            index=0,
            at_s=0.0,
            session=0,
            ids=ids,
            parts=() if ids else (Part("probe", 4),),
            output_tokens=PROBE_TOKENS,
            priority=1,
        )
        return await self._send(_ROUTES[shape.api], Bodies(shape).body(request))

    async def _get(self, path: str) -> Answer:
        return await fetch(self._pool, _head("GET", self._target, path), self._timeout_s)

    async def _post(self, path: str, value: object) -> Answer:
        return await self._send(path, orjson.dumps(value))

    async def _send(self, path: str, body: bytes) -> Answer:
        data = _post(self._target, path, body)
        return await fetch(self._pool, data, self._timeout_s)


_NEEDS = {"continuous_usage_stats": ("include_usage",)}
"""Fields that mean something only with others."""


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: Sequence[_Model]


class _Tokens(msgspec.Struct):
    tokens: Sequence[int]


def _stream(answer: Answer) -> AnswerReader | None:
    """The answer read as a stream of chunks, or None if it is none."""
    if answer.status != 200 or answer.headers.get("content-type", "").startswith("application/json"):
        return None
    parser, reader = EventParser(), AnswerReader("ids")
    events = [*parser.feed(answer.body), *parser.close()]
    if not events:
        return None
    for event in events:
        reader.read(event, 0)
    return reader


def _failed(url: str, failure: Failure) -> str:
    match failure.kind:
        case "connect":
            return f"{url} cannot be reached: {failure}; is the server running, and is this its port?"
        case "timeout":
            return f"{url} gives {failure}; is it busy, or another program? --timeout lets it take longer."
        case _:
            return f"{url} does not answer as an HTTP server: {failure}."


def _head(method: str, target: Target, path: str, more: str = "") -> bytes:
    address = target.address
    auth = f"authorization: Bearer {target.key}\r\n" if target.key else ""
    own = "".join(f"{name}: {value}\r\n" for name, value in target.headers)
    lines = f"{method} {address.path}{path} HTTP/1.1\r\nhost: {address.authority}\r\n{auth}{own}{more}\r\n"
    return lines.encode("latin-1")


def _post(target: Target, path: str, body: bytes) -> bytes:
    more = f"content-type: application/json\r\naccept: text/event-stream\r\ncontent-length: {len(body)}\r\n"
    return _head("POST", target, path, more) + body
