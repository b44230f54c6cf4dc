"""`suffix` of /v1/completions: filling in the middle, on a tiny model whose vocabulary has the tokens for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from octavo.models.store import open_model
from octavo.text.infill import Infill
from tests.models.tiny import tiny_tokens, write_tiny_llama
from tests.server.conftest import Server
from tests.server.test_completions import joined
from tests.server.test_errors import error_of

NAMES = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]
FIRST = len(tiny_tokens())


@pytest.fixture(scope="module")
def filler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Any]]:
    """The server, and its model's tokenizer."""
    folder = tmp_path_factory.mktemp("infill")
    tokens = [*tiny_tokens(), *NAMES]
    types = [3, 3, 3, *[1] * (len(tokens) - 6), 3, 3, 3]
    metadata = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
    path = write_tiny_llama(folder / "tiny.gguf", metadata=metadata)
    model = open_model(path, cache=folder / "store", packed=False)
    server = Server({"model_dir": str(model.dir), "backend": "reference", "num_blocks": 200})
    yield server, model.tokenizer()
    assert server.stop() == 0


def test_the_answer_is_that_of_the_same_ids(filler: tuple[Server, Any]) -> None:
    server, tokenizer = filler
    infill = Infill.of(tokenizer)
    assert infill is not None
    same = {"seed": 3, "max_tokens": 20, "logprobs": 1}
    for before, after in (("Hello", "world"), ("a<|fim_middle|>", "<|fim_suffix|>b"), ("", "the end")):
        filled = server.complete(prompt=before, suffix=after, **same)
        ids = infill.prompt(tokenizer, before, after)
        assert [token for token in ids if token >= FIRST] == [infill.prefix, infill.suffix, infill.middle]
        plain = server.complete(prompt=ids, stop_token_ids=list(infill.ends), **same)
        assert filled["choices"] == plain["choices"]
        assert filled["usage"]["prompt_tokens"] == len(ids)


def test_lists_ids_children_and_streams(filler: tuple[Server, Any]) -> None:
    server, tokenizer = filler
    body = {"suffix": "world", "seed": 5, "max_tokens": 12, "n": 2}
    prompts = ["Hello", " the"]
    whole = server.complete(prompt=prompts, **body)
    texts = {choice["index"]: choice["text"] for choice in whole["choices"]}
    assert len(texts) == 4
    assert joined(server.events("/v1/completions", prompt=prompts, **body)) == texts
    as_ids = server.complete(prompt=[tokenizer.encode(prompt) for prompt in prompts], **body)
    assert as_ids["choices"] == whole["choices"]


def test_a_token_that_begins_something_else_ends_it(filler: tuple[Server, Any]) -> None:
    server, _ = filler
    forced = {"logit_bias": {str(FIRST): 100}, "max_tokens": 3, "prompt": "a", "suffix": "b"}
    [choice] = server.complete(**forced)["choices"]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("", "stop", FIRST)
    [choice] = server.complete(**forced, ignore_eos=True)["choices"]
    assert choice["finish_reason"] == "length"


def test_what_cannot_be_is_refused(filler: tuple[Server, Any], server: Server) -> None:
    error = error_of(filler[0].post("/v1/completions", prompt="a", suffix="b", echo=True), 400)
    assert (error["param"], "leave one out" in error["message"]) == ("echo", True)
    error = error_of(filler[0].post("/v1/completions", prompt="a", suffix="b" * 100_000), 400)
    assert error["param"] == "suffix" or error["code"] == "context_length_exceeded"
    error = error_of(server.post("/v1/completions", prompt="a", suffix="b"), 400)
    assert error["param"] == "suffix"
    assert "no tokens to fill in the middle" in error["message"]


def test_an_empty_suffix_is_none(server: Server) -> None:
    same = {"prompt": "Hello", "seed": 1, "max_tokens": 8}
    assert server.complete(**same, suffix="")["choices"] == server.complete(**same)["choices"]
    error_of(server.post("/v1/completions", prompt="", suffix=""), 400)
