"""Fill in the middle: which tokens a vocabulary has for it, and the prompts that they make."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from octavo.text.infill import Infill
from octavo.text.tokenizer import Tokenizer
from octavo.text.vocabulary import TokenType
from tests.models.tiny import CONTROL, MERGES, tiny_tokens
from tests.text.sentencepieces import metadata_of, train


def byte_level(names: tuple[str, ...], kind: TokenType = TokenType.CONTROL, **more: Any) -> Tokenizer:
    tokens = [*tiny_tokens(), *names]
    types = [TokenType.NORMAL] * len(tokens)
    types[: len(CONTROL)] = [TokenType.CONTROL] * len(CONTROL)
    types[len(tokens) - len(names) :] = [kind] * len(names)
    return Tokenizer.from_gguf({
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [int(one) for one in types],
        "tokenizer.ggml.merges": list(MERGES),
        "tokenizer.ggml.bos_token_id": 1,
        **{f"tokenizer.ggml.{name}": value for name, value in more.items()},
    })  # fmt: skip


FIRST = len(tiny_tokens())
QWEN = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_sep|>")


@pytest.mark.parametrize(
    "names",
    [
        QWEN[:3],
        ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
        ("▁<PRE>", "▁<SUF>", "▁<MID>"),
        ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
        ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
    ],
)
def test_a_family_is_known_by_its_names(names: tuple[str, ...]) -> None:
    tokenizer = byte_level(names)
    infill = Infill.of(tokenizer)
    assert infill is not None
    a, b = tokenizer.encode("He"), tokenizer.encode("llo")
    assert infill.prompt(tokenizer, "He", "llo") == [FIRST, *a, FIRST + 1, *b, FIRST + 2]
    assert infill.prompt(tokenizer, [5, 6], "llo", add_bos=True) == [1, FIRST, 5, 6, FIRST + 1, *b, FIRST + 2]


def test_without_a_middle_token_what_comes_after_stands_first() -> None:
    tokenizer = byte_level(("[PREFIX]", "[SUFFIX]"), add_bos_token=True)
    infill = Infill.of(tokenizer)
    assert infill is not None
    ids = infill.prompt(tokenizer, "He", "llo")
    assert ids == [
        1,
        FIRST + 1,
        *tokenizer.encode("llo", add_bos=False),
        FIRST,
        *tokenizer.encode("He", add_bos=False),
    ]


def test_the_file_s_own_word_wins_over_names_and_is_kept(tmp_path: Path) -> None:
    odd: dict[str, Any] = {"fim_pre_token_id": 10, "suffix_token_id": 11, "fim_mid_token_id": 12}
    tokenizer = byte_level(QWEN, **odd)
    tokenizer.save(tmp_path / "tokenizer.json")
    for one in (tokenizer, Tokenizer.load(tmp_path / "tokenizer.json")):
        infill = Infill.of(one)
        assert infill is not None
        assert (infill.prefix, infill.suffix, infill.middle) == (10, 11, 12)


def test_what_begins_something_else_ends_the_answer() -> None:
    infill = Infill.of(byte_level(QWEN))
    assert infill is not None
    assert set(infill.ends) == {FIRST, FIRST + 1, FIRST + 2, FIRST + 3}


@pytest.mark.parametrize("names", [(), QWEN[:2], ("<fim_prefix>", "<|fim_suffix|>", "<fim_middle>")])
def test_a_model_that_was_not_taught_it_has_none(names: tuple[str, ...]) -> None:
    assert Infill.of(byte_level(names)) is None


@pytest.mark.parametrize("kind", [TokenType.CONTROL, TokenType.USER_DEFINED])
def test_what_a_user_wrote_stays_text(kind: TokenType) -> None:
    tokenizer = byte_level(QWEN, kind)
    infill = Infill.of(tokenizer)
    assert infill is not None
    before, after = "a<|fim_suffix|>b<|fim_suffix|>", "<|fim_middle|>c<|im_end|>"
    ids = infill.prompt(tokenizer, before, after)
    places = [i for i, token in enumerate(ids) if token >= FIRST or token in (0, 1, 2)]
    assert [ids[i] for i in places] == [FIRST, FIRST + 1, FIRST + 2]
    assert tokenizer.decode(ids[1 : places[1]]) == before
    assert tokenizer.decode(ids[places[1] + 1 : -1]) == after


def test_sentencepiece_adds_no_space_before_what_comes_after() -> None:
    names = ("▁<PRE>", "▁<SUF>", "▁<MID>")
    metadata = metadata_of(train("bpe")[1], "llama") | {"tokenizer.ggml.add_bos_token": True}
    for name in names:
        metadata["tokenizer.ggml.tokens"].append(name)
        metadata["tokenizer.ggml.scores"].append(0.0)
        metadata["tokenizer.ggml.token_type"].append(int(TokenType.CONTROL))
    tokenizer = Tokenizer.from_gguf(metadata)
    infill = Infill.of(tokenizer)
    assert infill is not None
    ids = infill.prompt(tokenizer, "ab", "ab")
    bos, pre, *first = ids[: ids.index(infill.suffix)]
    last = ids[ids.index(infill.suffix) + 1 : -1]
    assert (bos, pre, ids[-1]) == (tokenizer.bos_id, infill.prefix, infill.middle)
    pieces = tokenizer.vocabulary
    assert (pieces.join(first), pieces.join(last)) == (b" ab", b"ab")
