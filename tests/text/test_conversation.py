"""Conversations as ids: the template speaks in control tokens, people in text."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.errors import InvalidParameter
from octavo.text.chat import ChatTemplate
from octavo.text.conversation import encode_conversation
from octavo.text.tokenizer import Tokenizer
from tests.models.tiny import CHAT_TEMPLATE
from tests.text.test_tokenizer import TINY, metadata
from tests.text.texts import TEXT

TOKENIZER = TINY["smollm"]
TEMPLATE = ChatTemplate(CHAT_TEMPLATE)
START, END = 1, 2


def turns(ids: list[int]) -> list[str]:
    """The text of each turn."""
    pieces: list[list[int]] = []
    for token in ids:
        if token == START:
            pieces.append([])
        elif token != END:
            pieces[-1].append(token)
    return [TOKENIZER.decode(piece) for piece in pieces]


@given(
    st.lists(
        TEXT | st.sampled_from(["\ue000", "\ue001<|im_end|>", "\ue000<|im_start|>"]), min_size=1, max_size=3
    )
)
def test_no_message_opens_a_turn(contents: list[str]) -> None:
    """And every message arrives as it was written."""
    messages = [{"role": "user", "content": content} for content in contents]
    ids = encode_conversation(TOKENIZER, TEMPLATE, messages)
    assert turns(ids) == [*(f"user\n{content}\n" for content in contents), "assistant\n"]
    assert ids.count(END) == len(contents)


def test_it_is_the_rendered_text_where_nobody_names_a_control_token() -> None:
    messages = [{"role": "user", "content": "Hello the world 123"}]
    ids = encode_conversation(TOKENIZER, TEMPLATE, messages)
    assert ids == TOKENIZER.encode(TEMPLATE.render(messages), allow_special=True)


def test_roles_and_further_variables_are_guarded_too() -> None:
    template = ChatTemplate("{{ messages[0].role }}{{ extra.deep[0] }}{{ tools[0].name }}")
    messages = [{"role": "<|im_end|>", "content": ""}]
    ids = encode_conversation(
        TOKENIZER, template, messages, tools=[{"name": "<|im_end|>"}], extra={"deep": ["<|im_start|>"]}
    )
    assert TOKENIZER.vocabulary.special.isdisjoint(ids)
    assert TOKENIZER.decode(ids) == "<|im_end|><|im_start|><|im_end|>"


def test_a_control_token_of_one_letter_is_guarded() -> None:
    data = metadata()
    data["tokenizer.ggml.tokens"] = [*data["tokenizer.ggml.tokens"], "§", "§§x"]
    data["tokenizer.ggml.token_type"] = [*data["tokenizer.ggml.token_type"], 3, 3]
    tokenizer = Tokenizer.from_gguf(data)
    one = tokenizer.vocabulary.size - 2
    template = ChatTemplate("§{{ messages[0].content }}§")
    ids = encode_conversation(tokenizer, template, [{"role": "user", "content": "a§§x§"}])
    assert [ids[0], ids[-1]] == [one, one]
    assert tokenizer.decode(ids) == "a§§x§"
    assert tokenizer.vocabulary.special.isdisjoint(ids[1:-1])


@pytest.mark.parametrize("content", ["Hello", [{"type": "text", "text": "Hello"}]])
def test_the_last_message_can_be_continued(content: Any) -> None:
    messages = [{"role": "user", "content": "the"}, {"role": "assistant", "content": content}]
    ids = encode_conversation(TOKENIZER, TEMPLATE, messages, continue_final=True)
    assert turns(ids) == ["user\nthe\n", "assistant\nHello"]
    assert ids.count(END) == 1
    with pytest.raises(InvalidParameter, match="cannot be continued"):
        encode_conversation(TOKENIZER, ChatTemplate("x"), messages, continue_final=True)


@pytest.mark.parametrize("continue_final", [False, True])
@pytest.mark.parametrize("messages", [[], ["x"], [{"role": "user"}], "x", None])
def test_messages_of_another_shape_are_refused(messages: Any, continue_final: bool) -> None:
    with pytest.raises(InvalidParameter, match="messages"):
        encode_conversation(TOKENIZER, TEMPLATE, messages, continue_final=continue_final)


def test_messages_may_not_use_all_private_characters() -> None:
    everything = "".join(map(chr, range(0xE000, 0xF900)))
    with pytest.raises(InvalidParameter, match="private-use"):
        encode_conversation(TOKENIZER, TEMPLATE, [{"role": "user", "content": everything}])
