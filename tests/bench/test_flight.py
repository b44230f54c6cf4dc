"""One request against a server of known times: every stamp is the script's, and every end has its name."""

from __future__ import annotations

import pytest

from octavo.bench.client import run
from octavo.bench.record import Kind, Run
from octavo.bench.target import discover
from tests.bench.clients import bench, request, text_times
from tests.bench.scripted import (
    DONE,
    Answers,
    Asked,
    Cut,
    Hang,
    Reply,
    Step,
    chat_event,
    clock_ns,
    in_virtual_time,
    scripted,
)


def test_every_stamp_is_the_script_s() -> None:
    found, _, _ = bench(Answers(ttft_s=0.2, gap_s=0.05), [request(0, 0.0), request(1, 0.7)])
    first, second = found.exchanges
    assert (first.intended_us, first.sent_us, first.end_us) == (0, 0, 350_000)
    assert text_times(first) == [200_000, 250_000, 300_000, 350_000]
    assert (second.intended_us, second.sent_us) == (700_000, 700_000)
    assert text_times(second) == [900_000, 950_000, 1_000_000, 1_050_000]
    assert [one.tokens for one in first.chunks if one.kind & Kind.ANSWER] == [1, 1, 1, 1]
    assert (first.input_tokens, first.output_tokens, first.counted, first.status) == (5, 4, "chunks", 200)
    assert first.chunks[-1].kind == Kind.DONE
    assert found.stopped is None and found.end_us == 1_050_000


def test_coalesced_events_have_the_time_of_their_read() -> None:
    found, _, _ = bench(Answers(ttft_s=0.2, gap_s=0.05, events_per_write=2), [request(0, 0.0)])
    assert text_times(found.exchanges[0]) == [200_000, 200_000, 300_000, 300_000]


@pytest.mark.parametrize("size", [1, 7, 30, 400])
def test_events_that_are_split_over_writes_have_the_time_of_their_last_byte(size: int) -> None:
    usual = Answers(ttft_s=0.0, gap_s=0.0)

    def script(asked: Asked) -> Reply:
        if asked.path == "/v1/models":
            return usual(asked)
        whole = b"".join(step.data for step in usual(asked).steps if isinstance(step.data, bytes))
        pieces = [whole[start : start + size] for start in range(0, len(whole), size)]
        return Reply([Step(0.001, piece) for piece in pieces])

    found, _, asked = bench(script, [request(0, 0.0)], probe=usual)
    [exchange] = found.exchanges
    whole = b"".join(step.data for step in usual(asked[0]).steps if isinstance(step.data, bytes))
    ends = [place + 2 for place in range(len(whole)) if whole[place : place + 2] == b"\n\n"]
    assert [one.at_us for one in exchange.chunks] == [-(-end // size) * 1000 for end in ends]


def test_several_tokens_in_an_event_are_counted_as_the_server_says() -> None:
    for script, counted in (
        (Answers(per_event=3, continuous=True), "usage"),
        (Answers(per_event=3, token_ids=True), "ids"),
        (Answers(per_event=3), "spread"),
        (Answers(per_event=1), "chunks"),
    ):
        found, _, _ = bench(script, [request(0, 0.0, output_tokens=7)])
        exchange = found.exchanges[0]
        tokens = [one.tokens for one in exchange.chunks if one.kind & Kind.ANSWER]
        assert tokens == ([1] * 7 if script.per_event == 1 else [3, 3, 1])
        assert (exchange.counted, exchange.output_tokens) == (counted, 7)


SAID = chat_event("Half. Of ")


@pytest.mark.parametrize(
    ("reply", "error", "message", "end_us"),
    [
        (
            Reply([Step(0.1, SAID), Step(0.1, Cut(reset=True))]),
            "cut",
            "connection reset by peer in the middle",
            200_000,
        ),
        (
            Reply([Step(0.1, SAID), Step(0.1, Cut())]),
            "cut",
            "the server closed the connection in the",
            200_000,
        ),
        (
            Reply([Step(0.1, SAID), Step(0.1, DONE), Step(0.1, Cut())]),
            "cut",
            "the server closed the connection in the",
            300_000,
        ),
        (Reply([Step(0.1, SAID), Step(0.1, Hang())]), "timeout", "no whole answer within 30 s", 30_000_000),
        (Reply([Step(0.1, Hang())], raw=True), "timeout", "no whole answer within 30 s", 30_000_000),
        (
            Reply([Step(0.1, SAID), Step(0.1, b'data: {"error":{"message":"oom"}}\n\n' + DONE)]),
            "stream",
            "oom",
            200_000,
        ),
        (
            Reply([Step(0.1, SAID), Step(0.1, b"data: <html>\n\n")]),
            "stream",
            "event 1 cannot be read",
            200_000,
        ),
        (Reply([Step(0.1, SAID)]), "stream", "the stream ended without a finish reason", 100_000),
        (
            Reply([Step(0.1, b"{}")], content_type="application/json"),
            "stream",
            "the answer is no stream",
            100_000,
        ),
        (
            Reply([Step(0.1, b"hm")], content_type=""),
            "stream",
            "the answer is no stream, but nothing",
            100_000,
        ),
        (Reply([Step(0.1, b"")], status=204, framing="none"), "status", "204", 100_000),
        (Reply([Step(0.1, b"x" * 900)], status=429, content_type="a/b"), "status", "429: xxx", 100_000),
        (Reply([Step(0.1, b"not HTTP\r\n")], raw=True), "stream", "the answer is no HTTP/1.1", 100_000),
    ],
)
def test_answers_that_fail(reply: Reply, error: str, message: str, end_us: int) -> None:
    usual = Answers()
    found, _, _ = bench(lambda _: reply, [request(0, 0.0)], probe=usual, timeout_s=30.0)
    [exchange] = found.exchanges
    assert (exchange.error, exchange.end_us) == (error, end_us)
    assert exchange.message is not None and exchange.message.startswith(message)
    assert len(exchange.message) <= 300
    if reply.steps[0].data is SAID:
        assert exchange.chunks[0].at_us == 100_000
        assert exchange.chunks[0].kind == Kind.ANSWER | Kind.SENTENCE


def test_a_stream_that_ends_by_done_or_by_its_reason_is_good() -> None:
    usual = Answers()
    for end in (DONE, chat_event("", finish="stop")):
        reply = Reply([Step(0.1, SAID), Step(0.1, end), Step(0.3, b": bye\n\n")])
        found, _, _ = bench(lambda _, reply=reply: reply, [request(0, 0.0)], probe=usual)  # type: ignore[misc]
        assert found.exchanges[0].error is None
        assert found.exchanges[0].end_us == (200_000 if end == DONE else 500_000)
    late = Reply([Step(0.1, SAID + chat_event("", finish="stop") + DONE), Step(0.1, Cut(reset=True))])
    found, _, _ = bench(lambda _: late, [request(0, 0.0)], probe=usual)
    assert (found.exchanges[0].error, found.exchanges[0].end_us) == (None, 100_000)


def test_a_server_that_is_gone() -> None:
    async def main() -> Run:
        async with scripted(Answers()) as server:
            target = await discover(server.url)
        return await run(target, [request(0, 0.0), request(1, 1.0)], clock_ns=clock_ns)

    found = in_virtual_time(main)
    assert [(one.error, one.message) for one in found.exchanges] == [("connect", "connection refused")] * 2
    assert [one.started_us for one in found.exchanges] == [0, 1_000_000]


def test_a_connection_that_the_server_had_closed_costs_no_request() -> None:
    usual = Answers()
    told: list[int] = []

    def script(asked: Asked) -> Reply:
        if asked.index == 3:  # as if its idle timeout had just passed
            return Reply([Step(0.0, Cut())], raw=True)
        return usual(asked)

    found, server, asked = bench(
        script,
        [request(0, 0.0), request(1, 1.0)],
        probe=usual,
        on_change=lambda progress: told.append(progress.retried),
    )
    assert [one.error for one in found.exchanges] == [None, None]
    assert [one.connected_us for one in found.exchanges] == [0, 1_000_000]
    assert text_times(found.exchanges[1])[0] == 1_200_000
    assert len(asked) == 3 and told[-1] == 1
    assert server.connections == 3  # one of the probe
