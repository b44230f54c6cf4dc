"""A run against a server of known times: every stamp is the script's, and the workload's order is kept."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Iterable

import pytest

from octavo.bench.client import Progress, run
from octavo.bench.record import Run
from octavo.bench.target import discover
from octavo.workload import load_workload, requests_of
from octavo.workload.request import Part, Request
from tests.bench.clients import bench, request, text_times
from tests.bench.scripted import (
    Answers,
    Asked,
    Hang,
    Reply,
    Step,
    clock_ns,
    error_reply,
    in_virtual_time,
    scripted,
)


def test_a_stall_is_seen_in_every_request_behind_it_in_an_open_loop() -> None:
    """Coordinated omission: a client that waited for the stalled answer would have left those out."""
    requests = [request(index, index * 0.5, output_tokens=1) for index in range(20)]
    found, _, asked = bench(Answers(ttft_s=0.1), requests, stalls=[(2.0, 7.0)])
    ttft_s = [(text_times(one)[0] - one.intended_us) / 1e6 for one in found.exchanges]
    expected = [
        max(at + 0.1, 7.0) - at if 2.0 <= at + 0.1 < 7.0 else 0.1
        for at in (index * 0.5 for index in range(20))
    ]
    assert ttft_s == pytest.approx(expected, abs=1e-6)
    assert max(ttft_s) == pytest.approx(5.0, abs=1e-6)
    assert [one.sent_us for one in found.exchanges] == [one.intended_us for one in found.exchanges]
    assert len({one.connection for one in asked}) >= 10  # as many as waited at once


def test_the_same_stall_hides_in_a_closed_loop() -> None:
    requests = [
        request(index, 0.0, output_tokens=1, after=index - 1 if index else None, delay_s=0.4)
        for index in range(20)
    ]
    found, _, _ = bench(Answers(ttft_s=0.1), requests, stalls=[(2.0, 7.0)], clients=1)
    ttft_s = [(text_times(one)[0] - one.intended_us) / 1e6 for one in found.exchanges]
    assert sum(one > 0.2 for one in ttft_s) == 1
    assert found.clients == 1


def test_a_closed_loop_waits_for_its_answers_and_reads_no_further() -> None:
    read = 0

    def endless() -> Iterable[Request]:
        """Two clients, 0.5 s of thought, without end."""
        nonlocal read
        while True:
            yield request(
                read,
                0.0,
                after=read - 2 if read > 1 else None,
                delay_s=0.5,
                session=read,
                output_tokens=1 + read % 2 * 9,
            )
            read += 1

    found, _, _ = bench(Answers(ttft_s=0.1, gap_s=0.1), endless(), clients=2, max_s=10.0, drain_s=0.0)
    # Client 0's answers take 0.1 s, client 1's 1 s; each thinks 0.5 s.
    for client, cycle_us in ((0, 600_000), (1, 1_500_000)):
        own = [one for one in found.exchanges if one.client == client and one.error is None]
        assert [one.intended_us for one in own] == [number * cycle_us for number in range(len(own))]
        assert len(own) == -(-10_000_000 // cycle_us) - (
            10_000_000 % cycle_us < (100_000 if client == 0 else 1_000_000)
        )
    assert read < 45  # those of the slow client were read past


def test_a_session_goes_on_after_its_answer_with_what_the_server_said() -> None:
    first = request(0, 0.0, session=9)
    asked, said = first.parts[0], Part("said", 4, answer_of=0)
    then = request(1, 0.25, session=9, turn=1, after=0, delay_s=0.25, parts=(asked, said, Part("more", 2)))
    found, _, bodies = bench(Answers(word=" really"), [first, then], discover={"prompts": "text"})
    assert found.exchanges[0].end_us == 350_000
    assert found.exchanges[1].intended_us == found.exchanges[1].sent_us == 600_000
    assert (
        bodies[1].body["prompt"]
        == f"{first.prompt_text()} really really really really {_words(then.parts[2])}"
    )
    found, _, bodies = bench(Answers(token_ids=True), [first, then])
    prompt = bodies[1].body["prompt"]
    assert prompt[:5] == first.token_ids()
    assert prompt[5:9] == [1000, 1001, 1002, 1003]
    found, _, bodies = bench(Answers(word=" so"), [first, then], discover={"api": "chat"})
    assert [(one["role"], one["content"]) for one in bodies[1].body["messages"]] == [
        ("user", first.prompt_text()),
        ("assistant", " so so so so"),
        ("user", _words(then.parts[2])),
    ]


def _words(part: Part) -> str:
    return request(0, 0.0, parts=(part,)).prompt_text()


def test_what_waited_for_a_failed_answer_is_skipped_and_offered_all_the_same() -> None:
    usual = Answers()

    def script(asked: Asked) -> Reply:
        return (
            error_reply(500, "out of order", after_s=0.3) if len(asked.body["prompt"]) == 3 else usual(asked)
        )

    parts = (Part("bad", 3),)
    requests = [
        request(0, 0.0, session=1, parts=parts),
        request(1, 0.1, session=2),
        request(2, 0.5, session=1, turn=1, after=0, delay_s=0.5),
        request(3, 0.7, session=1, turn=2, after=2, delay_s=0.2),
        request(4, 0.8, session=2, turn=1, after=1, delay_s=0.1),
    ]
    found, _, asked = bench(script, requests, probe=usual)
    assert [one.error for one in found.exchanges] == ["status", None, "skipped", "skipped", None]
    failed = found.exchanges[0]
    assert (failed.status, failed.message, failed.end_us) == (500, "500: out of order", 300_000)
    skipped = found.exchanges[2]
    assert (skipped.intended_us, skipped.sent_us, skipped.started_us) == (800_000, None, None)
    assert skipped.message == "the answer before it failed"
    assert found.exchanges[3].intended_us == 1_000_000
    assert len(asked) == 3


def test_a_client_of_a_closed_loop_begins_its_next_session_after_a_failure() -> None:
    usual = Answers()

    def script(asked: Asked) -> Reply:
        return error_reply(503, "busy", after_s=0.2) if len(asked.body["prompt"]) == 3 else usual(asked)

    requests = [
        request(0, 0.0, session=0, parts=(Part("bad", 3),)),
        request(1, 0.0, session=0, turn=1, after=0, delay_s=0.1),
        request(2, 0.0, session=1, after=1, delay_s=0.1),
    ]
    found, _, _ = bench(script, requests, probe=usual, clients=1)
    assert [one.error for one in found.exchanges] == ["status", "skipped", None]
    assert [one.intended_us for one in found.exchanges] == [0, 300_000, 400_000]
    assert [one.client for one in found.exchanges] == [0, 0, 0]


def test_a_limit_of_time_ends_the_sending_and_a_drain_what_runs() -> None:
    requests = [request(index, index * 1.0, output_tokens=31) for index in range(100)]
    for drain_s, done in ((None, 5), (1.0, 3), (0.0, 2)):
        found, _, asked = bench(Answers(ttft_s=0.1, gap_s=0.1), requests, max_s=4.5, drain_s=drain_s)
        assert found.stopped == "the limit of 4.5 s"
        assert len(found.exchanges) == len(asked) == 5
        assert [one.error for one in found.exchanges] == [None] * done + ["client"] * (5 - done)
        for one in found.exchanges[done:]:
            assert one.message == "given up: the limit of 4.5 s"
            assert one.end_us == 4_500_000 + round((drain_s or 0) * 1e6)
            assert one.chunks


def test_what_was_due_and_could_not_be_sent_is_in_the_record() -> None:
    requests = [request(index, index * 0.5, output_tokens=21) for index in range(100)]
    found, _, asked = bench(
        Answers(ttft_s=0.1, gap_s=0.1), requests, max_s=3.2, drain_s=0.0, discover={"max_connections": 1}
    )
    assert len(found.exchanges) == 7
    assert [one.error for one in found.exchanges] == [None] + ["client"] * 6
    assert [one.sent_us for one in found.exchanges] == [0, 2_100_000] + [None] * 5
    assert len(asked) == 2


@pytest.mark.parametrize("way", ["event", "cancel"])
def test_a_run_that_is_stopped_keeps_what_it_has(way: str) -> None:
    async def main() -> Run:
        async with scripted(Answers(ttft_s=0.1, gap_s=0.1)) as server:
            target = await discover(server.url)
            stop = asyncio.Event()
            requests = (request(index, index * 1.0, output_tokens=16) for index in range(1000))
            task = asyncio.create_task(run(target, requests, stop=stop, clock_ns=clock_ns))
            await asyncio.sleep(5.25)
            if way == "event":
                stop.set()
            else:
                task.cancel()
            return await task

    found = in_virtual_time(main)
    assert found.stopped == ("stopped" if way == "event" else "interrupted")
    assert [one.error for one in found.exchanges] == [None] * 4 + ["client"] * 2
    assert found.end_us == 5_250_000


def test_the_progress_is_told_ten_times_a_second() -> None:
    told: list[tuple[float, int, int, int, int]] = []

    def on_change(progress: Progress) -> None:
        told.append(
            (
                round(progress.elapsed_s, 6),
                progress.offered,
                progress.running,
                progress.done,
                progress.output_tokens,
            )
        )

    bench(Answers(ttft_s=0.25, gap_s=0.1), [request(0, 0.0), request(1, 0.45)], on_change=on_change)
    assert told[2] == (0.3, 1, 1, 0, 1)
    assert told[4] == (0.5, 2, 2, 0, 3)
    assert told[-1] == (1.0, 2, 0, 2, 8)


def test_the_server_s_numbers_are_asked_each_second() -> None:
    calls = 0

    async def scrape() -> dict[str, float] | None:
        nonlocal calls
        calls += 1
        await asyncio.sleep(0.125)
        return {"running": float(calls)} if calls != 2 else None

    found, _, _ = bench(Answers(ttft_s=2.5), [request(0, 0.0, output_tokens=1)], scrape=scrape)
    assert [(one.at_us, one.values["running"]) for one in found.server] == [
        (62_500, 1.0),
        (2_062_500, 3.0),
        (2_562_500, 4.0),
    ]


def test_slow_numbers_of_the_server_shift_no_others_and_the_last_ones_are_not_waited_for_long() -> None:
    loop_times: list[float] = []

    async def scrape() -> dict[str, float] | None:
        loop_times.append(asyncio.get_running_loop().time())
        await asyncio.sleep(2.25 if len(loop_times) in (2, 5) else 0.0)
        return {"running": 1.0}

    found, _, _ = bench(Answers(ttft_s=5.5), [request(0, 0.0, output_tokens=1)], scrape=scrape)
    assert [time - loop_times[0] for time in loop_times] == pytest.approx([0, 1, 4, 5, 5.5])
    assert [one.at_us for one in found.server] == [0, 2_125_000, 4_000_000, 5_000_000]


def test_a_workload_that_breaks_ends_the_run_with_its_error() -> None:
    def broken() -> Iterable[Request]:
        yield request(0, 0.0)
        yield request(1, 2.0)
        raise ZeroDivisionError("line 3")

    with pytest.raises(ZeroDivisionError, match="line 3"):
        bench(Answers(), broken())


def test_an_endless_workload_is_read_as_time_goes() -> None:
    read = 0

    def endless() -> Iterable[Request]:
        nonlocal read
        while True:
            yield request(read, read * 0.01, output_tokens=1)
            read += 1

    found, _, asked = bench(Answers(ttft_s=0.1), endless(), max_s=4.995)
    assert len(found.exchanges) == len(asked) == 500
    assert read <= 605


def test_presets_run_as_they_are_described() -> None:
    for name, clients in (("chat", None), ("agent", None), ("batch", 64)):
        workload = load_workload(name)
        wanted = [one for one, _ in zip(requests_of(workload), range(25), strict=False)]
        found, _, asked = bench(Answers(ttft_s=0.01, gap_s=0.0001, cached_tokens=1), wanted, clients=clients)
        assert [one.index for one in found.exchanges] == list(range(25))
        assert {one.error for one in found.exchanges} == {None}
        assert [one.output_tokens for one in found.exchanges] == [one.output_tokens for one in wanted]
        # Of 64 that ask in one moment anybody may arrive first.
        assert sorted(len(body.body["prompt"]) for body in asked) == sorted(
            one.input_tokens or 0 for one in wanted
        )
        ends = {one.index: one.end_us for one in found.exchanges}
        for one, exchange in zip(wanted, found.exchanges, strict=True):
            at = one.at_s * 1e6 if one.after is None else ends[one.after] + one.delay_s * 1e6
            assert exchange.intended_us == pytest.approx(at, abs=1.0)
            assert exchange.sent_us == exchange.intended_us


def test_nothing_is_left_of_a_run_in_its_loop() -> None:
    async def main() -> set[str]:
        async with scripted(lambda _: Reply([Step(0.1, Hang())])) as server:
            server.script = Answers()
            target = await discover(server.url)
            server.script = lambda _: Reply([Step(0.1, Hang())])
            await run(target, [request(0, 0.0), request(1, 0.2)], max_s=1.0, drain_s=0.0, clock_ns=clock_ns)
        return {str(task.get_coro()) for task in asyncio.all_tasks() if task is not asyncio.current_task()}

    assert in_virtual_time(main) == set()


def test_prompts_and_answers_are_let_go_when_they_are_over() -> None:
    usual = Answers(input_tokens=1)

    def script(asked: Asked) -> Reply:
        asked.body["prompt"] = ""
        return usual(asked)

    def requests() -> Iterable[Request]:
        for index in range(40):
            yield request(index, index * 2.0, parts=(), text=f"{index:1000000}", given_tokens=9)

    tracemalloc.start()
    try:
        found, _, _ = bench(script, requests(), probe=usual)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [one.error for one in found.exchanges] == [None] * 40
    assert {one.wanted_input for one in found.exchanges} == {9}
    assert most < 20_000_000
