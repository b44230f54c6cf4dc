"""/v1/completions over HTTP on the tiny model: what each parameter does, streamed and whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from octavo.models.store import StoredModel
from tests.server.conftest import Server


def joined(events: list[Any]) -> dict[int, str]:
    """The text of each choice of a stream."""
    texts: dict[int, str] = {}
    for event in events:
        for choice in () if event == "[DONE]" else event["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    return texts


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "Hello world", "max_tokens": 12, "temperature": 0},
        {"prompt": "Hello", "max_tokens": 30, "seed": 3, "n": 3},
        {"prompt": ["Hello", "the world"], "max_tokens": 10, "seed": 3, "n": 2, "echo": True},
        {"prompt": [[70, 71, 72], [80]], "max_tokens": 10, "seed": 4, "logprobs": 2},
        {"prompt": [70, 71, 72], "max_tokens": 10, "seed": 5, "logprobs": 0, "echo": True, "n": 2},
        {"prompt": "Hello", "max_tokens": 40, "seed": 6, "skip_special_tokens": False, "ignore_eos": True},
    ],
)
def test_streamed_equals_whole(server: Server, body: dict[str, Any]) -> None:
    """Cases 17 and 18 among it: usage in a last chunk without choices."""
    whole = server.complete(**body)
    events = server.events("/v1/completions", **body, stream_options={"include_usage": True})
    assert joined(events) == {choice["index"]: choice["text"] for choice in whole["choices"]}
    assert events[-1] == "[DONE]"
    assert events[-2]["choices"] == []
    guessed = "completion_tokens_details"  # how it was computed, not what
    assert {**events[-2]["usage"], guessed: 0} == {**whole["usage"], guessed: 0}
    assert all(event["usage"] is None for event in events[:-2])
    for choice in whole["choices"]:
        parts = [c for e in events[:-1] for c in e["choices"] if c["index"] == choice["index"]]
        assert [part["finish_reason"] for part in parts[:-1]] == [None] * (len(parts) - 1)
        assert parts[-1]["finish_reason"] == choice["finish_reason"]
        if choice["logprobs"] is not None:
            scores = [part["logprobs"] for part in parts if part["logprobs"] is not None]
            for name, values in choice["logprobs"].items():
                assert [value for score in scores for value in score[name]] == values


def test_lists_of_prompts_come_in_order_and_count_once(server: Server) -> None:
    """Cases 18 and 19: index = prompt · n + child, and each prompt counts once."""
    body = {"max_tokens": 5, "seed": 9, "ignore_eos": True}
    whole = server.complete(prompt=["Hello", " the"], n=2, **body)
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2, 3]
    second = server.complete(prompt=" the", n=2, **body)
    assert [c["text"] for c in whole["choices"][2:]] == [c["text"] for c in second["choices"]]
    assert whole["usage"]["prompt_tokens"] == 2
    assert whole["usage"]["completion_tokens"] == 20
    assert whole["usage"]["total_tokens"] == 22
    assert whole["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


def test_a_seed_repeats_and_children_follow_it(server: Server) -> None:
    """Case 20: n children, repeatable. (A seed outside int64: test_errors.py.)"""
    together = server.complete(prompt="Hello", seed=42, n=3, max_tokens=20)
    texts = [choice["text"] for choice in together["choices"]]
    assert len(set(texts)) == 3
    alone = [
        server.complete(prompt="Hello", seed=42 + i, max_tokens=20)["choices"][0]["text"] for i in range(3)
    ]
    assert texts == alone
    assert together["system_fingerprint"].startswith("fp_")


def test_without_a_seed_answers_differ(server: Server) -> None:
    texts = {server.complete(prompt="Hello", max_tokens=20)["choices"][0]["text"] for _ in range(3)}
    assert len(texts) == 3


def test_echo_with_logprobs_scores_the_prompt_the_same_each_time(server: Server) -> None:
    """Case 22, with echo: offsets fit the text, and the first token has no score."""
    body = {"prompt": "Hello world and the", "echo": True, "logprobs": 3, "max_tokens": 0}
    first, second = server.complete(**body), server.complete(**body)
    assert first["choices"] == second["choices"]
    choice = first["choices"][0]
    scores = choice["logprobs"]
    assert choice["text"] == "Hello world and the"
    assert choice["finish_reason"] == "length"
    assert first["usage"]["completion_tokens"] == 0
    assert scores["token_logprobs"][0] is None
    assert scores["top_logprobs"][0] is None
    assert all(value < 0 for value in scores["token_logprobs"][1:])
    assert "".join(scores["tokens"]) == choice["text"]
    places = scores["text_offset"]
    assert all(choice["text"][a:].startswith(t) for a, t in zip(places, scores["tokens"], strict=True))


def test_prompt_scores_equal_the_scores_of_the_same_tokens_generated(server: Server, tiny_dir: Path) -> None:
    ids = [70, 71, 72]
    made = server.complete(prompt=ids, max_tokens=6, temperature=0, logprobs=1, ignore_eos=True, echo=True)
    scores = made["choices"][0]["logprobs"]
    text = made["choices"][0]["text"]
    names = [name_of(piece) for piece in StoredModel.load(tiny_dir).vocabulary().pieces]
    tokens = [names.index(name) for name in scores["tokens"]]
    again = server.complete(prompt=tokens, max_tokens=0, logprobs=1, echo=True)["choices"][0]
    assert again["text"] == text
    assert again["logprobs"] == scores


def name_of(piece: bytes) -> str:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


@pytest.mark.parametrize("k", [0, 1, 5])
def test_the_chosen_token_is_among_its_alternatives(server: Server, k: int) -> None:
    """Case 22: also outside the top k, and with k = 0."""
    choice = server.complete(prompt="Hello", max_tokens=20, seed=1, logprobs=k, ignore_eos=True)["choices"][0]
    scores = choice["logprobs"]
    for token, logprob, top in zip(
        scores["tokens"], scores["token_logprobs"], scores["top_logprobs"], strict=True
    ):
        assert top[token] == logprob
        assert k <= len(top) <= k + 1 or k == 0


def test_a_bias_of_100_forces_a_token(server: Server) -> None:
    """Case 23. (Keys that are no ids: test_errors.py.)"""
    answer = server.complete(prompt="Hello", max_tokens=5, logit_bias={"70": 100}, seed=1)
    forced = server.complete(prompt=[70], max_tokens=0, echo=True)["choices"][0]["text"]
    assert answer["choices"][0]["text"] == forced * 5


def test_end_tokens_end_unless_they_are_ignored_or_early(server: Server) -> None:
    """Case 24: ignore_eos and min_tokens. (-1 is in test_errors.py.)"""
    eos = {"prompt": "Hello", "max_tokens": 6, "logit_bias": {"2": 100}, "temperature": 0}
    ended = server.complete(**eos)
    assert ended["choices"][0]["finish_reason"] == "stop"
    assert ended["choices"][0]["text"] == ""
    assert ended["usage"]["completion_tokens"] == 1
    ignored = server.complete(**eos, ignore_eos=True)
    assert ignored["choices"][0]["finish_reason"] == "length"
    assert ignored["usage"]["completion_tokens"] == 6
    later = server.complete(**eos, min_tokens=4)
    assert later["usage"]["completion_tokens"] == 5


def test_a_stop_token_is_named(server: Server) -> None:
    answer = server.complete(
        prompt="Hello", max_tokens=6, logit_bias={"70": 100}, temperature=0, stop_token_ids=[70], min_tokens=2
    )
    choice = answer["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", 70)


def test_a_stop_string_ends_the_text_before_it_and_leaks_nothing(server: Server) -> None:
    """Case 15. (An empty stop: test_errors.py; any tokens in any groups: test_streaming.py.)"""
    body = {"prompt": "Hello", "max_tokens": 60, "seed": 11, "ignore_eos": True}
    full = server.complete(**body)["choices"][0]["text"]
    for length in (1, 2, 3, 7):
        stop = next(
            full[at : at + length]
            for at in range(8, len(full))
            if "\ufffd" not in full[at : at + length] and len(full[at : at + length]) == length
        )
        before = full[: full.index(stop)]
        for extra, text in (({}, before), ({"include_stop_str_in_output": True}, before + stop)):
            whole = server.complete(**body, stop=stop, **extra)["choices"][0]
            assert whole["text"] == text
            assert (whole["finish_reason"], whole["stop_reason"]) == ("stop", stop)
            events = server.events("/v1/completions", **body, stop=[stop], **extra)
            shown = ""
            for event in events[:-1]:
                shown += event["choices"][0]["text"]
                assert text.startswith(shown)
            assert shown == text


def test_max_tokens_null_is_the_rest_of_the_context_and_absent_is_16(server: Server) -> None:
    """Case 24."""
    absent = server.complete(prompt=[70], ignore_eos=True, seed=1)
    assert absent["usage"]["completion_tokens"] == 16
    rest = server.complete(prompt=[70] * 480, ignore_eos=True, seed=1, max_tokens=None)
    assert rest["usage"]["total_tokens"] == 512
    assert rest["choices"][0]["finish_reason"] == "length"


def test_the_context_ends_a_request_and_a_prompt_is_never_cut(server: Server) -> None:
    """Case 25."""
    answer = server.complete(prompt=[71] * 510, max_tokens=100, ignore_eos=True)
    assert answer["usage"] == {
        "prompt_tokens": 510,
        "completion_tokens": 2,
        "total_tokens": 512,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }
    assert answer["choices"][0]["finish_reason"] == "length"
    refused = server.post("/v1/completions", prompt=[70] * 512, max_tokens=1)
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert error["param"] == "prompt"
    assert error["message"].count("512") == 2
