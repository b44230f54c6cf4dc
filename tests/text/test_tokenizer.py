"""Byte-level tokenization: the oracle's ids, every pre-tokenizer, and control tokens that stay out of reach."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from octavo.errors import InvalidParameter, ModelError
from octavo.text.chat import ChatTemplate
from octavo.text.tokenizer import PRE_TOKENIZERS, Tokenizer
from tests.models.tiny import CONTROL, MERGES, tiny_tokens
from tests.text.texts import TEXT


def metadata(pre: str = "smollm", **more: Any) -> dict[str, Any]:
    tokens = tiny_tokens()
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * len(CONTROL) + [1] * (len(tokens) - len(CONTROL)),
        "tokenizer.ggml.merges": list(MERGES),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
    } | {f"tokenizer.ggml.{name}": value for name, value in more.items()}


TINY = {pre: Tokenizer.from_gguf(metadata(pre)) for pre in PRE_TOKENIZERS}


def words(pre: str, text: str) -> list[str]:
    """How the pre-tokenizer cuts a text, seen through a vocabulary in which every wanted word is one token."""
    cut = TINY[pre]._library.pre_tokenizer.pre_tokenize_str(text)
    return [text[start:end] for _, (start, end) in cut]


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
@given(TEXT)
def test_round_trip(pre: str, text: str) -> None:
    tokenizer = TINY[pre]
    ids = tokenizer.encode(text)
    assert tokenizer.vocabulary.join(ids, skip_special=False) == text.encode()
    assert tokenizer.decode(ids) == text
    assert tokenizer.vocabulary.special.isdisjoint(ids)


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
@given(TEXT)
def test_round_trip_with_control_tokens(pre: str, text: str) -> None:
    tokenizer = TINY[pre]
    assert tokenizer.decode(tokenizer.encode(text, allow_special=True), skip_special=False) == text


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        ("gpt-2", "I'm 2024  x\n\n y", ["I", "'m", " 2024", " ", " x", "\n\n", " y"]),
        ("smollm", "in 2024!\n", ["in", " ", "2", "0", "2", "4", "!", "\n"]),
        ("llama-bpe", "I'M 12345\r\n\r\n (ok)", ["I", "'M", " ", "123", "45", "\r\n\r\n", " (", "ok", ")"]),
        ("llama-bpe", "a\tb  c", ["a", "\tb", " ", " c"]),
        ("qwen2", "we'Ve 12?\n\nx", ["we", "'Ve", " ", "1", "2", "?\n\n", "x"]),
        ("default", "a=b 12345, c++", ["a", "=", "b", " ", "123", "45", ",", " c", "++"]),
    ],
)
def test_pre_tokenizers(pre: str, text: str, expected: list[str]) -> None:
    assert words(pre, text) == expected


def test_merges_are_applied_in_order() -> None:
    tokens = tiny_tokens()
    ids = TINY["smollm"].encode("Hello the world")
    assert [tokens[i] for i in ids] == ["Hello", "Ġthe", "Ġworld"]


def test_a_user_cannot_write_a_control_token() -> None:
    tokenizer = TINY["smollm"]
    text = "<|im_end|>\n<|im_start|>the"
    plain = tokenizer.encode(text)
    assert tokenizer.vocabulary.special.isdisjoint(plain)
    assert tokenizer.decode(plain) == text
    rendered = tokenizer.encode(text, allow_special=True)
    assert rendered[0] == 2
    assert rendered[2] == 1
    assert tokenizer.decode(rendered, skip_special=False) == text


def test_no_word_taken_whole_is_a_control_token() -> None:
    """llama-bpe takes a word that is a token without merging: not so when the token is a control token."""
    data = metadata("llama-bpe")
    data["tokenizer.ggml.tokens"] = [*data["tokenizer.ggml.tokens"], "PAD", "Ġwhole"]
    data["tokenizer.ggml.token_type"] = [*data["tokenizer.ggml.token_type"], 3, 1]
    tokenizer = Tokenizer.from_gguf(data)
    pad = tokenizer.vocabulary.size - 2
    assert pad not in tokenizer.encode("PAD")
    assert tokenizer.encode("PAD", allow_special=True) == [pad]
    assert tokenizer.encode(" whole") == [pad + 1]


def test_no_merge_makes_a_control_token() -> None:
    data = metadata()
    data["tokenizer.ggml.tokens"] = [*data["tokenizer.ggml.tokens"], "ab"]
    data["tokenizer.ggml.token_type"] = [*data["tokenizer.ggml.token_type"], 3]
    data["tokenizer.ggml.merges"] = ["a b", *data["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer.from_gguf(data)
    assert tokenizer.decode(tokenizer.encode("ab")) == "ab"


def test_user_defined_tokens_are_found_in_any_text() -> None:
    data = metadata()
    data["tokenizer.ggml.tokens"] = [*data["tokenizer.ggml.tokens"], "<think>", "<think>"]
    data["tokenizer.ggml.token_type"] = [*data["tokenizer.ggml.token_type"], 4, 4]
    tokenizer = Tokenizer.from_gguf(data)
    think = tokenizer.vocabulary.size - 2
    ids = tokenizer.encode("the<think> the")
    assert ids.count(think) == 1
    assert tokenizer.decode(ids) == "the<think> the"


def test_bos() -> None:
    assert TINY["smollm"].encode("the", add_bos=True)[0] == 1
    adding = Tokenizer.from_gguf(metadata(add_bos_token=True))
    assert adding.encode("the")[0] == 1
    assert adding.encode("the", add_bos=False)[0] != 1
    assert adding.encode("<|im_start|>the", allow_special=True).count(1) == 1
    assert adding.encode("") == [1]
    unsaid = metadata("llama-bpe")
    del unsaid["tokenizer.ggml.add_bos_token"]
    assert Tokenizer.from_gguf(unsaid).add_bos
    del unsaid["tokenizer.ggml.bos_token_id"]
    assert not Tokenizer.from_gguf(unsaid).add_bos


@pytest.mark.parametrize("allow_special", [False, True])
def test_lone_surrogates_are_refused(allow_special: bool) -> None:
    with pytest.raises(InvalidParameter, match=r"U\+D83D\) at character 3"):
        TINY["smollm"].encode("abc\ud83d", allow_special=allow_special)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "rwkv"}, "'rwkv'.*known are gpt2, llama, t5"),
        ({"model": None}, "does not say which tokenizer it has .tokenizer.ggml.model."),
        ({"model": [1, 2]}, r"tokenizer is \[1, 2\] .*known are"),
        ({"pre": [1, 2]}, r"pre-tokenizer is \[1, 2\] .*known are"),
        ({"pre": "martian"}, "'martian'.*known are default, gpt-2, smollm, llama-bpe, qwen2"),
        ({"merges": None}, "no merges"),
        ({"merges": ["lonely"]}, "'lonely'.*not two pieces"),
        ({"merges": ["zz yy"]}, "cannot be built"),
        ({"model": "llama"}, "287 tokens but 0 scores"),
        ({"model": "t5", "scores": [0.0] * 287, "token_type": [1] * 287}, "no unknown token"),
        ({"model": "llama", "scores": [0.0] * 287, "tokens": [*tiny_tokens()[:-1], "a" * 2000]}, "2000 char"),
    ],
)
def test_what_cannot_be_built_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        Tokenizer.from_gguf(metadata(**change))


def test_saved_and_loaded_is_equal(tmp_path: Path) -> None:
    for pre, tokenizer in TINY.items():
        tokenizer.save(tmp_path / "tokenizer.json")
        loaded = Tokenizer.load(tmp_path / "tokenizer.json")
        assert loaded.rules == tokenizer.rules
        for text in ("Hello the world", "<|im_start|>user", "12345 ½ 中文", ""):
            for special in (False, True):
                ids = tokenizer.encode(text, allow_special=special)
                assert loaded.encode(text, allow_special=special) == ids, pre
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="cannot be read"):
        Tokenizer.load(tmp_path / "tokenizer.json")


def test_the_oracles_prompts(shared_dir: Path, model_dir: Path) -> None:
    """llama.cpp's ids for texts and rendered chats, and its text for what the model answered."""
    from octavo.models.store import StoredModel

    model = StoredModel.load(model_dir)
    tokenizer = model.tokenizer()
    template = ChatTemplate(model.spec.chat_template, "<|im_start|>", "<|im_end|>")
    for case in json.loads((shared_dir / "oracle" / "smollm2-135m.json").read_text("utf-8")):
        if case["kind"] == "chat":
            ids = tokenizer.encode(template.render(case["prompt"]), allow_special=True)
        else:
            ids = tokenizer.encode(case["prompt"])
        assert ids == case["prompt_ids"]
        assert tokenizer.decode(case["greedy_ids"], skip_special=False) == case["greedy_text"]
