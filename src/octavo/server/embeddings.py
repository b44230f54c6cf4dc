"""The route that turns texts into vectors, and `embed`, which other APIs' routes call too. Knows no arithmetic."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from octavo.config import Pooling
from octavo.protocol.embeddings import EmbeddingList, EmbeddingRequest, embedding_list
from octavo.protocol.errors import RequestRefused
from octavo.protocol.prompts import is_several
from octavo.sampling.params import EMBEDDING
from octavo.sampling.vectors import check_dimensions, finished
from octavo.scheduling.inputs import ORDINARY, Service
from octavo.server.admission import Cost
from octavo.server.answer import failure_of
from octavo.server.deadlines import in_time
from octavo.server.document import Operation
from octavo.server.in_process import PROFILE
from octavo.server.replies import read_request
from octavo.server.request_note import note_of
from octavo.server.running import TARGET_HEADERS, cache_salt_of, service_of
from octavo.server.serving import Serving
from octavo.server.streaming import while_connected

__all__ = ["BODIES", "OPERATIONS", "ROUTES", "Embedded", "embed"]

BODIES = {"/v1/embeddings": EmbeddingRequest}
"""What a route reads by itself, for the OpenAPI document."""
OPERATIONS = {
    "/v1/embeddings": Operation(
        reply=EmbeddingList, headers=TARGET_HEADERS, example={"input": ["An octavo is a book."]}
    )
}
"""The rest of what that document says of them."""


class Embedded(NamedTuple):
    """What came of some prompts."""

    vectors: list[list[float]]
    """In the order of the prompts; each number is one that float32 holds."""
    prompt_tokens: int


@in_time
async def create_embeddings(request: Request) -> Response:
    """The vectors of one or more texts: the model's final hidden states, of the last token or the mean of all."""
    serving, body = await read_request(request, EmbeddingRequest)
    base64, pooling, service, inputs = body.is_base64(), body.pooled(), body.service(), body.inputs()
    check_dimensions(body.dimensions, serving.embedding_width)
    embedded = await embed(
        request,
        serving,
        inputs,
        names=[f"input[{i}]" for i in range(len(inputs))] if is_several(body.input) else ["input"],
        pooling=pooling,
        dimensions=body.dimensions,
        normalize=body.normalize is not False,
        add_special_tokens=body.add_special_tokens is not False,
        service=service,
        cache_salt=body.cache_salt,
        most_tokens=body.truncate_prompt_tokens,
    )
    answer = embedding_list(
        embedded.vectors, body.model or serving.model_name, embedded.prompt_tokens, base64=base64
    )
    return Response(msgspec.json.encode(answer), media_type="application/json")


async def embed(
    request: Request,
    serving: Serving,
    prompts: Sequence[str | list[int]],
    *,
    names: Sequence[str],
    pooling: Pooling | None = None,
    dimensions: int | None = None,
    normalize: bool = True,
    add_special_tokens: bool = True,
    service: Service = ORDINARY,
    cache_salt: str | None = None,
    most_tokens: int | None = None,
) -> Embedded:
    """The vectors of texts, in which control tokens may be named, or of token ids.

    `names`: each one's, for errors. `pooling`: None is the server's default. `dimensions`: all where None, and checked
    before (`check_dimensions`). `most_tokens`: of a longer prompt, the last ones. `service` holds what the body says;
    whose request it is, is filled in here. When the client leaves, the rest is not computed. Raises InvalidParameter,
    CapacityError, Overloaded, RequestRefused or ServerError.
    """
    service = service_of(request, serving, service)
    capacity = serving.client.info.capacity
    ids: list[list[int]] = []
    for name, prompt in zip(names, prompts, strict=True):
        if isinstance(prompt, str):
            prompt = await serving.encode(prompt, name, add_bos=None if add_special_tokens else False)
        prompt = serving.shorten(prompt, most_tokens)
        capacity.check(prompt, EMBEDDING, name)
        ids.append(prompt)
    ticket = serving.admission.take(
        request.scope,
        Cost.of(ids, EMBEDDING, capacity.max_model_len),
        slack=service.profile == "batch",
        within=PROFILE in request.scope,
    )
    engine_id = f"embd-{uuid.uuid4().hex}"
    places = {f"{engine_id}-{place}": place for place in range(len(ids))}
    note = note_of(request.scope)
    note.engine_id, note.prompt_tokens = engine_id, sum(map(len, ids))
    outputs = serving.client.generate_all(
        [(name, prompt, EMBEDDING) for name, prompt in zip(places, ids, strict=True)],
        cache_salt=cache_salt_of(request, cache_salt),
        service=service,
        pooling=pooling or serving.pooling,
    )
    vectors: list[list[float]] = [[] for _ in ids]
    async with while_connected(outputs, request.receive):
        async for output in outputs:
            if error := failure_of(output, serving):
                raise error
            ticket.arrived(places[output.request_id], 0)
            vectors[places[output.request_id]] = finished(output.vector, dimensions, normalize=normalize)
    if outputs.abandoned:
        raise RequestRefused(499, "The client left before its vectors were computed.")
    return Embedded(vectors, sum(map(len, ids)))


ROUTES = (Route("/v1/embeddings", create_embeddings, methods=["POST"]),)
