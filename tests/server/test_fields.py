"""vLLM's fields on both routes, bounds, and what each parameter does to the choice of tokens, over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.conftest import Server
from tests.server.test_chat import USER, chat
from tests.server.test_errors import error_of

PROMPT = [70, 71, 72, 80, 90]


def scores_of(content: list[dict[str, Any]]) -> list[dict[int, float]]:
    """By step, the alternatives' log-probabilities by token id (of `return_tokens_as_token_ids`)."""
    return [
        {int(one["token"].removeprefix("token_id:")): one["logprob"] for one in (*step["top_logprobs"], step)}
        for step in content
    ]


def test_prompt_logprobs_are_those_of_an_echo(server: Server) -> None:
    echoed = server.complete(prompt=PROMPT, max_tokens=2, temperature=0, echo=True, logprobs=3)["choices"][0]
    body = {"prompt": PROMPT, "max_tokens": 2, "temperature": 0, "prompt_logprobs": 3}
    [choice] = server.complete(**body)["choices"]
    assert choice["logprobs"] is None
    scores = choice["prompt_logprobs"]
    assert scores[0] is None and len(scores) == len(PROMPT)
    for place, token in enumerate(PROMPT[1:], 1):
        entry = scores[place]
        assert entry[str(token)]["logprob"] == echoed["logprobs"]["token_logprobs"][place]
        assert entry[str(token)]["decoded_token"] == echoed["logprobs"]["tokens"][place]
        ranks = [one["rank"] for one in entry.values() if one["rank"] is not None]
        assert ranks == [1, 2, 3]
        assert 3 <= len(entry) <= 4


def test_fewer_alternatives_in_an_echo_beside_more_of_the_prompt(server: Server) -> None:
    same = {"prompt": PROMPT, "max_tokens": 3, "temperature": 0, "echo": True, "logprobs": 1}
    plain, more = (
        server.complete(**same)["choices"][0],
        server.complete(**same, prompt_logprobs=4)["choices"][0],
    )
    assert more["logprobs"] == plain["logprobs"]
    assert all(len(entry) >= 4 for entry in more["prompt_logprobs"][1:])


def test_prompt_logprobs_of_lists_and_of_chat(server: Server) -> None:
    choices = server.complete(prompt=[PROMPT, PROMPT[:3]], n=2, max_tokens=1, prompt_logprobs=0)["choices"]
    assert [len(choice["prompt_logprobs"]) for choice in choices] == [5, 5, 3, 3]
    answer = chat(server, prompt_logprobs=1, return_token_ids=True, n=2)
    assert (
        len(answer["prompt_logprobs"]) == len(answer["prompt_token_ids"]) == answer["usage"]["prompt_tokens"]
    )
    assert all("prompt_logprobs" not in choice for choice in answer["choices"])


def test_token_ids_of_prompt_and_answer(server: Server) -> None:
    body: dict[str, Any] = {
        "prompt": ["Hello", " the world"],
        "n": 2,
        "max_tokens": 6,
        "seed": 3,
        "ignore_eos": True,
    }
    answer = server.complete(**body, return_token_ids=True)
    for place, choice in enumerate(answer["choices"]):
        asked = server.post("/tokenize", prompt=body["prompt"][place // 2], add_special_tokens=False)
        assert choice["prompt_token_ids"] == asked.json()["tokens"]
        assert len(choice["token_ids"]) == 6
        again = server.complete(
            prompt=[*choice["prompt_token_ids"], *choice["token_ids"]],
            max_tokens=0,
            echo=True,
            return_token_ids=True,
        )
        assert again["choices"][0]["text"] == body["prompt"][place // 2] + choice["text"]
    plain = server.complete(**body)
    assert [choice["text"] for choice in plain["choices"]] == [choice["text"] for choice in answer["choices"]]
    assert all("token_ids" not in choice for choice in plain["choices"])


def test_streamed_token_ids_have_vllms_places(server: Server) -> None:
    """The prompt's in the first event: of a completion's choice, or beside a chat's choices. The answer's in each."""
    body: dict[str, Any] = {"n": 2, "max_tokens": 7, "seed": 3, "ignore_eos": True, "return_token_ids": True}
    for path, asked in (
        ("/v1/completions", {"prompt": PROMPT}),
        ("/v1/chat/completions", {"messages": [USER]}),
    ):
        whole = server.post(path, **asked, **body).json()
        events = server.events(path, **asked, **body)[:-1]
        for index in range(2):
            own = [event for event in events if event["choices"][0]["index"] == index]
            prompts = [
                event.get("prompt_token_ids", event["choices"][0].get("prompt_token_ids")) for event in own
            ]
            assert prompts[0] == (whole if "chat" in path else whole["choices"][index])["prompt_token_ids"]
            assert set(map(str, prompts[1:])) == {"None"}
            told = [event["choices"][0].get("token_ids", []) for event in own]
            assert [token for ids in told for token in ids] == whole["choices"][index]["token_ids"]
            assert len(whole["choices"][index]["token_ids"]) == 7


def test_usage_in_each_event_is_that_of_its_choice(server: Server) -> None:
    body: dict[str, Any] = {"prompt": [PROMPT, PROMPT[:3]], "n": 2, "max_tokens": 6, "ignore_eos": True}
    options = {"include_usage": True, "continuous_usage_stats": True}
    *events, last = server.events("/v1/completions", **body, stream_options=options)[:-1]
    ends = {event["choices"][0]["index"]: event["usage"] for event in events}
    asked = [5, 5, 3, 3]
    assert [ends[index]["prompt_tokens"] for index in range(4)] == asked
    assert [ends[index]["total_tokens"] for index in range(4)] == [6 + n for n in asked]
    assert last["usage"]["completion_tokens"] == 24 and last["usage"]["prompt_tokens"] == 8
    *events, done = server.events("/v1/completions", **body, stream_options={"continuous_usage_stats": True})
    assert done == "[DONE]" and all(event["choices"] and event["usage"] for event in events)


def test_tokens_are_named_by_their_ids(server: Server) -> None:
    same = {"max_tokens": 5, "seed": 4, "return_tokens_as_token_ids": True, "return_token_ids": True}
    [choice] = server.complete(prompt=PROMPT, logprobs=2, echo=True, **same)["choices"]
    names = [f"token_id:{token}" for token in (*PROMPT, *choice["token_ids"])]
    assert choice["logprobs"]["tokens"] == names
    assert all(
        name in top for name, top in zip(names[1:], choice["logprobs"]["top_logprobs"][1:], strict=True)
    )
    [choice] = chat(server, logprobs=True, top_logprobs=2, **same)["choices"]
    content = choice["logprobs"]["content"]
    assert [one["token"] for one in content] == [f"token_id:{token}" for token in choice["token_ids"]]
    said = b"".join(bytes(one["bytes"]) for one in content).decode(errors="replace")
    assert choice["message"]["content"] in said
    events = server.events("/v1/completions", prompt=PROMPT, logprobs=0, **same | {"return_token_ids": False})
    named = [
        token
        for e in events[:-1]
        for c in e["choices"]
        for token in (c["logprobs"] or {"tokens": []})["tokens"]
    ]
    assert named and all(name.startswith("token_id:") for name in named)


def test_a_prompt_is_cut_only_where_that_is_asked_for(server: Server) -> None:
    same = {"max_tokens": 4, "temperature": 0}
    long = [70 + i % 100 for i in range(600)]
    assert server.post("/v1/completions", prompt=long, **same).status_code == 400
    cut = server.complete(prompt=long, truncate_prompt_tokens=50, **same)
    assert cut["choices"] == server.complete(prompt=long[-50:], **same)["choices"]
    assert cut["usage"]["prompt_tokens"] == 50
    assert chat(server, truncate_prompt_tokens=3)["usage"]["prompt_tokens"] == 3
    [few] = server.complete(prompt=PROMPT, truncate_prompt_tokens=500, return_token_ids=True, **same)[
        "choices"
    ]
    assert few["prompt_token_ids"] == PROMPT


def test_a_bos_is_added_to_a_chat_once(server: Server) -> None:
    """Case 31: no doubled BOS. The tiny model's BOS is the token with which its template begins."""
    plain = chat(server, return_token_ids=True)["prompt_token_ids"]
    assert chat(server, return_token_ids=True, add_special_tokens=True)["prompt_token_ids"] == plain
    assert plain[0] == 1 and plain[1] != 1


def test_frequency_and_presence_count_what_was_said(server: Server) -> None:
    """Case 21: each token is the best of the raw scores less the penalties of the output so far; the prompt is not
    counted, and neither cache nor neighbours change it."""
    body = {
        "prompt": "Hello Hello",
        "max_tokens": 30,
        "temperature": 0,
        "logprobs": 100,
        "ignore_eos": True,
        "return_tokens_as_token_ids": True,
        "frequency_penalty": 0.7,
        "presence_penalty": 1.1,
    }
    [choice] = server.complete(**body)["choices"]
    said: list[int] = []
    penalized = 0
    for token, top in zip(choice["logprobs"]["tokens"], choice["logprobs"]["top_logprobs"], strict=True):
        raw = {int(name.removeprefix("token_id:")): logprob for name, logprob in top.items()}
        paid = {one: logprob - 0.7 * said.count(one) - 1.1 * (one in said) for one, logprob in raw.items()}
        chosen = int(token.removeprefix("token_id:"))
        assert paid[chosen] >= max(paid.values()) - 1e-4
        penalized += max(raw, key=lambda one: raw[one]) != chosen
        said.append(chosen)
    assert penalized > 0
    several = server.complete(**body | {"prompt": ["Hello Hello", "the", "Hello Hello"]})["choices"]
    assert several[0]["text"] == several[2]["text"] == choice["text"]


def test_repetition_counts_the_prompt_too(server: Server) -> None:
    """Case 21."""
    many = {"max_tokens": 1, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    prompts = [[70 + (place * 7 + i) % 200 for i in range(150)] for place in range(12)]
    plain = server.complete(prompt=prompts, **many)["choices"]
    first = [choice["token_ids"][0] for choice in plain]
    there = [token in prompt for token, prompt in zip(first, prompts, strict=True)]
    assert any(there)
    for name, value in (("presence_penalty", 2), ("frequency_penalty", 2)):
        assert [
            c["token_ids"][0] for c in server.complete(prompt=prompts, **many, **{name: value})["choices"]
        ] == first
    changed = server.complete(prompt=prompts, **many, repetition_penalty=100)["choices"]
    for choice, was, known in zip(changed, first, there, strict=True):
        assert (choice["token_ids"][0] != was) == known


def test_no_stop_string_ends_it_before_min_tokens(server: Server) -> None:
    """Case 24."""
    forced = {"prompt": "Hello", "logit_bias": {"70": 100}, "temperature": 0, "max_tokens": 9}
    letter = server.complete(**forced)["choices"][0]["text"][0]
    assert server.complete(**forced, stop=letter)["usage"]["completion_tokens"] == 1
    early = server.complete(**forced, stop=letter, min_tokens=5)
    assert early["usage"]["completion_tokens"] == 5
    assert early["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"temperature": 2.1}, "temperature", "at most 2.0"),
        ({"prompt_logprobs": -1}, "prompt_logprobs", "0 … 100"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "with stream"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "1 …"),
        ({"truncate_prompt_tokens": -1}, "truncate_prompt_tokens", "-1"),
        ({"allowed_token_ids": [1]}, "allowed_token_ids", "not supported"),
        ({"bad_words": ["a"]}, "bad_words", "not supported"),
        ({"logits_processors": ["a"]}, "logits_processors", "not supported"),
        ({"request_id": "a"}, "request_id", "not supported"),
        ({"vllm_xargs": {"a": 1}}, "vllm_xargs", "not supported"),
        ({"frequency_penalty": 2.5}, "frequency_penalty", "at most 2.0"),
        ({"presence_penalty": -2.5}, "presence_penalty", "at least -2.0"),
        ({"repetition_penalty": 0}, "repetition_penalty", "at least 1e-06"),
        ({"min_p": 1.5}, "min_p", "at most 1.0"),
        ({"top_k": -2}, "top_k", "-2"),
        ({"logit_bias": {"70": -101}}, "logit_bias[70]", "-101"),
        ({"logit_bias": {"a word": 1}}, "logit_bias", "'a word'"),
        ({"logit_bias": {"99999": 1}}, "logit_bias", "99999"),
        ({"logit_bias": [1]}, "logit_bias", "must be an object"),
        ({"stop": [""]}, "stop", "empty string"),
        ({"stop": 5}, "stop", "must be"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]", "-1"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids[0]", 'not "a"'),
        ({"seed": -(2**63) - 1}, "seed", "lie in"),
        ({"user": 5}, "user", "must be a string"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream is not true"),
        ({"stream_options": {"continuous_usage_stats": True}}, "stream_options", "stream is not true"),
        (
            {"stream": True, "stream_options": {"continuous_usage_stats": 1}},
            "stream_options.continuous_usage_stats",
            "must be",
        ),
    ],
)
def test_both_routes_refuse_it_by_name(server: Server, body: dict[str, Any], param: str, words: str) -> None:
    """Cases 20, 23, 24 and 33: a value outside its bounds, and a field that is not served."""
    for path, asked in (("/v1/completions", {"prompt": "a"}), ("/v1/chat/completions", {"messages": [USER]})):
        error = error_of(server.post(path, max_tokens=1, **asked, **body), 400)
        assert (error["param"], error["type"]) == (param, "invalid_request_error")
        assert words in error["message"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize"])
def test_every_error_is_the_object(server: Server, path: str) -> None:
    """Case 33: malformed JSON, a wrong type, another model, another method."""
    asked: dict[str, Any] = {"messages": [USER], "max_tokens": 1} if "chat" in path else {"prompt": "a"}
    error_of(server.client.post(path, content=b'{"prompt": '), 400)
    assert error_of(server.post(path, **asked, model=5), 400)["param"] == "model"
    assert "tiny" in error_of(server.post(path, **asked, model="other"), 404)["message"]
    error_of(server.client.get(path), 405)
    assert server.post(path, **asked, model="tiny").status_code == 200


@pytest.mark.slow
@pytest.mark.parametrize("k", [1, 3, 5])
def test_greedy_with_guesses_equals_greedy_without(tiny_engine: dict[str, Any], k: int) -> None:
    """Case 26, with a stop string inside a run that was accepted."""
    bodies = [
        {
            "prompt": "Hello world and the Hello",
            "max_tokens": 120,
            "temperature": 0,
            "ignore_eos": True,
            "logprobs": 1,
        },
        {"prompt": "the the the the", "max_tokens": 120, "temperature": 0, "ignore_eos": True, "seed": 1},
    ]

    def answers(speculation: dict[str, Any]) -> Iterator[Any]:
        server = Server(tiny_engine | speculation)
        for body in bodies:
            whole = server.complete(**body)
            yield whole["choices"]
            text = whole["choices"][0]["text"]
            for stop in (text[20:23], text[41:43], text[70:74]):
                yield server.complete(**body, stop=stop)["choices"]
        drafts = [
            value
            for name, value in server.metrics().items()
            if "spec_decode_num_accepted_tokens_total" in name
        ]
        yield sum(drafts) > 0
        assert server.stop() == 0

    without, guessed = (
        list(answers({"speculation": "off"})),
        list(answers({"speculation": "ngram", "speculation_tokens": k})),
    )
    assert guessed[:-1] == without[:-1]
    assert (without[-1], guessed[-1]) == (False, True)
