"""The routes of OpenAI's Responses. Knows which request becomes which answer; all the work is elsewhere."""

from __future__ import annotations

import struct
import time
import uuid
from collections.abc import Sequence
from typing import NamedTuple

import orjson
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from octavo.errors import InvalidParameter
from octavo.protocol.conversation import Message
from octavo.protocol.errors import RequestRefused
from octavo.protocol.listing import list_query, listed, page_asked, unknown_after
from octavo.protocol.response_items import Item, answer_message, items_of, messages_of, response_of
from octavo.protocol.response_schema import EVENT, InputTokens, ItemList, ResponseDeleted, ResponseObject
from octavo.protocol.responses import InputTokensRequest, ResponsesRequest, in_own_words
from octavo.protocol.responses_reply import FINAL, ResponsesReply
from octavo.protocol.sse import MEDIA_TYPE
from octavo.server.admission import keep_ticket
from octavo.server.auth import owner_of, reads_of
from octavo.server.deadlines import in_time, take_deadline
from octavo.server.document import STORAGE, Operation
from octavo.server.prompting import ChatPrompt, read_answer, reasoning_kwargs
from octavo.server.replies import json_response, kept_json, read_request
from octavo.server.response_runs import ResponseRun, ResponseRuns
from octavo.server.response_store import ResponseStore
from octavo.server.running import TARGET_HEADERS, answer_request, start_answer
from octavo.server.serving import Serving
from octavo.server.streaming import STREAM_HEADERS
from octavo.storage.records import ResponseRecord
from octavo.text.continuation import Earlier, Prompt, shown_ids

__all__ = ["BODIES", "OPERATIONS", "ROUTES"]

_PAGE, _MOST = 20, 100
"""Input items in a list, as OpenAI has them."""


class _Asked(NamedTuple):
    """What a request comes to."""

    items: list[Item]
    """All that the model is told, those of earlier responses too."""
    prompt: Prompt
    answer: ChatPrompt
    """How it is asked, and its answer read."""


@in_time
async def create_response(request: Request) -> Response:
    """Answer an input: whole, streamed, or in the background."""
    serving, body = await read_request(request, ResponsesRequest)
    body.check()
    store: ResponseStore = request.app.state.responses
    response_id = f"resp_{uuid.uuid4().hex}"
    asked = await _asked(request, serving, body, response_id)
    owner, created_s = owner_of(request.scope), int(time.time())

    def record(reply: ResponsesReply) -> ResponseRecord:
        ids = _ids_after(serving, asked, reply)
        return ResponseRecord(
            id=response_id,
            owner=owner,
            created_at=created_s,
            status=reply.response["status"],
            body=kept_json(reply.response),
            items=kept_json(asked.items),
            tokens=None if ids is None else struct.pack(f"<{len(ids)}i", *ids),
            digest=_digest(serving, asked.prompt.digest),
        )

    def ended(reply: ResponsesReply) -> None:
        if body.stored:
            store.keep(record(reply))

    reply = ResponsesReply(
        response_id,
        created_s,
        body.model or serving.model_name,
        serving.fingerprint,
        body.echo(),
        logprobs=body.logprobs,
        obfuscated=body.obfuscated,
        ended=ended,
    )
    with in_own_words():
        chat = body.chat()
        service = chat.service()
    if not body.background:
        return await answer_request(
            request,
            serving,
            reply,
            asked.answer.params,
            [asked.prompt.ids],
            stream=bool(body.stream),
            service=service,
            cache_salt=body.cache_salt,
            split=asked.answer.split,
        )
    deadline = take_deadline(request)  # the run's from here: given up in between, it would be nobody's
    await store.add_unfinished(record(reply))
    try:
        outputs, answer = start_answer(
            request,
            serving,
            reply,
            asked.answer.params,
            [asked.prompt.ids],
            service=service,
            cache_salt=body.cache_salt,
            split=asked.answer.split,
        )
    except BaseException:
        await store.remove(response_id)
        raise
    runs: ResponseRuns = request.app.state.response_runs
    # It counts until its own end, not this answer's.
    ended_run = keep_ticket(request.scope)
    run = ResponseRun(outputs, answer, reply, followed=bool(body.stream), ended=ended_run, deadline=deadline)
    told = orjson.dumps(reply.response)
    runs.start(run)
    return _followed(run, 0) if body.stream else Response(told, media_type="application/json")


@in_time
async def count_input_tokens(request: Request) -> Response:
    """How many tokens the prompt of a response would have."""
    serving, body = await read_request(request, InputTokensRequest)
    body.check()
    asked = await _asked(request, serving, body, f"resp_{uuid.uuid4().hex}")
    return json_response({"object": "response.input_tokens", "input_tokens": len(asked.prompt.ids)})


async def get_response(request: Request) -> Response:
    """A response as it is now; with stream=true, the events of one that was made in the background."""
    query = request.query_params
    for name in query:
        if name not in ("stream", "starting_after", "include", "include[]", "include_obfuscation"):
            raise InvalidParameter(f"{name[:60]} is no parameter of a response.", name[:60])
    record = await _record(request)
    runs: ResponseRuns = request.app.state.response_runs
    run = runs.get(record.id)
    if query.get("stream", "false") not in ("true", "false"):
        raise InvalidParameter(f"stream is {query['stream'][:40]!r}; it is true or false.", "stream")
    if query.get("stream") != "true":
        if "starting_after" in query:
            raise InvalidParameter(
                "starting_after is given, but stream is not true; set it too.", "starting_after"
            )
        return Response(_body(record, run), media_type="application/json")
    text = query.get("starting_after", "-1")
    if not (text.lstrip("-").isdecimal() and text.isascii() and len(text) < 12 and int(text) >= -1):
        raise InvalidParameter(
            f"starting_after is {text[:40]!r}; it is the sequence_number of an event.", "starting_after"
        )
    if run is None or not run.followed:
        raise InvalidParameter(
            f"The events of {record.id} are not there: those of responses made with background and stream are kept for "
            "a while, in memory; get it without stream.",
            "stream",
        )
    return _followed(run, int(text) + 1)


async def delete_response(request: Request) -> Response:
    """Forget a response; one that runs is cancelled first."""
    record = await _record(request)
    store: ResponseStore = request.app.state.responses
    runs: ResponseRuns = request.app.state.response_runs
    await runs.cancel(record.id)
    runs.forget(record.id)
    await store.remove(record.id)
    return json_response({"id": record.id, "object": "response", "deleted": True})


async def cancel_response(request: Request) -> Response:
    """End a response that is made in the background; one that has ended is told as it is."""
    record = await _record(request)
    if not orjson.loads(record.body)["background"]:
        raise InvalidParameter(
            f"{record.id} is not made in the background; to end such a response, close its connection.",
            "response_id",
        )
    runs: ResponseRuns = request.app.state.response_runs
    await runs.cancel(record.id)
    record = await _record(request)
    return Response(_body(record, runs.get(record.id)), media_type="application/json")


async def list_input_items(request: Request) -> Response:
    """What a response was told, the newest first: all items before it, those of earlier responses too."""
    page = page_asked(
        request.query_params, default=_PAGE, most=_MOST, others=["include", "include[]", "before"]
    )
    record = await _record(request)
    items = orjson.loads(record.items)
    if not page.ascending:
        items.reverse()
    ids = [item["id"] for item in items]
    if page.after is not None:
        if page.after not in ids:
            raise unknown_after(page)
        items = items[ids.index(page.after) + 1 :]
    return json_response(listed(items[: page.limit], more=len(items) > page.limit))


async def _asked(request: Request, serving: Serving, body: ResponsesRequest, response_id: str) -> _Asked:
    """Read the input, and make the prompt. Raises InvalidParameter, CapacityError and RequestRefused."""
    before, output, ids, digest = await _previous(request, serving, body.previous_response_id)
    told = await _resolved(request, items_of(body.input, response_id), [*before, *output])
    messages = [] if body.instructions is None else [Message(role="system", content=body.instructions)]
    messages += messages_of(before)
    place = len(messages)
    if output:
        messages.append(answer_message(output))
    messages += messages_of(told, [*before, *output])
    with in_own_words():
        chat = body.chat()
        chat.messages = messages
        params, tools = chat.sampling(), chat.called_tools()
        prompt = await serving.encode_continued(
            chat.conversation(),
            None if ids is None else Earlier(place, ids, digest),
            tools=tools.definitions if tools else None,
            template_kwargs={
                **reasoning_kwargs(serving, chat.reasoning_effort, "reasoning_effort"),
                **(body.chat_template_kwargs or {}),
            },
        )
        answer = await read_answer(
            serving, prompt.ids, params, tools=tools, constrained_by=chat.constrained_by
        )
    return _Asked([*before, *output, *told], prompt, answer)


async def _previous(
    request: Request, serving: Serving, response_id: str | None
) -> tuple[list[Item], list[Item], Sequence[int] | None, str]:
    """Of the response to go on from: its input, its output, its ids where they mean something here, and their digest.
    Raises RequestRefused and InvalidParameter."""
    if response_id is None:
        return [], [], None, ""
    name = "previous_response_id"
    store: ResponseStore = request.app.state.responses
    record = await store.get(response_id, reads_of(request.scope))
    if record is None:
        message = f"There is no response {response_id[:80]!r} to go on from; was it made with store false?"
        raise RequestRefused(400, message, "previous_response_not_found", name)
    runs: ResponseRuns = request.app.state.response_runs
    status = "in_progress" if runs.running(record.id) else record.status
    if status not in ("completed", "incomplete"):
        raise InvalidParameter(
            f"{record.id} is {status}; go on from one that is completed or incomplete.", name
        )
    output = orjson.loads(record.body)["output"]
    vocabulary_id, _, digest = (record.digest or "").partition(".")
    if record.tokens is None or vocabulary_id != serving.vocabulary_id:
        return orjson.loads(record.items), output, None, ""
    ids = struct.unpack(f"<{len(record.tokens) // 4}i", record.tokens)
    return orjson.loads(record.items), output, ids, digest


async def _resolved(request: Request, items: list[Item], known: Sequence[Item]) -> list[Item]:
    """`items`, with what is referred to in the place of references. Raises RequestRefused."""
    found = {item["id"]: item for item in known}
    resolved = []
    for place, item in enumerate(items):
        if item["type"] != "item_reference":
            resolved.append(item)
            continue
        name = item["id"]
        if name not in found and (response_id := response_of(name)) is not None:
            store: ResponseStore = request.app.state.responses
            record = await store.get(response_id, reads_of(request.scope))
            if record is not None:
                all_of = [*orjson.loads(record.items), *orjson.loads(record.body)["output"]]
                found |= {one["id"]: one for one in all_of}
        if name not in found:
            message = f"input[{place}] refers to {name[:80]!r}, which is not there; send the item itself."
            raise RequestRefused(404, message, "item_not_found", f"input[{place}].id")
        resolved.append(found[name])
    return resolved


def _ids_after(serving: Serving, asked: _Asked, reply: ResponsesReply) -> list[int] | None:
    """The ids to go on from: the prompt's and those of what the answer shows; None where there are none."""
    choice = reply.choice
    if choice is None:
        return None
    tokens = choice.tokens
    if isinstance(choice.stop_reason, str):
        # The text ends before the stop string, the tokens behind it.
        shown = (
            None if choice.reasoning or choice.calls else shown_ids(serving.tokenizer, tokens, choice.text)
        )
        return None if shown is None else [*asked.prompt.ids, *shown]
    if choice.stop_reason is not None or (tokens and tokens[-1] in serving.eos_ids):
        tokens = tokens[:-1]
    return [*asked.prompt.ids, *tokens]


def _digest(serving: Serving, digest: str) -> str:
    return f"{serving.vocabulary_id}.{digest}"


async def _record(request: Request) -> ResponseRecord:
    """The response that the path names, where it is the asker's. Raises RequestRefused."""
    response_id = request.path_params["response_id"]
    store: ResponseStore = request.app.state.responses
    record = await store.get(response_id, reads_of(request.scope))
    if record is None:
        raise RequestRefused(404, f"There is no response {response_id[:80]!r}.", None, "response_id")
    return record


def _body(record: ResponseRecord, run: ResponseRun | None) -> bytes:
    """As it is now."""
    if run is not None and record.status not in FINAL:
        return orjson.dumps(run.reply.response)
    return record.body


def _followed(run: ResponseRun, number: int) -> Response:
    """The events from `number` on; the run goes on when the client leaves."""
    return StreamingResponse(run.follow(number), media_type=MEDIA_TYPE, headers=STREAM_HEADERS)


BODIES = {"/v1/responses": ResponsesRequest, "/v1/responses/input_tokens": InputTokensRequest}
"""What a route reads by itself, for the OpenAPI document."""

OPERATIONS = {
    "/v1/responses": Operation(
        reply=ResponseObject,
        stream=EVENT,
        headers=TARGET_HEADERS,
        refusals=STORAGE,
        example={"input": "What is an octavo?", "max_output_tokens": 64},
    ),
    "/v1/responses/input_tokens": Operation(reply=InputTokens, example={"input": "What is an octavo?"}),
    "GET /v1/responses/{response_id}": Operation(
        reply=ResponseObject,
        stream=EVENT,
        query={
            "stream": {"type": "boolean", "default": False, "description": "Its events, as they come."},
            "starting_after": {
                "type": "integer",
                "minimum": -1,
                "maximum": 2**31 - 1,
                "description": "Of its events, only those behind the one with this sequence_number.",
            },
        },
        refusals=(400, 404, *STORAGE),
    ),
    "DELETE /v1/responses/{response_id}": Operation(reply=ResponseDeleted, refusals=(404, *STORAGE)),
    "/v1/responses/{response_id}/cancel": Operation(reply=ResponseObject, refusals=(400, 404, *STORAGE)),
    "/v1/responses/{response_id}/input_items": Operation(
        reply=ItemList, query=list_query(default=_PAGE, most=_MOST), refusals=(400, 404, *STORAGE)
    ),
}
"""The rest of what that document says of them."""


class _ResponseId(StringConvertor):
    """Any but the name of the route beside it, whose methods are its own."""

    regex = "(?!input_tokens$)[^/]+"


register_url_convertor("response_id", _ResponseId())

ROUTES = (
    Route("/v1/responses", create_response, methods=["POST"]),
    Route("/v1/responses/input_tokens", count_input_tokens, methods=["POST"]),
    Route("/v1/responses/{response_id:response_id}", get_response, methods=["GET"]),
    Route("/v1/responses/{response_id:response_id}", delete_response, methods=["DELETE"]),
    Route("/v1/responses/{response_id}/cancel", cancel_response, methods=["POST"]),
    Route("/v1/responses/{response_id}/input_items", list_input_items, methods=["GET"]),
)
