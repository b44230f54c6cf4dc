"""The routes that turn texts into token ids and back. They compute nothing, and answer while the engine is busy."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from octavo.errors import InvalidParameter
from octavo.protocol.openai_schema import Detokenized, Tokenized
from octavo.protocol.tokens import DetokenizeRequest, TokenizeRequest
from octavo.server.document import Operation
from octavo.server.replies import json_response, read_request

__all__ = ["BODIES", "OPERATIONS", "ROUTES"]

BODIES = {"/tokenize": TokenizeRequest, "/detokenize": DetokenizeRequest}
"""What a route reads by itself, for the OpenAPI document."""
OPERATIONS = {
    "/tokenize": Operation(reply=Tokenized, example={"prompt": "An octavo is a book."}),
    "/detokenize": Operation(reply=Detokenized, example={"tokens": [1, 2, 3]}),
}
"""The rest of what that document says of them."""

_MOST_TOKENS = 1 << 20
"""In one request to turn back."""


async def tokenize(request: Request) -> Response:
    """The token ids of a text, or of a conversation as the model would be given it."""
    serving, body = await read_request(request, TokenizeRequest)
    conversation = body.conversation()
    if conversation is None:
        special = None if body.add_special_tokens is not False else False
        tokens = await serving.encode(body.prompt or "", "prompt", add_bos=special)
    else:
        tokens = await serving.encode_chat(
            conversation,
            tools=body.definitions(),
            add_generation_prompt=body.add_generation_prompt is not False,
            continue_final=bool(body.continue_final_message),
            template_kwargs=body.chat_template_kwargs or {},
        )
    pieces = None
    if body.return_token_strs:
        bytes_of = serving.vocabulary.bytes_of
        pieces = [bytes_of(token, skip_special=False).decode(errors="replace") for token in tokens]
    return json_response(
        {
            "count": len(tokens),
            "max_model_len": serving.client.info.capacity.max_model_len,
            "tokens": tokens,
            "token_strs": pieces,
        }
    )


async def detokenize(request: Request) -> Response:
    """The text of token ids, names of control tokens too."""
    serving, body = await read_request(request, DetokenizeRequest)
    size = serving.client.info.capacity.vocab_size
    if len(body.tokens) > _MOST_TOKENS:
        raise InvalidParameter(
            f"tokens has {len(body.tokens)} entries; at most {_MOST_TOKENS} are allowed.", "tokens"
        )
    for place, token in enumerate(body.tokens):
        if not 0 <= token < size:
            raise InvalidParameter(
                f"tokens[{place}] is {token}; this model has the ids 0 to {size - 1}.", f"tokens[{place}]"
            )
    text = serving.vocabulary.join(body.tokens, skip_special=False).decode(errors="replace")
    if serving.tokenizer.drops_leading_space:
        text = text.removeprefix(" ")
    return json_response({"prompt": text})


ROUTES = (
    Route("/tokenize", tokenize, methods=["POST"]),
    Route("/detokenize", detokenize, methods=["POST"]),
)
