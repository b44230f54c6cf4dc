"""Chat templates that refuse, that write a BOS, and that are not there, over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo.models.store import open_model
from tests.models.tiny import CHAT_TEMPLATE, write_tiny_llama
from tests.server.conftest import Server
from tests.server.test_chat import USER, chat
from tests.server.test_errors import error_of

STRICT = (
    "{{ bos_token }}{% if messages[0].content == 'bad' %}{{ raise_exception('Roles must alternate.') }}{% endif %}"
    "{% if messages[0].content == 'odd' %}{{ messages[7].content }}{% endif %}"
    "{% if messages[0].content == 'long' %}{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}"
    "{% endfor %}{% endif %}"
) + CHAT_TEMPLATE


def served(folder: Path, template: str | None) -> Server:
    metadata: dict[str, Any] = {"tokenizer.chat_template": template, "tokenizer.ggml.add_bos_token": True}
    model = open_model(
        write_tiny_llama(folder / "tiny.gguf", metadata=metadata), cache=folder / "store", packed=False
    )
    return Server({"model_dir": str(model.dir), "backend": "reference", "num_blocks": 40})


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = served(tmp_path_factory.mktemp("strict"), STRICT)
    yield server
    assert server.stop() == 0


def test_a_template_s_error_is_told_with_its_text(strict: Server) -> None:
    """Case 31."""
    for content, words in (("bad", "Roles must alternate."), ("odd", "template")):
        body = {"messages": [{"role": "user", "content": content}]}
        error = error_of(strict.post("/v1/chat/completions", **body), 400)
        assert words in error["message"]
        assert error["type"] == "invalid_request_error"
    assert chat(strict)["choices"]


def test_a_template_without_end_is_the_request_s_error_and_others_go_on(strict: Server) -> None:
    """Case 31: on the event loop it gets a hundredth of a second, and its time elsewhere."""
    with strict.client.stream(
        "POST",
        "/v1/completions",
        json={"prompt": "Hello", "max_tokens": 400, "ignore_eos": True, "stream": True},
    ) as stream:
        lines = stream.iter_lines()
        assert next(lines).startswith("data: ")
        body = {"messages": [{"role": "user", "content": "long"}]}
        assert "runs too long" in error_of(strict.post("/v1/chat/completions", **body), 400)["message"]
        assert list(lines)[-2] == "data: [DONE]"


def test_a_bos_is_not_doubled(strict: Server) -> None:
    """Case 31: by the template and by the model's own rule."""
    ids = chat(strict, return_token_ids=True, add_special_tokens=True)["prompt_token_ids"]
    assert ids[0] == 1
    assert ids == strict.post("/tokenize", messages=[USER]).json()["tokens"]
    written = strict.complete(prompt="<|im_start|>Hello", max_tokens=1, return_token_ids=True)
    assert written["choices"][0]["prompt_token_ids"].count(1) == 1


def test_what_is_cut_keeps_its_bos(strict: Server) -> None:
    body = {"prompt": "Hello world and the world", "max_tokens": 1, "return_token_ids": True}
    whole = strict.complete(**body)["choices"][0]["prompt_token_ids"]
    cut = strict.complete(**body, truncate_prompt_tokens=3)["choices"][0]["prompt_token_ids"]
    assert cut == [1, *whole[-2:]]
    assert strict.complete(**body, truncate_prompt_tokens=1)["choices"][0]["prompt_token_ids"] == whole[-1:]


def test_a_model_without_a_template_says_so(tmp_path: Path) -> None:
    """Case 31."""
    server = served(tmp_path, None)
    error = error_of(server.post("/v1/chat/completions", messages=[USER]), 400)
    assert "no chat template" in error["message"]
    server.complete(prompt="Hello", max_tokens=1)
    assert server.stop() == 0
