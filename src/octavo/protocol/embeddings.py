"""OpenAI's embeddings with vLLM's extra fields: the request, and the answer's shape. Knows no tokenizer, no model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, get_args

import msgspec
from msgspec import Meta

from octavo.config import Pooling, ProfileName
from octavo.errors import InvalidParameter
from octavo.protocol.body import Body
from octavo.protocol.bounds import BOUNDS, within
from octavo.protocol.openai import service_of_fields
from octavo.protocol.prompts import PROMPT_SCHEMA, prompts_of
from octavo.protocol.unserved import INERT, REFUSED
from octavo.sampling.vectors import as_base64
from octavo.scheduling.inputs import Service

__all__ = ["MAX_INPUTS", "EmbeddingList", "EmbeddingRequest", "embedding_list"]

MAX_INPUTS = 2048
"""Inputs in one request, as OpenAI has it."""

# What would change the answer if it were served, with the values that ask for nothing. They are of vLLM, and of servers
# that cut what is too long.
_REFUSED: dict[str, tuple[Any, ...]] = {
    **REFUSED,
    "embed_dtype": (None, "float32"),
    "endianness": (None, "native", "little"),
    "messages": (None, []),
    "truncate": (None, False, "NONE"),
    "truncation_side": (None, "left"),
}


class EmbeddingRequest(Body, kw_only=True):
    """POST /v1/embeddings. null means the default, as if the field were not there."""

    inert: ClassVar[frozenset[str]] = INERT
    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = _REFUSED
    instead: ClassVar[Mapping[str, str]] = {"messages": "input", "prompt": "input"}

    input: Annotated[str | list[Any], Meta(extra_json_schema=PROMPT_SCHEMA)]
    timeout: Annotated[float, within("timeout")] | None = None
    """Seconds from the request's arrival to the end of its answer; then it is given up."""
    encoding_format: Annotated[str, Meta(extra_json_schema={"enum": ["float", "base64"]})] | None = None
    """How a vector is written: a list of numbers, or base64 of float32 in little-endian order. The default is float."""
    dimensions: Annotated[int, Meta(extra_json_schema={"minimum": 1})] | None = None
    """Only the first so many numbers of each vector, brought to length 1 again."""
    pooling: Annotated[str, Meta(extra_json_schema={"enum": list(get_args(Pooling))})] | None = None
    """Which hidden states stand for a text: the last token's, or the mean of all. The default is the server's."""
    normalize: bool | None = None
    """false: vectors are not brought to length 1."""
    add_special_tokens: bool | None = None
    """false: no BOS before a text."""
    truncate_prompt_tokens: Annotated[int, within("truncate_prompt_tokens")] | None = None
    """Only the last so many tokens of each input, where it has more."""
    cache_salt: str | None = None
    """Requests with different salts share nothing in the prefix cache."""
    priority: Annotated[int, within("priority")] | None = None
    """A lower number runs earlier; 0 is usual."""
    user: str | None = None
    """Who asks, of those that share an API key: each gets an equal part of the key's share."""
    profile: Annotated[str, Meta(extra_json_schema={"enum": list(get_args(ProfileName))})] | None = None
    """The kind of use, which says what is to be fast; the server's own, if it is not given."""

    def inputs(self) -> list[str] | list[list[int]]:
        """One or more, all texts or all token ids. Raises InvalidParameter."""
        if self.truncate_prompt_tokens is not None:
            BOUNDS["truncate_prompt_tokens"].check("truncate_prompt_tokens", self.truncate_prompt_tokens)
        return prompts_of(self.input, "input", MAX_INPUTS)

    def pooled(self) -> Pooling | None:
        """None is the server's default. Raises InvalidParameter."""
        for pooling in get_args(Pooling):
            if self.pooling == pooling:
                chosen: Pooling = pooling
                return chosen
        if self.pooling is None:
            return None
        raise InvalidParameter(
            f"pooling is {self.pooling[:40]!r}; it is one of {', '.join(get_args(Pooling))}.", "pooling"
        )

    def is_base64(self) -> bool:
        """Raises InvalidParameter for another encoding than the two."""
        if self.encoding_format not in (None, "float", "base64"):
            raise InvalidParameter(
                f"encoding_format is {self.encoding_format[:40]!r}; it is float or base64.", "encoding_format"
            )
        return self.encoding_format == "base64"

    def service(self) -> Service:
        """How soon, and for which user of the key. Raises InvalidParameter."""
        return service_of_fields(self.priority, self.user, self.profile)


class Embedding(msgspec.Struct, forbid_unknown_fields=True):
    """One vector."""

    object: Literal["embedding"]
    index: Annotated[int, Meta(ge=0)]
    """Which input it is of."""
    embedding: list[float] | str


class EmbeddingUsage(msgspec.Struct, forbid_unknown_fields=True):
    prompt_tokens: int
    total_tokens: int


class EmbeddingList(msgspec.Struct, forbid_unknown_fields=True):
    """The answer of /v1/embeddings."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


def embedding_list(
    vectors: list[list[float]], model: str, prompt_tokens: int, *, base64: bool
) -> EmbeddingList:
    """The answer, vectors in the order of their inputs."""
    data = [
        Embedding("embedding", index, as_base64(vector) if base64 else vector)
        for index, vector in enumerate(vectors)
    ]
    return EmbeddingList("list", data, model, EmbeddingUsage(prompt_tokens, prompt_tokens))
