"""The routes of OpenAI's API. Knows which request becomes which answer; all the work is elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from octavo.errors import InvalidParameter
from octavo.protocol.anthropic_reply import anthropic_model, anthropic_models
from octavo.protocol.openai import ChatRequest, CompletionRequest
from octavo.protocol.openai_reply import ChatReply, CompletionReply
from octavo.protocol.openai_schema import (
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    ModelCard,
    ModelList,
)
from octavo.sampling.params import SamplingParams
from octavo.server.deadlines import in_time
from octavo.server.dialects import is_anthropic
from octavo.server.document import Operation
from octavo.server.prompting import prompt_chat, reasoning_kwargs
from octavo.server.replies import json_response, read_request
from octavo.server.running import TARGET_HEADERS, answer_request
from octavo.server.serving import Serving

__all__ = ["BODIES", "OPERATIONS", "ROUTES"]

BODIES = {"/v1/completions": CompletionRequest, "/v1/chat/completions": ChatRequest}
"""What a route reads by itself, for the OpenAPI document."""

MAX_SEQUENCES = 4096
"""Prompts × n in one request."""

OPERATIONS = {
    "/v1/models": Operation(reply=ModelList),
    "/v1/models/{model}": Operation(reply=ModelCard),
    "/v1/completions": Operation(
        reply=Completion,
        stream=Completion,
        headers=TARGET_HEADERS,
        example={"prompt": "An octavo is", "max_tokens": 16, "temperature": 0},
    ),
    "/v1/chat/completions": Operation(
        reply=ChatCompletion,
        stream=ChatCompletionChunk,
        headers=TARGET_HEADERS,
        example={"messages": [{"role": "user", "content": "What is an octavo?"}], "max_tokens": 64},
    ),
}
"""The rest of what that document says of them."""


async def list_models(request: Request) -> Response:
    """The served model, by each of its names."""
    serving: Serving = request.app.state.serving
    if is_anthropic(request.scope):
        return json_response(anthropic_models(serving.names, serving.started_s))
    return json_response({"object": "list", "data": [_model(serving, name) for name in serving.names]})


async def get_model(request: Request) -> Response:
    """One model by its id."""
    serving: Serving = request.app.state.serving
    model = request.path_params["model"]
    if not serving.serves(model):
        raise serving.no_such_model(model)
    if is_anthropic(request.scope):
        return json_response(anthropic_model(model, serving.started_s))
    return json_response(_model(serving, model))


@in_time
async def create_completion(request: Request) -> Response:
    """Continue one or more prompts."""
    serving, body = await read_request(request, CompletionRequest)
    params = body.sampling()
    given: Sequence[str | list[int]] = body.prompts()
    _check_count(len(given), params)
    names = [f"prompt[{i}]" for i in range(len(given))] if body.several else ["prompt"]
    add_bos = False if body.add_special_tokens is False else None
    prompts: list[list[int]] = []
    for name, prompt in zip(names, given, strict=True):
        if body.suffix:
            prompts.append(await serving.encode_infill(prompt, body.suffix, name, add_bos=add_bos))
        elif isinstance(prompt, str):
            prompts.append(await serving.encode(prompt, name, add_bos=add_bos))
        else:
            prompts.append(prompt)
        prompts[-1] = serving.shorten(prompts[-1], body.truncate_prompt_tokens)
    if body.suffix:
        params = serving.with_infill_ends(params)
    for name, ids in zip(names, prompts, strict=True):
        serving.client.info.capacity.check(ids, params, name)
    await serving.grammars.check(params.grammar, body.constrained_by)
    return await answer_request(
        request,
        serving,
        CompletionReply(
            *_head(serving, body.model),
            include_usage=body.include_usage,
            token_ids=bool(body.return_token_ids),
            continuous_usage=body.continuous_usage,
        ),
        params,
        prompts,
        stream=bool(body.stream),
        service=body.service(),
        cache_salt=body.cache_salt,
        tokens_as_ids=bool(body.return_tokens_as_token_ids),
        prompt_scores=body.prompt_logprobs,
        echo=bool(body.echo),
    )


@in_time
async def create_chat_completion(request: Request) -> Response:
    """Answer a conversation."""
    serving, body = await read_request(request, ChatRequest)
    prompt = await prompt_chat(
        serving,
        body.conversation(),
        body.sampling(),
        tools=body.called_tools(),
        constrained_by=body.constrained_by,
        add_generation_prompt=body.add_generation_prompt is not False,
        continue_final=bool(body.continue_final_message),
        add_bos=bool(body.add_special_tokens),
        most_tokens=body.truncate_prompt_tokens,
        template_kwargs={
            **reasoning_kwargs(serving, body.reasoning_effort, "reasoning_effort"),
            **(body.chat_template_kwargs or {}),
        },
    )
    predicted = await serving.encode_prediction(body.predicted())
    return await answer_request(
        request,
        serving,
        ChatReply(
            *_head(serving, body.model),
            include_usage=body.include_usage,
            token_ids=bool(body.return_token_ids),
            continuous_usage=body.continuous_usage,
        ),
        prompt.params,
        [prompt.tokens],
        stream=bool(body.stream),
        service=body.service(predicted),
        cache_salt=body.cache_salt,
        split=prompt.split,
        tokens_as_ids=bool(body.return_tokens_as_token_ids),
        prompt_scores=body.prompt_logprobs,
    )


def _head(serving: Serving, model: str | None) -> tuple[int, str, str]:
    """When, by which model (as it was asked for), and with which arithmetic an answer is made."""
    return int(time.time()), model or serving.model_name, serving.fingerprint


def _check_count(prompts: int, params: SamplingParams) -> None:
    if prompts * params.n > MAX_SEQUENCES:
        raise InvalidParameter(
            f"{prompts} prompts with n {params.n} make {prompts * params.n} choices; "
            f"at most {MAX_SEQUENCES} are allowed in one request.",
            "n",
        )


def _model(serving: Serving, name: str) -> dict[str, Any]:
    model = {
        "id": name,
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
