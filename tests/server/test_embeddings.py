"""/v1/embeddings over HTTP and through the `openai` client, on the tiny model."""

from __future__ import annotations

import base64
import threading
from typing import Any

import httpx2
import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from octavo.llm import LLM
from octavo.protocol.embeddings import EmbeddingList
from tests.server.conftest import Server

WIDTH = 128
"""Of the tiny model."""
TEXTS = ["Hello world", "the", "An octavo is a book of folded sheets. " * 5]


def embed(server: Server, given: Any, **own: Any) -> dict[str, Any]:
    response = server.post("/v1/embeddings", input=given, **own)
    assert response.status_code == 200, response.text
    msgspec.json.decode(response.content, type=EmbeddingList)  # has the documented shape
    answer: dict[str, Any] = response.json()
    assert [one["index"] for one in answer["data"]] == list(range(len(answer["data"])))
    return answer


def vectors(server: Server, given: Any, **own: Any) -> list[list[float]]:
    return [one["embedding"] for one in embed(server, given, **own)["data"]]


def tokens_of(server: Server, text: str) -> list[int]:
    ids: list[int] = server.post("/tokenize", prompt=text).json()["tokens"]
    return ids


def length(vector: list[float]) -> float:
    return float(np.linalg.norm(np.array(vector)))


def decoded(text: str) -> NDArray[np.float32]:
    return np.frombuffer(base64.b64decode(text), "<f4")


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_lists_keep_their_order_and_equal_single_texts(server: Server, pooling: str) -> None:
    together = vectors(server, TEXTS, pooling=pooling)
    assert together == [vectors(server, text, pooling=pooling)[0] for text in TEXTS]
    assert vectors(server, TEXTS[::-1], pooling=pooling) == together[::-1]
    assert len({tuple(one) for one in together}) == 3
    assert all(len(one) == WIDTH and length(one) == pytest.approx(1, abs=1e-6) for one in together)


def test_token_ids_are_texts(server: Server) -> None:
    ids = [tokens_of(server, text) for text in TEXTS]
    assert vectors(server, ids) == vectors(server, TEXTS)
    assert vectors(server, ids[0]) == vectors(server, TEXTS[:1])


def test_usage_and_model(server: Server) -> None:
    answer = embed(server, TEXTS, model="tiny", user="u", priority=3)
    count = sum(len(tokens_of(server, text)) for text in TEXTS)
    assert answer["usage"] == {"prompt_tokens": count, "total_tokens": count}
    assert (answer["object"], answer["model"]) == ("list", "tiny")


def test_last_is_the_default(server: Server) -> None:
    assert vectors(server, TEXTS) == vectors(server, TEXTS, pooling="last")
    assert vectors(server, TEXTS, pooling=None) != vectors(server, TEXTS, pooling="mean")


@pytest.mark.parametrize("own", [{}, {"dimensions": 7}, {"normalize": False, "pooling": "mean"}])
def test_base64_has_the_same_numbers(server: Server, own: dict[str, Any]) -> None:
    plain = vectors(server, TEXTS, encoding_format="float", **own)
    coded = embed(server, TEXTS, encoding_format="base64", **own)
    assert [decoded(one["embedding"]).tolist() for one in coded["data"]] == plain


def test_dimensions_are_the_first_ones_at_length_1(server: Server) -> None:
    raw = vectors(server, TEXTS, normalize=False)
    assert all(length(one) != pytest.approx(1, abs=1e-3) for one in raw)
    assert vectors(server, TEXTS, normalize=False, dimensions=5) == [one[:5] for one in raw]
    for n in (1, 5, WIDTH):
        for whole, cut in zip(raw, vectors(server, TEXTS, dimensions=n), strict=True):
            assert np.abs(np.array(cut) - np.array(whole[:n]) / length(whole[:n])).max() < 1e-6


def test_a_bos_can_be_left_out(server: Server) -> None:
    ids = tokens_of(server, TEXTS[0])
    bare = server.post("/tokenize", prompt=TEXTS[0], add_special_tokens=False).json()["tokens"]
    assert vectors(server, TEXTS[0], add_special_tokens=False) == vectors(server, bare)
    assert vectors(server, TEXTS[0], add_special_tokens=True) == vectors(server, ids)


def test_what_is_too_long_can_be_shortened(server: Server) -> None:
    ids = tokens_of(server, TEXTS[2])
    assert vectors(server, TEXTS, truncate_prompt_tokens=20)[2] == vectors(server, ids[-20:])[0]
    assert embed(server, [70] * 600, truncate_prompt_tokens=512)["usage"]["prompt_tokens"] == 512


def test_the_longest_text_that_fits(server: Server) -> None:
    assert embed(server, [70] * 512)["usage"]["prompt_tokens"] == 512
    response = server.post("/v1/embeddings", input=[[70], [70] * 513])
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "context_length_exceeded"), error
    assert error["param"] == "input"
    assert "513" in error["message"] and "512" in error["message"] and "input[1]" in error["message"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": [[]]}, "input[0]"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": ["a", [5]]}, "input[1]"),
        ({"input": [1, "a"]}, "input[0]"),
        ({"input": [1, -1]}, "input"),
        ({"input": [[1], [5, 10**6]]}, "input[1]"),
        ({"input": {"text": "a"}}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": "a" * 1_000_000}, "input"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": WIDTH + 1}, "dimensions"),
        ({"input": "a", "dimensions": 2.5}, "dimensions"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "encoding_format": "bytes"}, "encoding_format"),
        ({"input": "a", "pooling": "cls"}, "pooling"),
        ({"input": "a", "normalize": "yes"}, "normalize"),
        ({"input": "a", "priority": 10**9}, "priority"),
        ({"input": "a", "profile": "fast"}, "profile"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"input": "a", "truncation_side": "right"}, "truncation_side"),
        ({"input": "a", "messages": [{"role": "user", "content": "a"}]}, "messages"),
        ({"input": "a", "embed_dtype": "float16"}, "embed_dtype"),
    ],
)
def test_what_is_refused(server: Server, body: dict[str, Any], param: str) -> None:
    response = server.post("/v1/embeddings", **body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param, error
    assert error["message"].endswith(".")


def test_another_models_name(server: Server) -> None:
    assert server.post("/v1/embeddings", input="a", model="other").status_code == 404


def test_fields_that_ask_for_nothing(server: Server) -> None:
    own = {"truncate_prompt_tokens": None, "embed_dtype": "float32", "endianness": "native", "messages": None}
    assert vectors(server, "a", **own) == vectors(server, "a")


@pytest.mark.parametrize("own", [{}, {"encoding_format": "float"}, {"encoding_format": "base64"}])
def test_the_openai_client(server: Server, own: dict[str, Any]) -> None:
    """It asks for base64 by itself, and gives numbers."""
    with server.openai() as client:
        answer = client.embeddings.create(model="tiny", input=TEXTS, dimensions=12, **own)
    got: list[Any] = [one.embedding for one in answer.data]
    if own.get("encoding_format") == "base64":
        got = [decoded(text).tolist() for text in got]
    assert got == vectors(server, TEXTS, dimensions=12)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens > 0


def test_beside_answers(server: Server) -> None:
    """Vectors and streams of answers in the same steps: neither changes."""
    body = {"prompt": "Hello", "max_tokens": 60, "seed": 3, "ignore_eos": True}
    text, expected = server.complete(**body)["choices"][0]["text"], vectors(server, TEXTS, pooling="mean")
    texts: list[str] = []
    streams = [
        threading.Thread(target=lambda: texts.append(server.complete(**body)["choices"][0]["text"]))
        for _ in range(4)
    ]
    for stream in streams:
        stream.start()
    found = [vectors(server, TEXTS, pooling="mean") for _ in range(5)]
    for stream in streams:
        stream.join()
    assert found == [expected] * 5 and texts == [text] * 4


def test_a_client_that_leaves(server: Server) -> None:
    """What it asked for is dropped, and its blocks are free."""
    before = server.metrics()['vllm:request_success_total{finished_reason="abort"}']
    with pytest.raises(httpx2.ReadTimeout):
        server.client.post("/v1/embeddings", json={"input": [[n] * 500 for n in range(3, 250)]}, timeout=0.3)
    server.until_idle()
    name = 'vllm:request_success_total{finished_reason="abort"}'
    assert server.metrics()[name] > before + 50


def test_equal_to_the_library(server: Server, tiny_model_path: Any) -> None:
    with LLM(tiny_model_path, backend="reference", num_blocks=200) as llm:
        for pooling in ("mean", "last"):
            outputs = llm.embed(TEXTS, pooling=pooling, dimensions=9)
            assert [one.embedding for one in outputs] == vectors(server, TEXTS, pooling=pooling, dimensions=9)
