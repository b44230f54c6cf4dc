"""What is asked of a server before a run, and what is said of one that cannot be measured: one clear sentence."""

from __future__ import annotations

import re
import socket
from typing import Any

import pytest

from octavo.bench.target import OPTIONAL, Target, discover
from octavo.errors import BenchError
from octavo.workload.request import WORDS
from tests.bench.scripted import (
    DONE,
    Answers,
    Asked,
    Hang,
    Reply,
    Script,
    ScriptedServer,
    Step,
    error_reply,
    in_virtual_time,
    json_reply,
    models_reply,
    scripted,
)

USUAL = set(OPTIONAL) - {"priority"}


def found(script: Script, *, path: str = "", **options: Any) -> tuple[Target, ScriptedServer]:
    async def main() -> tuple[Target, ScriptedServer]:
        async with scripted(script) as server:
            return await discover(server.url + path, **options), server

    return in_virtual_time(main)


def refused(script: Script, **options: Any) -> str:
    """The sentence, with SERVER for its URL."""

    async def main() -> str:
        async with scripted(script) as server:
            with pytest.raises(BenchError) as error:
                await discover(server.url, **options)
            return str(error.value).replace(server.url, "SERVER")

    message = in_virtual_time(main)
    assert message.endswith((".", "?")) and "\n" not in message
    return message


def test_a_server_that_takes_everything() -> None:
    target, server = found(Answers(token_ids=True, models=("m1", "m2")), path="/v1/")
    assert (target.model, target.api, target.prompts) == ("m1", "completions", "ids")
    assert target.shape.takes == USUAL
    assert target.notes == ()
    assert target.url == server.url
    assert [asked.path for asked in server.asked] == [
        "/v1/models",
        "/v1/completions",
        "/tokenize",
        "/tokenize",
        "/v1/completions",
    ]
    assert server.of("/v1/completions")[1].body["prompt"] == [256, 31_999]


def test_conversations_are_asked_of_the_chat_and_so_is_a_server_without_completions() -> None:
    assert found(Answers(), messages=True)[0].api == "chat"
    assert found(Answers(completions=False))[0].api == "chat"
    assert found(Answers(), api="chat")[0].prompts == "text"


def test_a_field_that_the_server_refuses_is_left_out_and_told() -> None:
    target, _ = found(Answers(refuses=frozenset({"ignore_eos", "continuous_usage_stats"})))
    assert target.shape.takes == USUAL - {"ignore_eos", "continuous_usage_stats"}
    assert target.notes[0] == (
        "The server refuses continuous_usage_stats, ignore_eos; the fields are left out."
    )
    assert target.options()["takes"] == sorted(target.shape.takes)


def test_priorities_are_asked_about_where_the_workload_has_some() -> None:
    assert found(Answers(), priorities=True)[0].shape.takes == set(OPTIONAL)
    deaf = Answers(refuses=frozenset({"priority"}))
    assert found(deaf)[0].notes[:1] != ("The server refuses priority; the fields are left out.",)
    target, _ = found(deaf, priorities=True)
    assert target.shape.takes == USUAL
    assert target.notes[0] == "The server refuses priority; the fields are left out."


def test_fields_that_are_taken_one_by_one_but_not_together_are_all_left_out() -> None:
    usual = Answers()

    def script(asked: Asked) -> Reply:
        if {"ignore_eos", "min_tokens"} <= asked.body.keys():
            return error_reply(422, "one of them")
        return usual(asked)

    assert found(script)[0].shape.takes == frozenset()


def test_a_server_that_knows_only_max_completion_tokens() -> None:
    target, server = found(Answers(refuses=frozenset({"max_tokens"})), api="chat")
    assert target.shape.limit == "max_completion_tokens"
    assert server.asked[-1].body["max_completion_tokens"] == 3


def test_a_server_that_counts_no_tokens_is_told() -> None:
    target, _ = found(Answers(usage=False))
    assert "The server gives no counts of tokens with its streams." in target.notes
    assert target.prompts == "text"


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (Answers(ids=False), "the server refuses them (prompt must be a string)"),
        (Answers(input_tokens=3), "of 2 the server counts 3"),
        (
            Answers(usage=False),
            "the server gives no count of a prompt's tokens, which would show that it takes them",
        ),
    ],
)
def test_token_ids_that_are_not_taken_or_not_counted(script: Answers, reason: str) -> None:
    target, _ = found(script)
    assert target.prompts == "text"
    assert target.notes[-1] == f"Prompts are texts of common words and not token ids: {reason}."
    if "no count" not in reason:
        assert refused(script, prompts="ids") == f"Prompts as token ids were asked for, but {reason}."


@pytest.mark.parametrize("field", ["prompt", "content"])
def test_ids_of_common_words_are_used_where_the_server_tells_them(field: str) -> None:
    usual = Answers()

    def script(asked: Asked) -> Reply:
        if asked.path != "/tokenize":
            return usual(asked)
        if field not in asked.body:  # llama.cpp passes over what it does not know
            return json_reply({"tokens": []})
        assert asked.body.get("model") == ("scripted" if field == "prompt" else None)
        words = asked.body[field].split()
        return json_reply({"tokens": [7 * WORDS.index(word) + 5 for word in words], "count": len(words)})

    target, server = found(script)
    assert target.shape.token_pool == tuple(dict.fromkeys(7 * WORDS.index(word) + 5 for word in WORDS))
    assert server.of("/v1/completions")[-1].body["prompt"] == [5 + 7 * one for one in range(8)]


def test_the_key_is_sent_and_never_told() -> None:
    def script(asked: Asked) -> Reply:
        if asked.headers.get("authorization") != "Bearer secret-7":
            said = asked.headers.get("authorization", "nothing")
            return error_reply(401, f"Incorrect key: {said}")
        return Answers()(asked)

    target, _ = found(script, key="secret-7")
    assert "secret-7" not in repr(target)
    assert "secret-7" not in str(target.options())
    assert refused(script) == (
        "SERVER answers 401: it wants an API key, and none was given (Incorrect key: nothing)."
    )
    message = refused(script, key="wrong-8")
    assert (
        message == "SERVER answers 401: the key that was given is not accepted (Incorrect key: Bearer ***)."
    )


MOVED = Reply((), 308, framing="length", headers=(("location", "https://elsewhere/x/v1/models"),))
HTML = Reply([Step(0.0, b"<html><body>Welcome!</body></html>")], content_type="text/html", framing="length")


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (
            lambda _: error_reply(404, "?"),
            "SERVER/v1/models answers 404, so this is no OpenAI-compatible server",
        ),
        (lambda _: MOVED, "SERVER answers 308: it is at https://elsewhere/x now."),
        (
            lambda _: HTML,
            "SERVER/v1/models answers with text/html and no list of models, so this is no OpenAI",
        ),
        (
            lambda _: json_reply({"data": 3}),
            "SERVER/v1/models answers with application/json and no list of models",
        ),
        (lambda _: models_reply(), "SERVER serves no model; load one first."),
        (lambda _: error_reply(503, "loading"), "SERVER/v1/models answers 503 (loading)."),
        (Answers(models=("a", "b")), "SERVER does not serve 'nope'; it has a, b."),
        (
            Answers(models=tuple("abcdefghijklm")),
            "SERVER does not serve 'nope'; it has a, b, c, d, e, f, g, h, i, j and 3",
        ),
        (
            lambda _: Reply([Step(0, b"SSH-2.0\r\n")], raw=True),
            "SERVER does not answer as an HTTP server: the answer is no",
        ),
        (lambda _: Reply([Step(0, Hang())], raw=True), "SERVER gives no answer within 30 s; is it busy"),
        (
            lambda _: Reply([Step(0, b"{"), Step(0, Hang())]),
            "SERVER gives an answer without an end within 30 s",
        ),
    ],
)
def test_servers_that_cannot_be_measured(script: Script, message: str) -> None:
    assert refused(script, model="nope").startswith(message)


def test_a_server_that_does_not_stream() -> None:
    assert refused(Answers(streams=False)) == (
        "SERVER answers without streaming (its content type is application/json); only streams can be timed."
    )


def test_a_stream_with_nothing_in_it() -> None:
    def script(asked: Asked) -> Reply:
        return models_reply("m") if asked.path == "/v1/models" else Reply([])

    assert refused(script) == "SERVER answers with an empty stream; nothing in it can be timed."


def test_a_server_that_fails_at_once() -> None:
    def script(asked: Asked) -> Reply:
        if asked.path == "/v1/models":
            return models_reply("m")
        return Reply([Step(0.1, b'data: {"error":{"message":"no memory"}}\n\n' + DONE)])

    assert refused(script) == "SERVER fails: no memory."
    assert refused(Answers(status=500)) == (
        "SERVER/v1/completions answers 500 to a request of 3 tokens: it failed."
    )
    assert refused(Answers(completions=False), api="completions") == (
        "SERVER/v1/completions answers 404 to a request of 3 tokens: /v1/completions is not here."
    )


def test_nobody_is_there() -> None:
    async def main() -> str:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{free.getsockname()[1]}"
            with pytest.raises(BenchError) as error:
                await discover(url)
            return str(error.value)

    assert re.fullmatch(
        r"http://127\.0\.0\.1:\d+ cannot be reached: connection refused; is the server running, and is this its port\?",
        in_virtual_time(main),
    )


def test_ids_cannot_be_had_of_a_chat() -> None:
    assert refused(Answers(), api="chat", prompts="ids") == (
        "Prompts as token ids were asked for, but the API is chat, which takes only texts."
    )


def test_an_error_with_a_good_status_and_no_text_is_no_stream() -> None:
    def script(asked: Asked) -> Reply:
        return models_reply("m") if asked.path == "/v1/models" else Reply([Step(0.1, b": nothing\n\n")])

    assert "answers with an empty stream" in refused(script)


def test_what_is_given_in_extra_wins() -> None:
    _, server = found(Answers(), api="chat", extra={"temperature": 0.5, "top_p": 0.9})
    assert server.asked[-1].body["temperature"] == 0.5
    assert server.asked[-1].body["top_p"] == 0.9
