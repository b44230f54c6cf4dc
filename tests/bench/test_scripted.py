"""The server of a script, and the loop of virtual time: what the other tests of this room stand on."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from tests.bench.scripted import (
    DONE,
    Answers,
    Cut,
    Hang,
    Reply,
    ScriptedServer,
    Step,
    chat_event,
    clock_ns,
    in_virtual_time,
    scripted,
)


async def _ask(server: ScriptedServer, path: str, body: object) -> list[tuple[int, bytes]]:
    """All that is read until the connection ends or `[DONE]`, with microseconds from the request."""
    port = int(server.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = json.dumps(body).encode()
    start = clock_ns()
    writer.write(b"POST %b HTTP/1.1\r\ncontent-length: %d\r\n\r\n%b" % (path.encode(), len(data), data))
    found = []
    try:
        while part := await reader.read(1 << 16):
            found.append(((clock_ns() - start) // 1000, part))
            if part.endswith((b"0\r\n\r\n", b"}")):
                break
    finally:
        writer.close()
        await writer.wait_closed()
    return found


def test_a_stamp_is_the_script_s_to_the_microsecond_and_hours_take_no_time() -> None:
    async def main() -> list[int]:
        steps = [Step(3600.0, b"a"), Step(0.0125, b"b"), Step(1e-6, b"c")]
        async with scripted(lambda _: Reply(steps)) as server:
            return [at for at, _ in await _ask(server, "/x", {})]

    began = time.monotonic()
    assert in_virtual_time(main) == [3_600_000_000, 3_600_012_500, 3_600_012_501]
    assert time.monotonic() - began < 60


def test_a_usual_answer_has_its_tokens_at_their_times() -> None:
    async def main() -> list[tuple[int, bytes]]:
        async with scripted(Answers(ttft_s=0.3, gap_s=0.02, per_event=2)) as server:
            body = {"messages": [{"role": "user", "content": "a b c"}], "max_tokens": 5, "stream": True}
            body["stream_options"] = {"include_usage": True}
            return await _ask(server, "/v1/chat/completions", body)

    found = in_virtual_time(main)
    assert [at for at, part in found if b"word" in part] == [300_000, 320_000, 340_000]
    whole = b"".join(part for _, part in found)
    assert whole.count(b" word") == 5
    assert b'"prompt_tokens": 3, "completion_tokens": 5' in whole
    assert DONE in whole


def test_events_can_be_coalesced_and_split() -> None:
    async def main() -> list[tuple[int, bytes]]:
        async with scripted(Answers(ttft_s=0.3, gap_s=0.02, events_per_write=2)) as server:
            return await _ask(server, "/v1/completions", {"prompt": "a", "max_tokens": 5, "stream": True})

    times = [(at, part.count(b"word")) for at, part in in_virtual_time(main) if b"word" in part]
    assert times == [(300_000, 2), (340_000, 2), (380_000, 1)]


def test_a_stall_holds_back_what_would_have_been_written() -> None:
    async def main() -> list[int]:
        async with scripted(Answers(ttft_s=0.5, gap_s=0.5), stalls=[(0.7, 5.7)]) as server:
            found = await _ask(server, "/v1/completions", {"prompt": "a", "max_tokens": 3, "stream": True})
            return [at for at, part in found if b"word" in part]

    assert in_virtual_time(main) == [500_000, 5_700_000, 6_200_000]


@pytest.mark.parametrize("reset", [False, True])
def test_a_connection_can_be_cut(reset: bool) -> None:
    async def main() -> tuple[list[int], bool]:
        steps = [Step(0.1, chat_event("a")), Step(0.1, Cut(reset=reset))]
        async with scripted(lambda _: Reply(steps)) as server:
            start = clock_ns()
            try:
                found = await _ask(server, "/x", {})
            except ConnectionResetError:
                return [(clock_ns() - start) // 1000], True
            assert len(found) == 1
            return [(clock_ns() - start) // 1000], False

    times, was_reset = in_virtual_time(main)
    assert times == [200_000]
    assert not was_reset or reset


def test_a_silent_server_leaves_the_time_to_the_client() -> None:
    async def main() -> tuple[float, bool]:
        async with scripted(lambda _: Reply([Step(0.1, Hang())])) as server:
            start = clock_ns()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(_ask(server, "/x", {}), 7.0)
            took = (clock_ns() - start) / 1e9
            await asyncio.sleep(0.01)
            return took, server.asked[0].left

    assert in_virtual_time(main) == (7.0, True)


def test_what_a_script_refuses_or_lacks_is_an_error() -> None:
    async def main() -> list[bytes]:
        script = Answers(refuses=frozenset({"ignore_eos"}), completions=False)
        async with scripted(script) as server:
            first = await _ask(server, "/v1/chat/completions", {"messages": [], "ignore_eos": True})
            second = await _ask(server, "/v1/completions", {"prompt": "a"})
            return [first[-1][1], second[-1][1]]

    first, second = in_virtual_time(main)
    assert first.startswith(b"HTTP/1.1 400") and b"ignore_eos is not known" in first
    assert second.startswith(b"HTTP/1.1 404")
