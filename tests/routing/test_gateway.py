"""Requests on their way through tiers that answer, fail, hang, break off and come back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from octavo.errors import DeadlineExceeded, InvalidParameter, Overloaded, TierFailed
from octavo.routing.asked import COMPLETIONS, EMBEDDINGS
from octavo.routing.decider import Verdict
from tests.bench.scripted import Asked, Cut, Hang, Reply, Script, Step, chat_event, error_reply, json_reply
from tests.routing.gateways import Stage, asked, gone, played, stream, whole


def test_the_default_tier_answers_and_the_bill_is_its_usage_at_its_prices(tmp_path: Path) -> None:
    async def use(stage: Stage) -> None:
        data, course = await stage.ask()
        assert msgspec.json.decode(data)["choices"][0]["message"]["content"] == "yes"
        assert course.cost == pytest.approx((1000 * 1.0 + 100 * 2.0) / 1e6)
        assert course.headers() == {
            "x-octavo-tier": "small",
            "x-octavo-reason": "default tier",
            "x-octavo-attempts": "small=answered",
            "x-octavo-cost": "0.0012",
        }
        [sent] = stage.servers["small"].of("completions")
        assert sent.path == "/v1/chat/completions"
        assert sent.body["model"] == "small-model"
        assert stage.counts() == {"small": 1, "large": 0}

    played({"small": whole(), "large": whole()}, use, tmp_path)


def test_a_tier_s_key_is_sent_and_the_client_s_is_not(tmp_path: Path) -> None:
    async def use(stage: Stage) -> None:
        await stage.ask(asked(headers={"authorization": "Bearer of-the-client", "x-request-id": "req_7"}))
        [sent] = stage.servers["small"].of("completions")
        assert sent.headers["authorization"] == "Bearer secret-1"
        assert sent.headers["x-request-id"] == "req_7"
        assert "secret" not in repr(stage.gateway.tiers)

    played({"small": whole()}, use, tmp_path, more={"small": 'key_variable = "A_KEY"'})


@pytest.mark.parametrize(
    ("script", "outcome", "asked_for"),
    [
        (None, "connect", 0),
        (lambda _: Reply((Step(0.0, Cut()),), raw=True), "cut", 2),
        (lambda _: error_reply(500, "oh"), "server", 2),
        (lambda _: error_reply(429, "later"), "overloaded", 1),
        (lambda _: error_reply(401, "no"), "key", 1),
        (lambda _: error_reply(404, "no such model"), "model", 1),
        (lambda _: Reply((Step(0.0, Hang()),), raw=True), "timeout", 1),
        (lambda _: Reply((Step(0.0, b"<html>"),), 200, "application/json", "length"), "cut", 2),
    ],
    ids=["not there", "cut", "500", "429", "401", "404", "hangs", "no JSON"],
)
def test_what_a_tier_cannot_do_the_next_one_does(
    tmp_path: Path, script: Script | None, outcome: str, asked_for: int
) -> None:
    async def use(stage: Stage) -> None:
        _, course = await stage.ask()
        assert course.tier == "large"
        assert {attempt.outcome for attempt in course.attempts} == {outcome, "answered"}
        assert course.headers()["x-octavo-reason"] == f"default tier; small {outcome}"
        assert course.cost == pytest.approx(0.012)
        assert stage.counts() == {"small": asked_for, "large": 1}

    played({"small": script, "large": whole()}, use, tmp_path)


def test_what_the_client_has_to_mend_it_is_told_and_nobody_else_is_asked(tmp_path: Path) -> None:
    async def use(stage: Stage) -> None:
        course = await stage.gateway.decide(asked())
        answering = await stage.gateway.answer(course)
        assert answering.status == 400
        assert b"temperature is bad" in await answering.read()
        assert course.headers()["x-octavo-attempts"] == "small=refused"
        assert stage.counts() == {"small": 1, "large": 0}
        assert stage.gateway.places["small"].breaker.state(0.0) == "closed"

    played({"small": lambda _: error_reply(400, "temperature is bad"), "large": whole()}, use, tmp_path)


def test_a_request_too_long_for_one_tier_goes_to_the_next_and_too_long_for_all_says_so(
    tmp_path: Path,
) -> None:
    def too_long(_: Asked) -> Reply:
        return json_reply({"error": {"message": "too long", "code": "context_length_exceeded"}}, 400)

    async def use(stage: Stage) -> None:
        _, course = await stage.ask()
        assert (course.tier, stage.counts()["small"]) == ("large", 1)
        stage.servers["large"].script = too_long
        with pytest.raises(InvalidParameter, match=r"too long: small: it answers 400 \(too long\); large"):
            await stage.ask()
        assert stage.ended[-1].headers()["x-octavo-tier"] == "none"
        assert stage.ended[-1].reason == "default tier; small context; large context"
        assert stage.gateway.places["small"].breaker.state(0.0) == "closed"

    played({"small": too_long, "large": whole()}, use, tmp_path)


def test_nobody_answers(tmp_path: Path) -> None:
    async def use(stage: Stage) -> None:
        with pytest.raises(
            TierFailed, match=r"No tier answered: small: connection refused; large: it answers 500"
        ):
            await stage.ask()
        [course] = stage.ended
        assert course.tier is None
        assert [one.outcome for one in stage.attempts].count("connect") == 2  # one in each round
        assert stage.gateway.running == 0

    played({"small": None, "large": lambda _: error_reply(500, "oh")}, use, tmp_path)


def test_all_busy_says_when_to_come_again(tmp_path: Path) -> None:
    def busy(_: Asked) -> Reply:
        reply = error_reply(429, "later")
        return Reply(reply.steps, 429, reply.content_type, "length", (("retry-after", "7"),))

    async def use(stage: Stage) -> None:
        with pytest.raises(Overloaded, match="All tiers are busy") as caught:
            await stage.ask()
        assert caught.value.retry_after_s == 7
        assert stage.gateway.places["small"].breaker.state(stage.gateway.now_s()) == "open"

    played({"small": busy}, use, tmp_path, general="rounds = 1")


def test_the_deadline_is_for_all_attempts_together(tmp_path: Path) -> None:
    async def use(stage: Stage) -> float:
        began_s = stage.gateway.now_s()
        with pytest.raises(
            DeadlineExceeded, match=r"within 5 s; tried: small \(no answer within 3 s\), large"
        ):
            await stage.ask()
        return stage.gateway.now_s() - began_s

    def hangs(_: Asked) -> Reply:
        return Reply((Step(0.0, Hang()),), raw=True)

    took_s = played(
        {"small": hangs, "large": hangs},
        use,
        tmp_path,
        general="deadline_s = 5",
        more={"small": "answer_s = 3", "large": "answer_s = 3"},
    )
    assert took_s == pytest.approx(5.0, abs=0.01)


def test_a_stream_is_passed_on_as_it_comes_with_its_cost_at_the_end(tmp_path: Path) -> None:
    async def use(stage: Stage) -> None:
        course = await stage.gateway.decide(asked(stream=True, at_s=stage.gateway.now_s()))
        answering = await stage.gateway.answer(course)
        assert answering.streams
        assert "x-octavo-cost" not in course.headers()
        pieces, times = [], []
        while piece := await answering.read():
            pieces.append(piece)
            times.append(stage.gateway.now_s())
        assert pieces == [
            chat_event("a"),
            chat_event("b", finish="stop"),
            b": x-octavo-cost: 0.0012\n\ndata: [DONE]\n\n",
        ]
        assert times[1] - times[0] == pytest.approx(0.1, abs=1e-6)
        [sent] = stage.servers["small"].of("completions")
        assert sent.body["stream_options"] == {"include_usage": True}
        await stage.ask(asked(stream=True, at_s=stage.gateway.now_s()))
        assert stage.servers["small"].connections == 1  # kept after the end

    played({"small": stream()}, use, tmp_path)


def test_the_count_of_tokens_is_passed_on_to_who_asked_for_it(tmp_path: Path) -> None:
    async def use(stage: Stage) -> bytes:
        return (await stage.ask(asked(stream=True, stream_options={"include_usage": True})))[0]

    assert b'"prompt_tokens": 1000' in played({"small": stream()}, use, tmp_path)


def test_a_stream_without_a_count_is_billed_by_its_events(tmp_path: Path) -> None:
    async def use(stage: Stage) -> None:
        _, course = await stage.ask(asked(stream=True))
        [attempt] = course.attempts
        assert attempt.usage is not None and attempt.usage.estimated
        assert attempt.usage.output == 2
        assert "stream_options" not in stage.servers["small"].of("completions")[0].body

    played({"small": stream(usage=False)}, use, tmp_path, more={"small": "stream_usage = false"})


@pytest.mark.parametrize(
    "steps",
    [
        [Step(0.0, Cut())],
        [Step(0.0, Cut(reset=True))],
        [Step(0.0, b": ping\n\n"), Step(0.1, Cut())],
        [Step(0.0, b'data: {"error": {"message": "out of memory"}}\n\n')],
    ],
    ids=["cut", "reset", "after a comment", "an error's event"],
)
def test_a_stream_that_ends_before_its_first_event_is_lost_on_nobody(
    tmp_path: Path, steps: list[Step]
) -> None:
    async def use(stage: Stage) -> None:
        data, course = await stage.ask(asked(stream=True))
        assert course.tier == "large"
        assert data.startswith(chat_event("a")) and data.endswith(b"data: [DONE]\n\n")
        assert b"error" not in data

    played({"small": lambda _: Reply(steps), "large": stream()}, use, tmp_path)


@pytest.mark.parametrize(
    ("step", "told"),
    [
        (Step(0.1, Cut()), "in the middle of the answer"),
        (Step(0.1, Hang()), "nothing came for 60 s"),
        (Step(0.1, b'data: {"error": {"message": "out of memory"}}\n\n'), "out of memory"),
    ],
    ids=["cut", "hangs", "an error's event"],
)
def test_a_stream_that_breaks_off_ends_with_an_error(tmp_path: Path, step: Step, told: str) -> None:
    async def use(stage: Stage) -> None:
        data, course = await stage.ask(asked(stream=True))
        *events, last, done = data.split(b"\n\n")[:-1]
        assert events == [chat_event("a").strip()]
        error = msgspec.json.decode(last.removeprefix(b"data: "))["error"]
        assert error["code"] == "tier_failed"
        assert error["message"].startswith("The tier small broke off its answer: ")
        assert told in error["message"]
        assert done == b"data: [DONE]"
        [attempt] = course.attempts
        assert (attempt.outcome, stage.counts()) == ("broken", {"small": 1, "large": 0})
        assert attempt.usage is not None and attempt.usage.output == 1
        assert stage.gateway.running == 0

    played({"small": lambda _: Reply([Step(0.0, chat_event("a")), step]), "large": stream()}, use, tmp_path)


def test_a_stream_that_ends_cleanly_but_too_soon_is_broken(tmp_path: Path) -> None:
    async def use(stage: Stage) -> bytes:
        return (await stage.ask(asked(stream=True)))[0]

    data = played({"small": stream(Step(0.1, chat_event("a")), usage=False, done=False)}, use, tmp_path)
    assert b"its stream ended in the middle of the answer" in data


def test_a_stream_s_time_may_be_over_in_the_middle(tmp_path: Path) -> None:
    async def use(stage: Stage) -> None:
        data, course = await stage.ask(asked(stream=True, at_s=stage.gateway.now_s()))
        assert b'"code":"timeout"' in data
        assert course.attempts[0].outcome == "broken"
        assert stage.gateway.places["small"].breaker.state(stage.gateway.now_s()) == "closed"

    script = stream(Step(0.1, chat_event("a")), Step(9.0, chat_event("b")))
    played({"small": script}, use, tmp_path, general="deadline_s = 3", more={"small": "failures = 1"})


def test_a_tier_that_fails_is_left_alone_and_found_again(tmp_path: Path) -> None:
    async def use(stage: Stage) -> None:
        small, healthy = stage.servers["small"], whole("well")
        for _ in range(5):
            _, course = await stage.ask(asked(at_s=stage.gateway.now_s()))
            assert course.tier == "large"
        assert stage.counts() == {"small": 2, "large": 5}
        last = stage.ended[-1].headers()
        assert last["x-octavo-reason"] == "default tier; small not free or not well"
        small.script = healthy
        await asyncio.sleep(10.5)
        first = asyncio.create_task(stage.ask(asked(at_s=stage.gateway.now_s())))
        await asyncio.sleep(0)
        second = asyncio.create_task(stage.ask(asked(at_s=stage.gateway.now_s())))
        (_, one), (_, other) = await asyncio.gather(first, second)
        assert (one.tier, other.tier) == (
            "small",
            "large",
        )  # one request tries it, the others do not wait for that
        _, course = await stage.ask(asked(at_s=stage.gateway.now_s()))
        assert course.tier == "small"

    played(
        {"small": lambda _: error_reply(500, "oh"), "large": whole()},
        use,
        tmp_path,
        more={"small": "failures = 2\ncooldown_s = 10\nretries = 0"},
    )


def test_who_watches_finds_a_tier_before_its_time(tmp_path: Path) -> None:
    async def use(stage: Stage) -> None:
        watching = asyncio.create_task(stage.gateway.watch())
        place = stage.gateway.places["small"]
        await stage.ask(asked(at_s=stage.gateway.now_s()))
        assert place.breaker.state(stage.gateway.now_s()) == "open"
        stage.servers["small"].script = whole()
        await asyncio.sleep(5.5)
        assert place.breaker.state(stage.gateway.now_s()) == "half-open"
        _, course = await stage.ask(asked(at_s=stage.gateway.now_s()))
        assert course.tier == "small"
        await gone(watching)

    played(
        {"small": lambda _: error_reply(500, "oh"), "large": whole()},
        use,
        tmp_path,
        more={"small": "failures = 1\ncooldown_s = 100"},
    )


def test_where_no_tier_is_well_the_least_bad_is_tried(tmp_path: Path) -> None:
    async def use(stage: Stage) -> None:
        for _ in range(2):
            with pytest.raises(TierFailed):
                await stage.ask(asked(at_s=stage.gateway.now_s()))
        states = {
            name: place.breaker.state(stage.gateway.now_s()) for name, place in stage.gateway.places.items()
        }
        assert states == {"small": "open", "large": "open"}
        stage.servers["large"].script = whole()
        _, course = await stage.ask(asked(at_s=stage.gateway.now_s()))
        assert course.tier == "large"  # its time comes first

    def fails(_: Asked) -> Reply:
        return error_reply(500, "oh")

    more = {"small": "failures = 1\ncooldown_s = 50", "large": "failures = 1\ncooldown_s = 20"}
    played({"small": fails, "large": fails}, use, tmp_path, more=more)


def test_a_full_tier_hands_on_and_where_all_are_full_requests_wait_in_order(tmp_path: Path) -> None:
    async def use(stage: Stage) -> None:
        ended: list[int] = []

        async def one(number: int) -> str | None:
            _, course = await stage.ask(asked(at_s=stage.gateway.now_s()))
            ended.append(number)
            return course.tier

        tasks = []
        for number in range(8):
            tasks.append(asyncio.create_task(one(number)))
            await asyncio.sleep(0.01)
        for place in stage.gateway.places.values():
            assert place.running <= 2
        tiers = await asyncio.gather(*tasks)
        assert tiers[:4] == ["small", "small", "large", "large"]
        assert ended == list(range(8))
        assert all(place.running == place.waiting == 0 for place in stage.gateway.places.values())

    more = dict.fromkeys(("small", "large"), "most_running = 2")
    played({"small": whole(after_s=1.0), "large": whole(after_s=1.0)}, use, tmp_path, more=more)


def test_who_waits_and_goes_away_takes_no_place(tmp_path: Path) -> None:
    async def use(stage: Stage) -> None:
        tasks = [asyncio.create_task(stage.ask(asked(at_s=stage.gateway.now_s()))) for _ in range(3)]
        await asyncio.sleep(0.5)
        await gone(tasks[1])
        await asyncio.gather(tasks[0], tasks[2])
        assert stage.counts() == {"small": 2}
        assert stage.gateway.places["small"].waiting == 0

    played({"small": whole(after_s=1.0)}, use, tmp_path, more={"small": "most_running = 1"})


def test_a_client_that_leaves_ends_the_tier_s_work(tmp_path: Path) -> None:
    async def use(stage: Stage) -> None:
        task = asyncio.create_task(stage.ask(asked(stream=True, at_s=stage.gateway.now_s())))
        await asyncio.sleep(0.05)
        await gone(task)  # before the answer
        course = await stage.gateway.decide(asked(stream=True, at_s=stage.gateway.now_s()))
        answering = await stage.gateway.answer(course)
        answering.leave()  # in the middle of it
        await asyncio.sleep(0.01)
        assert [attempt.outcome for attempt in stage.attempts] == ["left", "left"]
        assert all(request.left for request in stage.servers["small"].of("completions"))
        place = stage.gateway.places["small"]
        assert (place.running, place.breaker.state(stage.gateway.now_s())) == (0, "closed")
        assert course.cost is not None and course.cost > 0

    played({"small": stream(Step(0.1, chat_event("a")), Step(5.0, chat_event("b")))}, use, tmp_path)


def test_an_unknown_price_is_not_nothing(tmp_path: Path) -> None:
    async def use(stage: Stage) -> dict[str, str]:
        return (await stage.ask())[1].headers()

    assert played({"nobody": whole()}, use, tmp_path)["x-octavo-cost"] == "unknown"


def test_a_decider_is_asked_with_what_the_user_said_last(tmp_path: Path) -> None:
    class Long:
        async def decide(self, prompt: str) -> Verdict:
            return Verdict("large" if len(prompt) > 10 else "small", len(prompt) / 100, "by length")

    async def use(stage: Stage) -> None:
        messages = [{"role": "user", "content": "x" * 50}, {"role": "assistant", "content": "y"}]
        for said, tier, score in (("short", "small", "0.05"), ("quite a long one", "large", "0.16")):
            _, course = await stage.ask(asked(messages=[*messages, {"role": "user", "content": said}]))
            headers = course.headers()
            assert headers["x-octavo-tier"] == tier
            assert (headers["x-octavo-score"], headers["x-octavo-reason"]) == (score, "by length")

    played({"small": whole(), "large": whole()}, use, tmp_path, decider=Long())


def test_a_tier_that_is_not_able_hands_on_to_a_dearer_one(tmp_path: Path) -> None:
    async def use(stage: Stage) -> None:
        _, course = await stage.ask(asked(tools=[{"type": "function", "function": {"name": "f"}}]))
        assert course.tier == "large"
        assert course.reason == "default tier; small is not able"

    played(
        {"small": whole(), "large": whole(), "hosted": whole()},
        use,
        tmp_path,
        more=dict.fromkeys(("large", "hosted"), 'abilities = ["tools"]'),
    )


def test_fallbacks_are_tried_in_the_order_that_is_written_and_no_others(tmp_path: Path) -> None:
    async def use(stage: Stage) -> None:
        course = await stage.gateway.decide(asked())
        assert course.order == ("small", "hosted")
        assert (await stage.gateway.decide(asked(model="large"))).order == ("large", "hosted", "small")
        assert (await stage.gateway.decide(asked(headers={"x-octavo-fallback": "no"}))).order == ("small",)
        _, course = await stage.ask()
        assert course.tier == "hosted"

    played(
        {"small": None, "large": whole(), "hosted": whole()},
        use,
        tmp_path,
        more={"small": 'fallbacks = ["hosted"]', "hosted": "fallbacks = []"},
    )


def test_completions_go_the_same_way(tmp_path: Path) -> None:
    async def use(stage: Stage) -> None:
        await stage.ask(asked(path=COMPLETIONS, prompt="An octavo is"))
        [sent] = stage.servers["small"].of("completions")
        assert sent.path == "/v1/completions"

    played({"small": whole()}, use, tmp_path)


def test_embeddings_are_always_of_one_tier(tmp_path: Path) -> None:
    def vectors(_: Asked) -> Reply:
        return json_reply(
            {"data": [{"embedding": [1.0]}], "usage": {"prompt_tokens": 10, "total_tokens": 10}}
        )

    async def use(stage: Stage) -> None:
        data, course = await stage.ask(asked(path=EMBEDDINGS, input="x"))
        assert course.tier == "large"
        assert course.cost == pytest.approx(0.0001)
        assert b"embedding" in data
        stage.servers["large"].script = lambda _: error_reply(500, "oh")
        with pytest.raises(TierFailed, match="No tier answered: large: it answers 500"):
            await stage.ask(asked(path=EMBEDDINGS, input="x"))
        assert not stage.servers["small"].asked

    played({"small": vectors, "large": vectors}, use, tmp_path, general='embeddings = "large"')


@pytest.mark.parametrize("status", [401, 500])
def test_a_check_says_what_is_wrong(tmp_path: Path, status: int) -> None:
    async def use(stage: Stage) -> list[str | None]:
        return [await stage.gateway.check(name) for name in ("small", "large", "hosted")]

    def script(_: Asked) -> Reply:
        return error_reply(status, "no")

    wrong = "it answers 401: its key is missing, wrong or expired" if status == 401 else "it answers 500"
    found = played({"small": script, "large": None, "hosted": whole()}, use, tmp_path)
    assert found == [wrong, "connection refused", None]
