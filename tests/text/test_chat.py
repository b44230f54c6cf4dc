"""Chat templates: what they render, what they refuse, and what they may not use up."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest
from jinja2 import TemplateError

from octavo.errors import InvalidParameter
from octavo.text import sandbox
from octavo.text.chat import ChatTemplate
from tests.models.tiny import CHAT_TEMPLATE

HELLO = [{"role": "user", "content": "Hello"}]


def render(source: str, messages: Any = HELLO, **kwargs: Any) -> str:
    return ChatTemplate(source, "<s>", "</s>").render(messages, **kwargs)


def test_a_conversation() -> None:
    messages = [*HELLO, {"role": "assistant", "content": "Hi!"}, {"role": "user", "content": "中文 🌶"}]
    assert render(CHAT_TEMPLATE, messages) == (
        "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\nHi!<|im_end|>\n"
        "<|im_start|>user\n中文 🌶<|im_end|>\n<|im_start|>assistant\n"
    )
    assert render(CHAT_TEMPLATE, HELLO, add_generation_prompt=False).endswith("<|im_end|>\n")


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}, "three"]
    assert render("{{ messages[0]['content'] }}", [{"role": "user", "content": parts}]) == "one\ntwo\nthree"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ bos_token }}{{ eos_token }}", "<s></s>"),
        ("{% if tools is none %}no tools{% endif %}", "no tools"),
        ("  {% for m in messages %}\n  {{ m.role }}\n  {% endfor %}\nx", "  user\nx"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{{ {'a': 'é<&>', 'b': [1, none]} | tojson }}", '{"a": "é<&>", "b": [1, null]}'),
        ("{{ [1] | tojson(indent=2) }}", "[\n  1\n]"),
        ("{{ strftime_now('%d %B %Y') }}", "29 February 2024"),
        ("{% generation %}{{ 1 ~ 'b' ~ (2 ~ none) }}{% endgeneration %}", "1b2None"),
        ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "1"),
        ("{% for m in messages %}{{ loop.first }}{{ loop.last }}{{ loop.index0 }}{% endfor %}", "TrueTrue0"),
        ("{{ 'a-b'.replace('-', '+').split('+') | join(', ') }}{{ '|'.join(['x', 'y']) }}", "a, bx|y"),
        ("{{ 'a\nb' | indent(2) }}{{ 'aXX' | replace('X', 'y', 1) }}", "a\n  bayX"),
        ("{{ '-' * 3 }}{{ 7 % 4 }}{{ 2 ** 5 }}", "---332"),
        ("{% macro f(x) %}[{{ x }}]{% endmacro %}{{ f(messages[0].role) }}", "[user]"),
        ("{{ messages | map(attribute='role') | list }}{{ messages | selectattr('x') | list | count }}", "['user']0"),
    ],
)  # fmt: skip
def test_the_dialect(source: str, expected: str) -> None:
    template = ChatTemplate(
        source,
        "<s>",
        "</s>",
        now=lambda: datetime(2024, 2, 29, tzinfo=timezone.utc),  # noqa: UP017
    )
    assert template.render(HELLO) == expected


def test_further_variables_cannot_replace_the_messages() -> None:
    source = "{{ enable_thinking }}{{ messages | length }}{{ bos_token }}"
    assert render(source, enable_thinking=True, bos_token="x") == "True1<s>"


def test_tools_reach_the_template() -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    assert render("{{ tools[0].function.name }}", tools=[tool]) == "f"


def test_a_message_that_only_calls_tools_has_empty_content() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    assert render("{{ messages[1].content + messages[1].tool_calls[0].id }}", [*HELLO, call]) == "1"


@pytest.mark.parametrize(
    ("messages", "param", "message"),
    [
        ([], "messages", "messages is empty"),
        ("Hello", "messages", "must be a list, not str"),
        ({"role": "user"}, "messages", "must be a list, not dict"),
        (["Hello"], "messages[0]", "must be an object"),
        ([{"content": "x"}], "messages[0].role", "must be a name such as 'user', not None"),
        ([*HELLO, {"role": "user"}], "messages[1].content", "must be a string or a list of text parts"),
        ([{"role": "user", "content": 5}], "messages[0].content", "not 5"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
            "messages[0].content[0]",
            "is of type 'image_url'; this model reads only text",
        ),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text", "not None"),
        ([{"role": "user", "content": [None]}], "messages[0].content[0]", "of type None"),
    ],
)
def test_messages_of_another_shape_are_refused(messages: Any, param: str, message: str) -> None:
    with pytest.raises(InvalidParameter, match=message) as caught:
        render(CHAT_TEMPLATE, messages)
    assert caught.value.param == param


@pytest.mark.parametrize("source", [None, ""])
def test_a_model_without_a_template_says_so(source: str | None) -> None:
    with pytest.raises(InvalidParameter, match="has no chat template"):
        ChatTemplate(source).render(HELLO)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "{{ raise_exception('Roles must alternate user/assistant') }}",
            "Roles must alternate user/assistant",
        ),
        ("{{ messages[0].content + 1 }}", "can only concatenate str"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ messages[0].x.y }}", "has no attribute 'x'"),
        ("{% if %}", "cannot be compiled"),
        ("{% break %}", "cannot be compiled"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{% include 'secrets' %}", "no loader"),
    ],
)
def test_a_templates_own_errors_are_told(source: str, message: str) -> None:
    with pytest.raises(InvalidParameter, match=message):
        render(source)


def test_python_is_out_of_reach() -> None:
    assert render("{{ ''.__class__ }}") == ""
    with pytest.raises(InvalidParameter, match="unsafe"):
        render("{{ ''.__class__.__mro__ }}")
    with pytest.raises(InvalidParameter, match="unsafe"):
        render("{{ raise_exception.__globals__['x'] }}")


DOUBLED = "{%% set ns = namespace(x=%s) %%}{%% for i in range(90) %%}{%% set ns.x = %s %%}{%% endfor %%}{{ ns.x %s }}"


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * 1000000000 }}",
        "{{ 1000000000 * 'a' }}",
        "{{ [1] * 1000000000 }}",
        "{{ 10 ** 99999 }}",
        "{{ 9 ** 99999 * 9 ** 99999 }}",
        "{{ '%1000000000d' % 5 }}",
        "{{ 'a'.ljust(1000000000) }}",
        "{{ 'a'.center(1000000000) }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ '{0:{1}}'.format(1, 1000000000) }}",
        "{{ 'a' | center(1000000000) }}",
        "{{ 'a' | indent(1000000000, true) }}",
        "{{ [1] | batch(1000000000, 1) | list }}",
        "{{ [1] | tojson(indent=1000000000) }}",
        "{{ strftime_now('%1000000000Y') }}",
        "{{ ('a' * 100000) | replace('a', 'b' * 100000) }}",
        "{{ ('a' * 100000).replace('a', 'b' * 100000) }}",
        "{{ ('a' * 100000).join(range(99999) | map('string')) }}",
        "{{ range(99999) | join('a' * 100000) }}",
        DOUBLED % ("'aa'", "ns.x + ns.x", ""),
        DOUBLED % ("'aa'", "ns.x ~ ns.x", ""),
        DOUBLED % ("[]", "[ns.x, ns.x]", ""),
        DOUBLED % ("[]", "{1: ns.x, 2: (ns.x, 1)}", "| string | length"),
        DOUBLED % ("[]", "namespace(a=ns.x, b=ns.x)", ""),
        DOUBLED % ("[]", "dict(a=ns.x, b=ns.x)", "| tojson"),
        "{% set x = [] %}" + "{% with x = [x, x] %}" * 40 + "{{ x }}" + "{% endwith %}" * 40,
        "{% for i in range(9999) %}{{ 'a' * 99999 }}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in messages recursive %}{{ loop(messages) }}{{ loop(messages) }}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{{ (5).to_bytes(1000000000, 'big') }}",
        "{{ 5 | round(10000000, 'ceil') }}",
        "{{ range(99999) | list | length }}",
        "{{ (['a' * 99999] * 99999) | sort | length }}",
        "{{ (['a' * 99999] * 20000) | unique | list | length }}",
        "{{ (['a' * 99999] * 20000) | map('upper') | list | length }}",
        "{{ (['a' * 99999] * 20000) | map('upper') | join | length }}",
        "{{ (['a' * 999] * 2000) | map('replace', 'a', 'b' * 999) | list | length }}",
        "{{ ([[1] * 9999] * 20000) | map('tojson') | list | length }}",
        "{{ ([1] * 20000) | select('in', [2] * 20000) | list | length }}",
        "{{ ([['a' * 99999] * 99] * 9999) | join | length }}",
        "{{ ([{'x': 'a' * 99999}] * 9999) | join(attribute='x') }}",
        "{{ ([[1] * 20000] * 20000) | sum(start=[]) | length }}",
        "{{ ([[[1] * 2000] * 2000] * 2000) | string | length }}",
        "{{ [[[1] * 2000] * 2000] * 2000 }}",
        "{{ ([[[1] * 2000] * 2000] * 2000) ~ '' }}",
        "{{ ([1] * 20000) | tojson(separators=('a' * 99999, 'b')) }}",
        "{{ strftime_now('%c' * 99999) | length }}",
        "{% set x %}{% for i in range(99999) %}{{ 'a' * 99999 }}{% endfor %}{% endset %}",
        "{% filter upper %}{% for i in range(99999) %}{{ 'a' * 99999 }}{% endfor %}{% endfilter %}",
        "{% set x %}{% for i in range(9999) %}" + "a" * 99999 + "{% endfor %}{% endset %}",
        "{% macro f() %}{{ caller() }}{{ caller() }}{% endmacro %}"
        + "{% call f() %}" * 19
        + "a" * 99
        + "{% endcall %}" * 19,
        "{{ x }}" * 99999,
    ],
)
def test_no_template_uses_up_memory_or_time(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "MAX_STEPS", 20_000)  # reached sooner than the machine's speed decides
    monkeypatch.setattr(sandbox, "MAX_SECONDS", 600.0)
    with pytest.raises(InvalidParameter) as caught:
        render(source)
    assert isinstance(caught.value.__cause__, (TemplateError, RecursionError))  # and no MemoryError


def test_what_a_filter_would_do_is_not_done_when_the_template_is_compiled() -> None:
    """Jinja computes what is constant beforehand, where nothing counts."""
    template = ChatTemplate(
        "{% if messages[0].content == 'no' %}{{ 'a' | indent(1000000000, true) }}{% endif %}x"
    )
    assert template.render(HELLO) == "x"


def test_a_rendering_in_a_hurry_gives_way() -> None:
    endless = ChatTemplate("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}")
    with pytest.raises(sandbox.Hurried), sandbox.hurry(0.0):
        endless.render(HELLO)
    with sandbox.hurry(600.0):
        assert render(CHAT_TEMPLATE).startswith("<|im_start|>")


def test_large_input_may_make_large_output() -> None:
    content = "a" * (2 * sandbox.MAX_CHARACTERS)
    assert content in render(CHAT_TEMPLATE, [{"role": "user", "content": content}])
    with pytest.raises(InvalidParameter, match="more than"):
        render("{{ messages[0].content * 9 }}", [{"role": "user", "content": content}])


def test_a_slow_template_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "MAX_SECONDS", 0.0)
    with pytest.raises(InvalidParameter, match="runs too long"):
        render("{% for i in range(3) %}{% endfor %}")


def test_a_value_may_hold_itself() -> None:
    source = "{% set ns = namespace(n=1) %}{% set ns.x = ns %}{% set y = ns %}{{ y.x.x.n }}"
    assert render(source) == "1"


def test_limits_count_for_each_rendering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "MAX_STEPS", 12)
    template = ChatTemplate("{% for i in range(10) %}{{ i }}{% endfor %}")
    for _ in range(3):
        assert template.render(HELLO) == "0123456789"


def test_a_long_conversation_is_no_attack() -> None:
    messages = [{"role": "user", "content": "word " * 40}] * 20_000
    assert render(CHAT_TEMPLATE, messages).count("<|im_end|>") == 20_000
