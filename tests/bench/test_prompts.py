"""Bodies of requests: the prompts that a workload means, in the form that a server takes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from octavo.bench.prompts import Bodies, Shape, chat_turns
from octavo.bench.target import OPTIONAL
from octavo.workload.request import WORDS, Part, Request

ASKED, SAID, THEN = Part("a", 4), Part("b", 3, answer_of=0), Part("c", 2)


def request(**more: Any) -> Request:
    fields: dict[str, Any] = {"parts": (ASKED, THEN)} | more
    return Request(index=1, at_s=0.0, session=0, output_tokens=9, seed=5, **fields)


def body(bodies: Bodies, one: Request) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(bodies.body(one))
    return found


def shape(**more: Any) -> Shape:
    fields: dict[str, Any] = {"model": 'm"1', "api": "completions", "prompts": "text"} | more
    return Shape(**fields)


def test_a_made_up_prompt_is_the_workload_s_text_or_ids() -> None:
    assert body(Bodies(shape()), request())["prompt"] == request().prompt_text()
    assert body(Bodies(shape(prompts="ids")), request())["prompt"] == request().token_ids()
    pool = tuple(range(1000, 1040))
    ids = body(Bodies(shape(prompts="ids", token_pool=pool)), request())["prompt"]
    assert [one - 1000 for one in ids] == request().token_ids(vocabulary=40, first=0)


def test_real_prompts_stay_what_they_are() -> None:
    messages = ({"role": "system", "content": "é"}, {"role": "user", "content": "x"})
    chat = shape(api="chat")
    for prompts in ("ids", "text"):
        real = shape(prompts=prompts)
        assert body(Bodies(real), request(parts=(), text="hé"))["prompt"] == "hé"
        assert body(Bodies(real), request(parts=(), ids=(7, 8)))["prompt"] == [7, 8]
        assert body(Bodies(real), request(parts=(), messages=messages))["prompt"] == "é\nx"
    assert body(Bodies(chat), request(parts=(), messages=messages))["messages"] == list(messages)
    assert body(Bodies(chat), request(parts=(), text="x"))["messages"] == [{"role": "user", "content": "x"}]
    [turn] = body(Bodies(chat), request(parts=(), ids=(7, 8)))["messages"]
    assert turn["content"] == f"{WORDS[7]} {WORDS[8]}"


def test_an_answer_stands_where_the_server_s_own_belongs() -> None:
    parts = (ASKED, SAID, THEN)
    texts = Bodies(shape())
    texts.answered(0, ' it "said".', ())
    asked, then = (request(parts=(part,)).prompt_text() for part in (ASKED, THEN))
    assert body(texts, request(parts=parts))["prompt"] == f'{asked} it "said". {then}'
    ids = Bodies(shape(prompts="ids"))
    ids.answered(0, "not used", [70, 71, 72, 73])
    asked_ids, then_ids = (request(parts=(part,)).token_ids() for part in (ASKED, THEN))
    assert body(ids, request(parts=parts))["prompt"] == [*asked_ids, 70, 71, 72, 73, *then_ids]
    chat = Bodies(shape(api="chat"))
    chat.answered(0, "Yes.\n", ())
    assert body(chat, request(parts=parts))["messages"] == [
        {"role": "user", "content": asked},
        {"role": "assistant", "content": "Yes.\n"},
        {"role": "user", "content": then},
    ]
    assert texts.made_up == ids.made_up == chat.made_up == 0


@pytest.mark.parametrize("prompts", ["ids", "text"])
def test_an_answer_that_is_not_known_is_made_up_and_counted(prompts: str) -> None:
    bodies = Bodies(shape(prompts=prompts))
    bodies.answered(0, "", ())
    one = request(parts=(ASKED, SAID, THEN))
    assert body(bodies, one)["prompt"] == (one.token_ids() if prompts == "ids" else one.prompt_text())
    assert bodies.made_up == 1


def test_optional_fields_are_sent_where_they_are_taken() -> None:
    bare = body(Bodies(shape()), request(priority=3, tenant="web"))
    assert bare.keys() == {"model", "stream", "max_tokens", "user", "prompt"}
    assert (bare["model"], bare["stream"], bare["max_tokens"], bare["user"]) == ('m"1', True, 9, "web")
    full = body(Bodies(shape(takes=frozenset(OPTIONAL))), request(priority=3))
    assert full["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert (full["ignore_eos"], full["min_tokens"], full["temperature"]) == (True, 9, 0)
    assert (full["return_token_ids"], full["priority"]) == (True, 3)
    loose = body(Bodies(shape(takes=frozenset(OPTIONAL), exact_output=False)), request())
    assert not {"ignore_eos", "min_tokens", "priority", "user"} & loose.keys()
    extra = (("max_tokens", 5), ("user", None))
    changed = body(Bodies(shape(extra=extra, limit="max_tokens")), request(tenant="web"))
    assert (changed["max_tokens"], changed["user"]) == (5, None)


def test_parts_between_answers_are_one_turn() -> None:
    turns = chat_turns((Part("p", 1), ASKED, SAID, THEN, Part("d", 1)))
    assert [(role, [part.key for part in parts]) for role, parts in turns] == [
        ("user", ["p", "a"]),
        ("assistant", ["b"]),
        ("user", ["c", "d"]),
    ]


def test_what_is_kept_is_bounded_and_what_was_dropped_is_made_again() -> None:
    bodies = Bodies(shape(), kept_bytes=100)
    bodies.answered(0, "#" * 60, ())
    bodies.answered(1, "%" * 60, ())
    prompt = body(bodies, request(parts=(SAID, Part("z", 3, answer_of=1))))["prompt"]
    assert prompt == request(parts=(SAID,)).prompt_text() + "%" * 60
    assert bodies.made_up == 1
    long = request(parts=(Part("long", 500),))
    assert body(bodies, long)["prompt"] == body(bodies, long)["prompt"] == long.prompt_text()


def test_only_what_can_be_followed_is_kept() -> None:
    assert Bodies(shape()).keeps(request()) == "text"
    assert Bodies(shape(prompts="ids")).keeps(request()) == "ids"
    assert Bodies(shape(api="chat", prompts="ids")).keeps(request()) == "text"
    assert Bodies(shape()).keeps(request(parts=(), text="x")) is None
