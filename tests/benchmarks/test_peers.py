"""What the comparison with other engines rests on: its clock, its client and its ratios."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.peers.client import closed_loop
from benchmarks.peers.report import Report
from benchmarks.peers.sides import SIDES, parse_sides
from benchmarks.peers.work import WARM, WORKS, Clock, Task, Work


def event(text: str, finish: str = "null") -> bytes:
    return f'data: {{"choices":[{{"text":"{text}","finish_reason":{finish}}}]}}\n\n'.encode()


def chunks(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (*parts, b""))


async def load_of(body: bytes, requests: int = 4) -> int:
    """How many answers a load gets from a server that always says `body`."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]))
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        load = await closed_loop(port, [{"prompt": "x"}] * requests, 2)
        return len(load.answers)


async def test_events_may_be_cut_anywhere() -> None:
    whole = event("a") + event("b", '"length"') + b"data: [DONE]\n\n"
    assert await load_of(chunks(*(whole[place : place + 1] for place in range(len(whole))))) == 4
    assert await load_of(chunks(whole.replace(b"\n", b"\r\n"))) == 4


async def test_an_answer_that_stopped_early_is_an_error() -> None:
    with pytest.raises(ExceptionGroup, match="unhandled errors") as caught:
        await load_of(chunks(event("a", '"stop"')))
    assert "finish_reason 'stop'" in str(caught.value.exceptions[0])


def test_only_steps_after_one_with_all_streams_are_counted() -> None:
    clock = Clock(streams=2, decoded=3)
    given = iter([0, 1, 2, *[2] * (WARM + 3)])
    while not clock.done:
        clock.step(lambda: next(given))
    assert next(given, None) is None
    assert clock.rate() > 0


def test_a_side_is_compared_with_octavo_of_its_format_round_by_round() -> None:
    sides = parse_sides(["octavo:q4_1", "octavo:q4_0", "llama:q4_0", "llama:q8_0"])
    work = Work("prefill", 512)
    report = Report([work], sides)
    for name, rounds in zip(range(4), ([10.0, 20.0], [30.0, 40.0], [15.0, 10.0], [5.0, 40.0]), strict=True):
        for rate in rounds:
            report.add(work, sides[name], [rate, rate / 2])
    assert report.ratios(work, sides[2]) == [2.0, 4.0]
    assert report.ratios(work, sides[3]) == [2.0, 0.5]
    report.fail(sides[3], work, "gone")
    assert report.ratios(work, sides[3]) == [2.0, 0.5]


@pytest.mark.parametrize("work", WORKS)
def test_a_task_survives_its_journey(work: Work) -> None:
    task = Task("m", work, 49_152, flags={"threads": 2, "kv": "u8"})
    assert Task.decode(task.encode()) == task


def test_all_sides_have_a_peer() -> None:
    assert [side.name for side in parse_sides(list(SIDES))] == list(SIDES)
    with pytest.raises(ValueError, match="no side"):
        parse_sides(["ollama:q4_0"])
