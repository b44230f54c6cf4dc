"""Outputs of a scripted engine to chunks and answers: stop strings and characters split over tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.backends.base import TokenSample
from octavo.engine.stream import Stream
from octavo.errors import EngineDied, ServerError
from octavo.protocol.openai_reply import ChatReply, CompletionReply
from octavo.sampling.params import SamplingParams
from octavo.scheduling.outputs import SequenceOutput
from octavo.server.answer import Answer
from octavo.server.serving import Serving
from octavo.text.pieces import PlainText
from octavo.text.reasoning import ReasoningFormat, ReasoningSplitter
from octavo.text.vocabulary import Vocabulary

VOCABULARY = Vocabulary([b"<|end|>", *(bytes([b]) for b in range(256)), b" the", "é".encode()], special=[0])


def serving(*, dead: bool = False, drops_leading_space: bool = False) -> Serving:
    """The parts of it that an Answer uses."""
    tokenizer = SimpleNamespace(drops_leading_space=drops_leading_space)
    client = SimpleNamespace(dead=dead)
    return cast(Serving, SimpleNamespace(vocabulary=VOCABULARY, tokenizer=tokenizer, client=client))


def answer(
    params: SamplingParams | None = None,
    prompts: Sequence[Sequence[int]] = ((1,),),
    *,
    chat: bool = False,
    echo: bool = False,
) -> Answer:
    reply = (ChatReply if chat else CompletionReply)(0, "m", "fp", reply_id="r", include_usage=True)
    return Answer(serving(), reply, params or SamplingParams(), prompts, echo=echo)


def ids(data: bytes) -> list[int]:
    return [1 + byte for byte in data]


def output(tokens: Iterable[int], **fields: Any) -> SequenceOutput:
    samples = tuple(TokenSample(token, -1.0, ((token, -1.0),)) for token in tokens)
    return SequenceOutput("r-0", fields.pop("child", 0), samples, **fields)


def texts(chunks: bytes, *, chat: bool = False) -> list[str]:
    events = [msgspec.json.decode(e.removeprefix(b"data: ")) for e in chunks.split(b"\n\n") if e]
    choices = [choice for event in events for choice in event["choices"]]
    return [c["delta"].get("content", "") if chat else c["text"] for c in choices]


@given(st.text(max_size=12), st.data())
def test_every_delta_is_valid_text_and_all_join_to_the_whole(text: str, data: st.DataObject) -> None:
    tokens = ids(text.encode())
    cuts = sorted(data.draw(st.lists(st.integers(0, len(tokens)), max_size=5)))
    pieces = [tokens[a:b] for a, b in zip([0, *cuts], [*cuts, len(tokens)], strict=True)]
    outputs = [output(piece) for piece in pieces] + [output((), finish_reason="stop")]
    streamed = answer(chat=True)
    deltas = [delta for one in outputs for delta in texts(streamed.chunks(one), chat=True)]
    assert "".join(deltas) == text
    assert all("\ufffd" not in delta for delta in deltas if "\ufffd" not in text)
    whole = msgspec.json.decode(answer(chat=True).whole(outputs))
    assert whole["choices"][0]["message"]["content"] == text


def test_a_character_that_stays_broken_is_shown_at_the_end_only() -> None:
    streamed = answer()
    assert streamed.chunks(output(ids("🙂".encode()[:3]))) == b""
    assert texts(streamed.chunks(output((), finish_reason="length"))) == ["\ufffd", ""]


def test_what_may_become_a_stop_string_is_held_and_then_cut() -> None:
    streamed = answer()
    assert texts(streamed.chunks(output(ids(b"one ST"), held_bytes=2))) == ["one "]
    assert streamed.chunks(output(ids(b"O"), held_bytes=3)) == b""
    last = output(ids(b"P"), finish_reason="stop", stop_reason="STOP", cut_bytes=4)
    assert texts(streamed.chunks(last)) == [""]


def test_what_did_not_become_a_stop_string_is_shown_later() -> None:
    streamed = answer()
    assert texts(streamed.chunks(output(ids(b"one ST"), held_bytes=2))) == ["one "]
    assert texts(streamed.chunks(output(ids(b"AY")))) == ["STAY"]


def test_tokens_are_told_with_the_output_that_has_them_though_their_text_is_held() -> None:
    reply = CompletionReply(0, "m", "fp", reply_id="r", token_ids=True, continuous_usage=True)
    streamed = Answer(serving(), reply, SamplingParams(stop=("STOP",)), [[9, 8]])
    outputs = [
        output(ids(b"ST"), held_bytes=2),
        output(ids(b"A" + "é".encode()[:1])),
        output(ids("é".encode()[1:] + b"ST"), held_bytes=2),
        output((), held_bytes=2),
        output(ids(b"OP"), finish_reason="stop", stop_reason="STOP", cut_bytes=4),
    ]
    told = []
    for one in outputs:
        for event in streamed.chunks(one).decode().split("\n\n")[:-1]:
            data = msgspec.json.decode(event.removeprefix("data: "))
            [choice] = data["choices"]
            usage = data["usage"]
            assert usage["prompt_tokens"] == 2 and usage["total_tokens"] == usage["completion_tokens"] + 2
            prompt = choice.get("prompt_token_ids")
            told.append((choice["text"], choice["token_ids"], usage["completion_tokens"], prompt))
    assert told == [
        ("", ids(b"ST"), 2, [9, 8]),
        ("STA", ids(b"A" + "é".encode()[:1]), 4, None),
        ("é", ids("é".encode()[1:] + b"ST"), 7, None),
        ("", ids(b"OP"), 9, None),
    ]
    assert b"usage" not in streamed.closing()


def test_pieces_of_one_output_tell_its_tokens_once() -> None:
    reply = ChatReply(0, "m", "fp", reply_id="r", token_ids=True, continuous_usage=True)
    form = ReasoningFormat("<think>", "</think>")
    streamed = Answer(
        serving(), reply, SamplingParams(), [[5]], split=lambda: ReasoningSplitter(form, PlainText())
    )
    said = ids(b"<think>why</think>so")
    events = streamed.chunks(output(said, finish_reason="length")).decode().split("\n\n")[:-1]
    chunks = [msgspec.json.decode(event.removeprefix("data: ")) for event in events]
    assert [chunk["choices"][0].get("token_ids") for chunk in chunks] == [None, said, [], []]
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [0, len(said), len(said), len(said)]
    assert [chunk.get("prompt_token_ids") for chunk in chunks] == [[5], None, None, None]


def test_logprobs_wait_for_their_text_and_none_is_lost() -> None:
    streamed = answer(SamplingParams(logprobs=1))
    assert streamed.chunks(output(ids("🙂".encode()[:2]))) == b""
    chunks = streamed.chunks(output(ids("🙂".encode()[2:]))) + streamed.chunks(
        output([0], finish_reason="stop")
    )
    events = [msgspec.json.decode(e.removeprefix(b"data: ")) for e in chunks.split(b"\n\n") if e]
    scores = [event["choices"][0]["logprobs"] for event in events]
    assert [len(score["tokens"]) if score else None for score in scores] == [4, 1, None]
    assert scores[0]["text_offset"] == [0, 0, 0, 0]
    assert scores[1] == {
        "tokens": ["<|end|>"],
        "token_logprobs": [-1.0],
        "top_logprobs": [{"<|end|>": -1.0}],
        "text_offset": [1],
    }


def test_children_wait_for_the_prompts_scores_that_come_with_child_0() -> None:
    params = SamplingParams(n=2, logprobs=0, prompt_logprobs=0)
    prompt = ids(b"ab")
    scores = (None, TokenSample(prompt[1], -2.0))
    outputs = [
        output(ids(b"y"), child=1, finish_reason="length"),
        output(ids(b"x"), child=0, prompt_samples=scores, finish_reason="length"),
    ]
    streamed = answer(params, [prompt], echo=True)
    assert streamed.chunks(outputs[0]) == b""
    assert texts(streamed.chunks(outputs[1])) == ["abx", "", "aby", ""]
    whole = msgspec.json.decode(answer(params, [prompt], echo=True).whole(outputs))
    assert [choice["text"] for choice in whole["choices"]] == ["abx", "aby"]
    assert [choice["logprobs"]["token_logprobs"] for choice in whole["choices"]] == [[None, -2.0, -1.0]] * 2
    assert whole["usage"]["completion_tokens"] == 2


def test_cached_tokens_count_once_for_each_prompt() -> None:
    streamed = answer(SamplingParams(n=2), [ids(b"ab"), ids(b"cd")])
    streamed.chunks(output(ids(b"x"), cached_tokens=2))
    streamed.chunks(output(ids(b"x"), child=1, cached_tokens=2))
    streamed.chunks(msgspec.structs.replace(output(ids(b"x"), cached_tokens=1), request_id="r-1"))
    assert msgspec.json.decode(streamed.closing().split(b"\n\n")[0][6:])["usage"] == {
        "prompt_tokens": 4,
        "completion_tokens": 3,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 3},
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def test_an_error_is_ours_or_the_dead_engines() -> None:
    failed = output((), finish_reason="error", error="Why.")
    alive = answer()
    assert isinstance(alive.failure(failed), ServerError)
    assert str(alive.failure(failed)) == "Why."
    alive.serving = serving(dead=True)
    assert isinstance(alive.failure(failed), EngineDied)


def test_an_echo_drops_the_tokenizers_own_space_once() -> None:
    shown = answer(SamplingParams(logprobs=0, prompt_logprobs=0), [[257, 257]], echo=True)
    shown.serving = serving(drops_leading_space=True)
    fresh = Answer(shown.serving, shown.reply, shown.params, [[257, 257]], echo=True)
    last = output([257], prompt_samples=(None, TokenSample(257, -1.0)), finish_reason="length")
    whole = msgspec.json.decode(fresh.whole([last]))
    assert whole["choices"][0]["text"] == "the the the"
    assert whole["choices"][0]["logprobs"]["text_offset"] == [0, 3, 7]


async def test_a_stream_merges_what_its_reader_did_not_take() -> None:
    aborted: list[str] = []
    stream = Stream(["r-0"], 2, aborted.append)
    for letter in b"abc":
        stream.put(output(ids(bytes([letter])), held_bytes=letter - 97))
    stream.put(output(ids(b"z"), child=1, finish_reason="stop"))
    stream.put(output(ids(b"d"), finish_reason="length", cut_bytes=1))
    outputs = [one async for one in stream]
    assert outputs == [
        output(ids(b"abcd"), finish_reason="length", cut_bytes=1),
        output(ids(b"z"), child=1, finish_reason="stop"),
    ]
    await stream.aclose()
    assert not aborted
    assert not stream.abandoned


@pytest.mark.parametrize("unread", [False, True])
async def test_a_stream_closed_early_aborts_its_requests_once(unread: bool) -> None:
    aborted: list[str] = []
    stream = Stream(["r-0", "r-1"], 2, aborted.append)
    if unread:
        stream.put(output(ids(b"a")))
    await stream.aclose()
    await stream.aclose()
    assert aborted == ["r-0", "r-1"]
    assert stream.abandoned
    assert [one async for one in stream] == []
