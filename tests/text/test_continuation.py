"""Conversations that go on from ids: nothing is tokenized twice, and nothing is kept that a template rewrites."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.text.chat import ChatTemplate
from octavo.text.continuation import Earlier, Prompt, continued_prompt, shown_ids
from octavo.text.tokenizer import Tokenizer
from tests.models.tiny import CHAT_TEMPLATE
from tests.text.test_tokenizer import TINY

TOKENIZER = TINY["smollm"]
TEMPLATE = ChatTemplate(CHAT_TEMPLATE)
USER = {"role": "user", "content": "Hello"}
NEXT = {"role": "user", "content": "And <|im_end|> then?"}

# Qwen's way: reasoning is written only behind the last user's turn.
REASONING = ChatTemplate(
    "{% set last = namespace(user=0) %}"
    "{% for message in messages %}{% if message.role == 'user' %}"
    "{% set last.user = loop.index0 %}{% endif %}{% endfor %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.reasoning_content and loop.index0 > last.user %}"
    "<think>\n{{ message.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ message.content }}{% for call in message.tool_calls %}<call>{{ call.function.name }}</call>{% endfor %}"
    "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def spelled(text: str) -> list[int]:
    """Every byte its own token: not what the tokenizer makes of it."""
    pieces = TOKENIZER.vocabulary.pieces
    return [pieces.index(bytes([byte])) for byte in text.encode()]


def after(
    answer: list[int],
    *more: dict[str, Any],
    template: ChatTemplate = TEMPLATE,
    message: dict[str, Any] | None = None,
    tokenizer: Tokenizer = TOKENIZER,
    **kwargs: Any,
) -> tuple[Prompt, Prompt]:
    """The first prompt, and the one that follows when `answer` was said to it."""
    first = continued_prompt(tokenizer, template, [USER])
    told = message or {"role": "assistant", "content": tokenizer.decode(answer)}
    earlier = Earlier(1, [*first.ids, *answer], first.digest)
    return first, continued_prompt(tokenizer, template, [USER, told, *more], earlier, **kwargs)


def test_it_goes_on_from_ids_where_text_would_give_others() -> None:
    answer = spelled("Hello the world")
    first, second = after(answer, NEXT)
    assert second.continued
    assert second.ids[: len(first.ids) + len(answer)] == [*first.ids, *answer]
    messages = [USER, {"role": "assistant", "content": "Hello the world"}, NEXT]
    anew = continued_prompt(TOKENIZER, TEMPLATE, messages)
    assert TOKENIZER.decode(second.ids, skip_special=False) == TOKENIZER.decode(anew.ids, skip_special=False)
    assert second.ids != anew.ids  # the counter-example: the answer is spelled in other tokens
    assert second.digest == anew.digest


def test_it_is_what_text_gives_where_the_answer_has_the_tokenizers_tokens() -> None:
    answer = TOKENIZER.encode("Hello the world")
    _, second = after(answer, NEXT)
    messages = [USER, {"role": "assistant", "content": "Hello the world"}, NEXT]
    assert second.continued
    assert second.ids == continued_prompt(TOKENIZER, TEMPLATE, messages).ids


def test_all_is_tokenized_anew_where_something_else_was_asked_before() -> None:
    answer = spelled("Hello")
    first = continued_prompt(TOKENIZER, TEMPLATE, [{"role": "system", "content": "Be brief"}, USER])
    earlier = Earlier(1, [*first.ids, *answer], first.digest)
    messages = [USER, {"role": "assistant", "content": "Hello"}, NEXT]
    second = continued_prompt(TOKENIZER, TEMPLATE, messages, earlier)
    assert not second.continued
    assert second.ids == continued_prompt(TOKENIZER, TEMPLATE, messages).ids


def test_reasoning_that_the_template_leaves_out_is_left_out() -> None:
    answer = spelled("<think>\nHm\n</think>\n\nHello")
    message = {"role": "assistant", "content": "Hello", "reasoning_content": "Hm"}
    _, second = after(answer, NEXT, template=REASONING, message=message)
    assert not second.continued
    assert "Hm" not in TOKENIZER.decode(second.ids)


def test_reasoning_that_the_template_keeps_is_kept() -> None:
    answer = spelled("<think>\nHm\n</think>\n\n<call>f</call>")
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {}}}
    message = {"role": "assistant", "content": "", "reasoning_content": "Hm", "tool_calls": [call]}
    result = {"role": "tool", "content": "5", "tool_call_id": "c"}
    first, second = after(answer, result, template=REASONING, message=message)
    assert second.continued
    assert second.ids[: len(first.ids) + len(answer)] == [*first.ids, *answer]
    assert TOKENIZER.decode(second.ids[len(first.ids) + len(answer) :], skip_special=False) == (
        "<|im_end|>\n<|im_start|>tool\n5<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[-1].content }}",  # forgets what was before
        "{% for m in messages %}{{ loop.length }}{{ m.content }}|{% endfor %}",  # counts
        "{% for m in messages if m.role != 'assistant' %}{{ m.content }}|{% endfor %}",  # leaves answers out
        "{% if messages[-1].role == 'assistant' %}{{ raise_exception('no') }}{% endif %}{{ messages[0].content }}",
    ],
)
def test_a_template_that_rewrites_is_followed(source: str) -> None:
    template = ChatTemplate(source)
    _, second = after(spelled("Hello"), NEXT, template=template)
    messages = [USER, {"role": "assistant", "content": "Hello"}, NEXT]
    assert not second.continued
    assert second.ids == continued_prompt(TOKENIZER, template, messages).ids


@pytest.mark.parametrize("name", sorted(TINY))
def test_every_kind_of_tokenizer_goes_on_as_text_would(name: str) -> None:
    tokenizer = TINY[name]
    text = "Hello world"
    answer = tokenizer.encode(text, add_bos=False)
    _, second = after(answer, NEXT, tokenizer=tokenizer, message={"role": "assistant", "content": text})
    messages = [USER, {"role": "assistant", "content": text}, NEXT]
    anew = continued_prompt(tokenizer, TEMPLATE, messages)
    shown = [tokenizer.decode(ids, skip_special=False) for ids in (second.ids, anew.ids)]
    assert shown[0] == shown[1]


def test_what_a_stop_string_cut_off_is_no_part_of_what_is_shown() -> None:
    tokens = [*spelled("Hel"), *TOKENIZER.encode("lo the world")]
    text = TOKENIZER.decode(tokens)
    for end in range(len(text) + 1):
        ids = shown_ids(TOKENIZER, tokens, text[:end])
        assert ids is not None
        assert TOKENIZER.decode(ids) == text[:end]
        assert ids[: min(end, 3)] == tokens[: min(end, 3)]
