"""From a request that was read to its answer: into the engine, and back as it asked, streamed or whole. No route."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from octavo.engine.stream import Stream
from octavo.errors import InvalidParameter
from octavo.protocol.reply import Reply
from octavo.sampling.params import SamplingParams
from octavo.scheduling.inputs import ORDINARY, Service
from octavo.server.admission import Cost
from octavo.server.allowance import Allowance
from octavo.server.answer import Answer
from octavo.server.in_process import PROFILE
from octavo.server.keys import ALLOWANCE, CACHE_SCOPE, TENANT
from octavo.server.request_note import note_of
from octavo.server.serving import Serving
from octavo.server.streaming import AnswerStream, whole_response
from octavo.text.pieces import PlainText, Splitter

__all__ = ["TARGET_HEADERS", "answer_request", "cache_salt_of", "service_of", "start_answer", "target_s"]

MAX_NAME = 1024
"""Characters of a user's name, and of a salt."""

_SHORTEST_TARGET_MS, _LONGEST_TARGET_MS = 0.001, 3_600_000
_NUMBER = re.compile(r"[0-9]{1,9}(\.[0-9]{1,32})?([eE][+-]?[0-9]{1,3})?", re.ASCII)

_TARGET = {"type": "number", "minimum": _SHORTEST_TARGET_MS, "maximum": _LONGEST_TARGET_MS}
TARGET_HEADERS = {
    "x-slo-ttft-ms": {**_TARGET, "description": "When the first token is due, in milliseconds."},
    "x-slo-tbt-ms": {**_TARGET, "description": "Between two tokens, in milliseconds."},
}
"""As JSON schemas, for the OpenAPI document."""


async def answer_request(
    request: Request,
    serving: Serving,
    reply: Reply,
    params: SamplingParams,
    prompts: Sequence[Sequence[int]],
    *,
    stream: bool,
    service: Service = ORDINARY,
    cache_salt: str | None = None,
    echo: bool = False,
    split: Callable[[], Splitter] = PlainText,
    tokens_as_ids: bool = False,
    prompt_scores: int | None = None,
) -> Response:
    """Generate for `prompts` (token ids, which were checked against the capacity) and tell it as `reply` words it.

    `split`, `tokens_as_ids` and `prompt_scores` are Answer's. `service` holds what the body says; whose request it is,
    and the targets in its headers, are filled in here.
    Raises Overloaded, InvalidParameter, CapacityError, RequestRefused or ServerError before the first byte.
    """
    outputs, answer = start_answer(
        request,
        serving,
        reply,
        params,
        prompts,
        service=service,
        cache_salt=cache_salt,
        echo=echo,
        split=split,
        tokens_as_ids=tokens_as_ids,
        prompt_scores=prompt_scores,
    )
    if stream:
        return AnswerStream(outputs, answer)
    return await whole_response(outputs, answer, request.receive)


def start_answer(
    request: Request,
    serving: Serving,
    reply: Reply,
    params: SamplingParams,
    prompts: Sequence[Sequence[int]],
    *,
    service: Service = ORDINARY,
    cache_salt: str | None = None,
    echo: bool = False,
    split: Callable[[], Splitter] = PlainText,
    tokens_as_ids: bool = False,
    prompt_scores: int | None = None,
) -> tuple[Stream, Answer]:
    """The first half of `answer_request`: the engine's outputs, and what makes an answer of them. Who calls this reads
    the outputs, or closes them."""
    service = service_of(request, serving, service)
    ticket = serving.admission.take(
        request.scope,
        Cost.of(prompts, params, serving.client.info.capacity.max_model_len),
        slack=service.profile == "batch",
        within=PROFILE in request.scope,
    )
    answer = Answer(
        serving,
        reply,
        params,
        prompts,
        echo=echo,
        split=split,
        tokens_as_ids=tokens_as_ids,
        prompt_scores=prompt_scores,
        arrived=ticket.arrived,
    )
    note = note_of(request.scope)
    note.answer, note.engine_id = answer, reply.reply_id
    outputs = serving.client.generate_all(
        [(name, prompt, params) for name, prompt in zip(answer.request_ids, prompts, strict=True)],
        cache_salt=cache_salt_of(request, cache_salt),
        service=service,
    )
    return outputs, answer


def service_of(request: Request, serving: Serving, asked: Service) -> Service:
    """`asked`, with the tenant, the profile where it names none, and the headers' targets. Raises InvalidParameter."""
    allowance: Allowance | None = request.scope.get(ALLOWANCE)
    own = None if allowance is None else allowance.key.profile
    return msgspec.structs.replace(
        asked,
        tenant=request.scope.get(TENANT, ""),
        profile=request.scope.get(PROFILE) or asked.profile or own,
        ttft_s=target_s(request, "x-slo-ttft-ms"),
        tbt_s=target_s(request, "x-slo-tbt-ms"),
    )


def cache_salt_of(request: Request, asked: str | None) -> str:
    """Whose computed blocks the request may find. Raises InvalidParameter."""
    _check_name("cache_salt", asked or "")
    return f"{request.scope.get(CACHE_SCOPE, '')} {asked or ''}".strip()


def _check_name(field: str, text: str) -> None:
    """It is kept and sent on for as long as the request runs."""
    if len(text) > MAX_NAME:
        raise InvalidParameter(f"{field} has {len(text)} characters; at most {MAX_NAME} are allowed.", field)


def target_s(request: Request, name: str) -> float | None:
    """The milliseconds that a header asks for, in seconds. Raises InvalidParameter."""
    text = request.headers.get(name)
    if text is None:
        return None
    text = text.strip(" \t")  # no part of a header's value (RFC 9110, 5.5)
    value = float(text) if _NUMBER.fullmatch(text) else math.nan
    if not _SHORTEST_TARGET_MS <= value <= _LONGEST_TARGET_MS:
        raise InvalidParameter(
            f"The header {name} is {text[:40]!r}; it is a number of milliseconds, at least "
            f"{_SHORTEST_TARGET_MS} and at most {_LONGEST_TARGET_MS:,}.",
            name,
        )
    return value / 1e3
