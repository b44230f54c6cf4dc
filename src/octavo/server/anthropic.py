"""The routes of Anthropic's API. Knows which request becomes which answer; all the work is elsewhere."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from octavo.errors import InvalidParameter
from octavo.protocol.anthropic import NAMES, CountTokensRequest, MessagesRequest
from octavo.protocol.anthropic_errors import OVERLOADED
from octavo.protocol.anthropic_reply import MessageReply
from octavo.protocol.anthropic_schema import AnthropicErrorReply, MessageAnswer, MessageEvent, TokenCount
from octavo.protocol.body import renamed
from octavo.protocol.conversation import conversation_of
from octavo.server.deadlines import in_time
from octavo.server.dialects import request_id_of
from octavo.server.document import Operation
from octavo.server.prompting import prompt_chat, reasoning_kwargs
from octavo.server.replies import json_response, read_request
from octavo.server.running import TARGET_HEADERS, answer_request
from octavo.server.serving import Serving

__all__ = ["BODIES", "OPERATIONS", "ROUTES"]

BODIES = {"/v1/messages": MessagesRequest, "/v1/messages/count_tokens": CountTokensRequest}
"""What a route reads by itself, for the OpenAPI document."""

_EXAMPLE = {"messages": [{"role": "user", "content": "What is an octavo?"}]}
_REFUSED: dict[str, Any] = {"error": AnthropicErrorReply, "refusals": (OVERLOADED,)}

OPERATIONS = {
    "/v1/messages": Operation(
        reply=MessageAnswer,
        stream=MessageEvent,
        headers=TARGET_HEADERS,
        example={**_EXAMPLE, "max_tokens": 64},
        **_REFUSED,
    ),
    "/v1/messages/count_tokens": Operation(reply=TokenCount, example=_EXAMPLE, **_REFUSED),
}
"""The rest of what that document says of them."""


@in_time
async def create_message(request: Request) -> Response:
    """Answer a conversation, as Anthropic's API does."""
    serving, body = await read_request(request, MessagesRequest)
    params = body.sampling()
    with renamed(NAMES):
        prompt = await prompt_chat(
            serving,
            conversation_of(body.conversation(), None, None),
            params,
            tools=body.called_tools(),
            constrained_by=body.constrained_by,
            continue_final=body.prefilled,
            template_kwargs=_template_kwargs(serving, body),
        )
    shown = body.thinking is None or body.thinking.display != "omitted"
    model = body.model or serving.model_name
    return await answer_request(
        request,
        serving,
        MessageReply(model, body.max_tokens, request_id=request_id_of(request.scope), show_thinking=shown),
        prompt.params,
        [prompt.tokens],
        stream=bool(body.stream),
        service=body.service(),
        cache_salt=body.cache_salt,
        split=prompt.split,
    )


async def count_tokens(request: Request) -> Response:
    """How many tokens the prompt of such a request has."""
    serving, body = await read_request(request, CountTokensRequest)
    turns, tools = conversation_of(body.conversation(), None, None), body.called_tools()
    prompt = await serving.encode_chat(
        turns,
        tools=tools.definitions if tools else None,
        add_generation_prompt=True,
        continue_final=body.prefilled,
        template_kwargs=_template_kwargs(serving, body),
    )
    return json_response({"input_tokens": len(prompt)})


def _template_kwargs(serving: Serving, body: CountTokensRequest) -> dict[str, Any]:
    """What the chat template is told beside the conversation. Raises InvalidParameter for thinking where the template
    leaves no choice."""
    thinks, effort = body.thinks(), body.effort()
    told: dict[str, Any] = {}
    if thinks is not None and body.thinking is not None:
        word = (effort or "medium") if thinks else "none"
        try:
            told = reasoning_kwargs(serving, word, "thinking.type")
        except InvalidParameter as error:
            message = str(error).replace(repr(word), repr(body.thinking.type))
            raise InvalidParameter(message, error.param) from None
    elif effort is not None and "reasoning_effort" in (serving.template.source or ""):
        told = {"reasoning_effort": effort}  # elsewhere it is a hint that nothing can follow from
    return told | (body.chat_template_kwargs or {})


ROUTES = (
    Route("/v1/messages", create_message, methods=["POST"]),
    Route("/v1/messages/count_tokens", count_tokens, methods=["POST"]),
)
