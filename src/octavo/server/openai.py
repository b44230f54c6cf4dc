"""The routes of OpenAI's API. Knows which request becomes which answer; all the work is elsewhere."""

from __future__ import annotations

import math
import re
import time
import uuid
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from octavo.errors import InvalidParameter
from octavo.protocol.openai import ChatRequest, CompletionRequest
from octavo.protocol.openai_reply import ReplyHead
from octavo.sampling.params import SamplingParams
from octavo.server.answer import Answer
from octavo.server.auth import CACHE_SCOPE, TENANT
from octavo.server.replies import json_response, read_request
from octavo.server.serving import Serving
from octavo.server.streaming import EventStream, whole_response

__all__ = ["BODIES", "ROUTES"]

BODIES = {"/v1/completions": CompletionRequest, "/v1/chat/completions": ChatRequest}
"""What a route reads by itself, for the OpenAPI document."""

MAX_SEQUENCES = 4096
"""Prompts × n in one request."""
_LONGEST_TARGET_MS = 3_600_000
_NUMBER = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?", re.ASCII)


async def list_models(request: Request) -> Response:
    """The served model."""
    return json_response({"object": "list", "data": [_model(request.app.state.serving)]})


async def get_model(request: Request) -> Response:
    """One model by its id."""
    serving: Serving = request.app.state.serving
    model = request.path_params["model"]
    if model != serving.model_name:
        raise serving.no_such_model(model)
    return json_response(_model(serving))


async def create_completion(request: Request) -> Response:
    """Continue one or more prompts."""
    serving, body = await read_request(request, CompletionRequest)
    params = body.sampling()
    given: Sequence[str | list[int]] = body.prompts()
    _check_count(len(given), params)
    names = [f"prompt[{i}]" for i in range(len(given))] if body.several else ["prompt"]
    prompts = [
        await serving.encode(prompt, name, add_bos=False if body.add_special_tokens is False else None)
        if isinstance(prompt, str)
        else prompt
        for name, prompt in zip(names, given, strict=True)
    ]
    for name, ids in zip(names, prompts, strict=True):
        serving.client.info.capacity.check(ids, params, name)
    return await _answer(request, serving, "completion", body, params, prompts, echo=bool(body.echo))


async def create_chat_completion(request: Request) -> Response:
    """Answer a conversation."""
    serving, body = await read_request(request, ChatRequest)
    params = body.sampling()
    prompt = await serving.encode_chat(
        body.conversation(),
        add_generation_prompt=body.add_generation_prompt is not False,
        continue_final=bool(body.continue_final_message),
        template_kwargs=body.chat_template_kwargs or {},
    )
    serving.client.info.capacity.check(
        prompt, params
    )  # what can never be served, also when the queue is full
    predicted = await serving.encode_prediction(body.predicted())
    return await _answer(request, serving, "chat", body, params, [prompt], predicted=predicted)


async def _answer(
    request: Request,
    serving: Serving,
    api: Literal["chat", "completion"],
    body: ChatRequest | CompletionRequest,
    params: SamplingParams,
    prompts: Sequence[Sequence[int]],
    *,
    echo: bool = False,
    predicted: Sequence[int] = (),
) -> Response:
    """Start the request in the engine, and answer as it asked: streamed or whole."""
    prefix = "chatcmpl" if api == "chat" else "cmpl"
    head = ReplyHead(
        api,
        f"{prefix}-{uuid.uuid4().hex}",
        int(time.time()),
        serving.model_name,
        serving.fingerprint,
        usage_follows=body.include_usage,
    )
    tenant = request.scope.get(TENANT, "")
    service = body.service(tenant, serving.profiles.get(tenant), predicted)
    service = msgspec.structs.replace(
        service,
        ttft_s=target_s(request, "x-slo-ttft-ms"),
        tbt_s=target_s(request, "x-slo-tbt-ms"),
    )
    serving.accept_more(len(prompts) * params.attempts)
    answer = Answer(serving, head, params, prompts, echo=echo)
    outputs = serving.client.generate_all(
        [(name, prompt, params) for name, prompt in zip(answer.request_ids, prompts, strict=True)],
        cache_salt=f"{request.scope.get(CACHE_SCOPE, '')} {body.cache_salt or ''}".strip(),
        service=service,
    )
    if body.stream:
        return EventStream(outputs, answer, include_usage=body.include_usage)
    return await whole_response(outputs, answer, request.receive)


def target_s(request: Request, name: str) -> float | None:
    """The milliseconds that a header asks for, in seconds. Raises InvalidParameter."""
    text = request.headers.get(name)
    if text is None:
        return None
    text = text.strip(" \t")  # no part of a header's value (RFC 9110, 5.5)
    value = float(text) if _NUMBER.fullmatch(text) else math.nan
    if not 0 < value <= _LONGEST_TARGET_MS:
        raise InvalidParameter(
            f"The header {name} is {text[:40]!r}; it is a number of milliseconds, above 0 and at most "
            f"{_LONGEST_TARGET_MS:,}.",
            name,
        )
    return value / 1e3


def _check_count(prompts: int, params: SamplingParams) -> None:
    if prompts * params.n > MAX_SEQUENCES:
        raise InvalidParameter(
            f"{prompts} prompts with n {params.n} make {prompts * params.n} choices; "
            f"at most {MAX_SEQUENCES} are allowed in one request.",
            "n",
        )


def _model(serving: Serving) -> dict[str, Any]:
    model = {
        "id": serving.model_name,
        "object": "model",
        "created": serving.started_s,
        "owned_by": "octavo",
    }
    if serving.client.loaded:
        model["max_model_len"] = serving.client.info.capacity.max_model_len
    return model


ROUTES = (
    Route("/v1/models", list_models),
    Route("/v1/models/{model:path}", get_model),
    Route("/v1/completions", create_completion, methods=["POST"]),
    Route("/v1/chat/completions", create_chat_completion, methods=["POST"]),
)
