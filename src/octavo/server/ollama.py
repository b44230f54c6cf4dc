"""The routes of Ollama's own API. Knows which request becomes which answer; all the work is elsewhere."""

from __future__ import annotations

import time
import uuid
from typing import Any, NoReturn

import orjson
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

import octavo
from octavo.errors import InvalidParameter
from octavo.protocol.conversation import conversation_of
from octavo.protocol.embeddings import MAX_INPUTS
from octavo.protocol.errors import RequestRefused
from octavo.protocol.ollama import ChatBody, EmbedBody, EmbeddingsBody, GenerateBody, ModelBody
from octavo.protocol.ollama_reply import NDJSON, ChatLines, GenerateLines, load_answer
from octavo.protocol.ollama_schema import (
    ChatLine,
    EmbedAnswer,
    EmbeddingsAnswer,
    GenerateLine,
    ModelNames,
    OllamaErrorReply,
    RunningModels,
    Shown,
)
from octavo.sampling.vectors import check_dimensions
from octavo.scheduling.inputs import ORDINARY
from octavo.server.deadlines import in_time
from octavo.server.document import Operation
from octavo.server.embeddings import embed as embed_texts
from octavo.server.ollama_models import listed, running, shown
from octavo.server.prompting import ChatPrompt, prompt_chat, read_answer, reasoning_kwargs
from octavo.server.replies import json_response, read_request
from octavo.server.running import TARGET_HEADERS, answer_request, service_of
from octavo.server.serving import Serving
from octavo.text.pieces import PlainText

__all__ = ["BODIES", "OPERATIONS", "ROUTES"]

BODIES = {
    "/api/chat": ChatBody,
    "/api/generate": GenerateBody,
    "/api/embed": EmbedBody,
    "/api/embeddings": EmbeddingsBody,
    "/api/show": ModelBody,
    "/api/pull": ModelBody,
}
"""What a route reads by itself, for the OpenAPI document."""

_STATUS = {"type": "object", "properties": {"status": {"type": "string"}}, "required": ["status"]}
_VERSION = {"type": "object", "properties": {"version": {"type": "string"}}, "required": ["version"]}
_REFUSED = ("/api/copy", "/api/create", "/api/delete", "/api/push")

OPERATIONS = {
    "/": Operation(reply={"type": "string"}, media_type="text/plain"),
    "/api/chat": Operation(
        reply=ChatLine, stream=ChatLine, stream_type=NDJSON, headers=TARGET_HEADERS, error=OllamaErrorReply
    ),
    "/api/generate": Operation(
        reply=GenerateLine,
        stream=GenerateLine,
        stream_type=NDJSON,
        headers=TARGET_HEADERS,
        error=OllamaErrorReply,
    ),
    "/api/embed": Operation(reply=EmbedAnswer, headers=TARGET_HEADERS, error=OllamaErrorReply),
    "/api/embeddings": Operation(reply=EmbeddingsAnswer, headers=TARGET_HEADERS, error=OllamaErrorReply),
    "/api/tags": Operation(reply=ModelNames, error=OllamaErrorReply),
    "/api/ps": Operation(reply=RunningModels, error=OllamaErrorReply),
    "/api/show": Operation(reply=Shown, error=OllamaErrorReply),
    "/api/pull": Operation(reply=_STATUS, error=OllamaErrorReply),
    "/api/version": Operation(reply=_VERSION, error=OllamaErrorReply),
}
"""The rest of what that document says of them."""

_LETTER = "a"


async def hello(request: Request) -> Response:
    """That somebody is here: what Ollama's clients ask first."""
    return PlainTextResponse("Octavo is running")


@in_time
async def chat(request: Request) -> Response:
    """Answer a conversation, as Ollama does: lines of JSON, unless stream is false."""
    begun_s = time.monotonic()
    serving, body = await read_request(request, ChatBody)
    body.check_keep_alive()
    if not body.messages:
        service_of(request, serving, ORDINARY)  # the headers are looked at all the same
        return _loaded(body.model, chat=True, unload=body.unloads, stream=body.streams)
    params, tools = body.sampling(), body.called_tools()
    prompt = await prompt_chat(
        serving,
        conversation_of(body.conversation(), None, None),
        params,
        tools=tools,
        constrained_by=body.constrained_by,
        continue_final=body.prefilled,
        template_kwargs=reasoning_kwargs(serving, body.effort(), "think"),
    )
    return await answer_request(
        request,
        serving,
        ChatLines(body.model, _name(), begun_s),
        prompt.params,
        [prompt.tokens],
        stream=body.streams,
        split=prompt.split,
    )


@in_time
async def generate(request: Request) -> Response:
    """Answer a prompt, as Ollama does: lines of JSON, unless stream is false."""
    begun_s = time.monotonic()
    serving, body = await read_request(request, GenerateBody)
    body.check_keep_alive()
    body.check()
    if not body.prompt and not body.suffix:
        service_of(request, serving, ORDINARY)
        return _loaded(body.model, chat=False, unload=body.unloads, stream=body.streams)
    prompt = await _generate_prompt(serving, body)
    context = None if body.raw or body.suffix else prompt.tokens
    return await answer_request(
        request,
        serving,
        GenerateLines(body.model, _name(), begun_s, context),
        prompt.params,
        [prompt.tokens],
        stream=body.streams,
        split=prompt.split,
    )


@in_time
async def embed(request: Request) -> Response:
    """The vectors of one or more texts, of length 1."""
    begun_s = time.monotonic()
    serving, body = await read_request(request, EmbedBody)
    body.check_keep_alive()
    check_dimensions(body.dimensions, serving.embedding_width)
    texts = [body.input] if isinstance(body.input, str) else body.input
    if len(texts) > MAX_INPUTS:
        raise InvalidParameter(
            f"input is a list of {len(texts)} texts; at most {MAX_INPUTS} are allowed.", "input"
        )
    names = ["input"] if isinstance(body.input, str) else [f"input[{i}]" for i in range(len(texts))]
    prompts = [
        await _text_ids(serving, text, name, cut=body.truncate is not False)
        for text, name in zip(texts, names, strict=True)
    ]
    made = await embed_texts(request, serving, prompts, names=names, dimensions=body.dimensions)
    return json_response(
        {
            "model": body.model,
            "embeddings": made.vectors,
            "total_duration": round((time.monotonic() - begun_s) * 1e9),
            "load_duration": 0,
            "prompt_eval_count": made.prompt_tokens,
        }
    )


@in_time
async def embeddings(request: Request) -> Response:
    """The vector of one text as it is, in the older form."""
    serving, body = await read_request(request, EmbeddingsBody)
    body.check_keep_alive()
    prompt = await _text_ids(serving, body.prompt, "prompt", cut=True)
    made = await embed_texts(request, serving, [prompt], names=["prompt"], normalize=False)
    return json_response({"embedding": made.vectors[0]})


async def tags(request: Request) -> Response:
    """The served model, by each of its names."""
    return json_response(listed(request.app.state.serving))


async def ps(request: Request) -> Response:
    """The same, when it is loaded."""
    return json_response(running(request.app.state.serving))


async def show(request: Request) -> Response:
    """What the served model is."""
    serving, body = await read_request(request, ModelBody)
    _named(serving, body)
    return json_response(shown(serving))


async def pull(request: Request) -> Response:
    """Nothing is downloaded here; a model that is served is there already."""
    serving, body = await read_request(request, ModelBody)
    _named(serving, body)
    return json_response({"status": "success"})


async def change(request: Request) -> NoReturn:
    """Refused: a server has one model, which it is started with."""
    raise RequestRefused(
        403,
        f"{request.url.path} changes models, and this server has one, which it was started with; use `octavo pull` and "
        "`octavo serve` where it runs.",
    )


async def version(request: Request) -> Response:
    """The version of this server: Octavo's."""
    return json_response({"version": octavo.__version__})


def _loaded(model: str, *, chat: bool, unload: bool, stream: bool) -> Response:
    """To a request that only loads or unloads: it is loaded, and stays."""
    answer = load_answer(model, chat=chat, unload=unload)
    return Response(orjson.dumps(answer) + b"\n", media_type=NDJSON) if stream else json_response(answer)


def _named(serving: Serving, body: ModelBody) -> None:
    name = body.model or body.name
    if not name:
        raise InvalidParameter("model is missing; it is required.", "model")
    serving.accept(name)


def _name() -> str:
    return f"ollama-{uuid.uuid4().hex}"


async def _generate_prompt(serving: Serving, body: GenerateBody) -> ChatPrompt:
    params, text = body.sampling(), body.prompt or ""
    if body.suffix:
        tokens = await serving.encode_infill(text, body.suffix, "prompt")
        return await _plain(serving, body, tokens, filled=True)
    if body.raw or not serving.template.source:
        if body.system:
            raise InvalidParameter(
                "system needs a chat template, and the model has none; leave it out.", "system"
            )
        tokens = await serving.encode(text, "prompt", add_bos=False if body.context else None)
        return await _plain(serving, body, [*(body.context or ()), *tokens])
    kwargs = reasoning_kwargs(serving, body.effort(), "think")
    system = [{"role": "system", "content": body.system}] if body.system else []
    asked = {"role": "user", "content": text}
    if not body.context:
        return await prompt_chat(
            serving,
            [*system, asked],
            params,
            constrained_by=body.constrained_by,
            template_kwargs=kwargs,
            name="prompt",
        )
    _check_ids(serving, body.context)
    tokens = [*body.context, *await _next_turn(serving, asked, kwargs)]
    return await read_answer(serving, tokens, params, constrained_by=body.constrained_by, name="prompt")


async def _plain(
    serving: Serving, body: GenerateBody, tokens: list[int], *, filled: bool = False
) -> ChatPrompt:
    """A prompt without a template: what comes is all text."""
    if body.think:
        raise InvalidParameter("think needs the model's template; leave it out.", "think")
    if body.context:
        _check_ids(serving, body.context)
    params = serving.with_infill_ends(body.sampling()) if filled else body.sampling()
    serving.client.info.capacity.check(tokens, params, "prompt")
    await serving.grammars.check(params.grammar, body.constrained_by)
    return ChatPrompt(tokens, params, PlainText)


async def _next_turn(serving: Serving, asked: dict[str, Any], kwargs: dict[str, Any]) -> list[int]:
    """What the template writes behind an answer for the next turn: the end of the one, and the other."""
    before = [{"role": "user", "content": _LETTER}, {"role": "assistant", "content": _LETTER}]
    opened = await serving.encode_chat(before, continue_final=True, template_kwargs=kwargs)
    whole = await serving.encode_chat([*before, asked], template_kwargs=kwargs)
    if whole[: len(opened)] != opened:
        raise InvalidParameter(
            "context cannot be continued: the model's chat template writes earlier turns another way; use /api/chat.",
            "context",
        )
    return whole[len(opened) :]


def _check_ids(serving: Serving, context: list[int]) -> None:
    size = serving.client.info.capacity.vocab_size
    for place, token in enumerate(context):
        if not 0 <= token < size:
            raise InvalidParameter(
                f"context[{place}] is {token}; this model has the ids 0 to {size - 1}.", "context"
            )


async def _text_ids(serving: Serving, text: str, name: str, *, cut: bool) -> list[int]:
    """A text to embed; one that is too long loses its end where it may."""
    tokens = await serving.encode(text, name)
    return tokens[: serving.client.info.capacity.max_model_len] if cut else tokens


ROUTES = (
    Route("/", hello),
    Route("/api/chat", chat, methods=["POST"]),
    Route("/api/generate", generate, methods=["POST"]),
    Route("/api/embed", embed, methods=["POST"]),
    Route("/api/embeddings", embeddings, methods=["POST"]),
    Route("/api/tags", tags),
    Route("/api/ps", ps),
    Route("/api/show", show, methods=["POST"]),
    Route("/api/pull", pull, methods=["POST"]),
    *(Route(path, change, methods=["POST", "DELETE"], include_in_schema=False) for path in _REFUSED),
    Route("/api/blobs/{digest}", change, methods=["GET", "POST"], include_in_schema=False),
    Route("/api/version", version, name="ollama_version"),
)
