"""Who runs first, who gives way: priorities, tenants, users, deadlines, age."""

from __future__ import annotations

import pytest

from octavo.scheduling.profiles import Targets
from tests.fakes import limits
from tests.scheduling.timed import MEASURED, Timed, seconds_of

PROMPT = 100


def test_a_flood_of_low_priority_costs_a_high_one_at_most_a_step() -> None:
    """Case 7, by priority."""
    alone = Timed()
    alone.add("high", 100, 5, priority=-1)
    alone.run()
    timed = Timed()
    for number in range(200):
        timed.add(f"low{number}", 200, 50)
    timed.add("high", 100, 5, at=3.0, priority=-1)
    timed.run(lambda: "high" in timed.times)
    assert timed.engine.stats().waiting > 0
    # The step that runs when it comes, and decodes beside its prompt.
    assert timed.ttft("high") <= alone.ttft("high") + seconds_of(512) + 64 * 0.001


def test_a_running_set_of_low_priority_gives_way_and_is_answered_later() -> None:
    """Case 7, when it holds all slots."""
    timed = Timed(sizes=limits(num_blocks=256, max_slots=4, max_step_tokens=64, max_model_len=512))
    for number in range(4):
        timed.add(f"low{number}", 20, 200)
    timed.add("high", 20, 5, at=0.5, priority=-1)
    timed.run(lambda: "high" in timed.times)
    assert timed.ttft("high") < 0.2
    assert timed.engine.stats().preemptions == 1
    timed.run()
    assert all(len(timed.times[f"low{number}"]) == 200 for number in range(4))


def served(timed: Timed, tenant: str, since: float, until: float) -> int:
    """Tokens computed for a tenant between two times; a prompt counts when its first token comes."""
    count = 0
    for name, times in timed.times.items():
        if name.startswith(tenant):
            count += sum(since < time <= until for time in times)
            count += PROMPT * (since < times[0] <= until)
    return count


def test_two_tenants_share_the_service_whatever_one_of_them_sends() -> None:
    settings = {"targets": Targets(tbt_s=0.1), "measured": MEASURED}
    sizes = limits(num_blocks=4096, max_slots=16, max_step_tokens=512, max_model_len=8192)
    alone = Timed(sizes=sizes, **settings)
    alone.add("b0", PROMPT, 40, tenant="b")
    alone.run()
    timed = Timed(sizes=sizes, **settings)
    for number in range(200):
        timed.add(f"a{number}", PROMPT, 40, tenant="a")
    for number in range(70):
        timed.add(f"b{number}", PROMPT, 40, at=2.0, tenant="b")
    timed.run(lambda: "b69" in timed.times)
    assert timed.ttft("b0") <= 2 * alone.ttft("b0") + 0.1
    # While both have work waiting: until the last one of b has begun.
    until = timed.times["b69"][0]
    a, b = served(timed, "a", 2.0, until), served(timed, "b", 2.0, until)
    assert b >= 0.45 * (a + b)
    assert "a199" not in timed.times


def test_the_first_prompt_of_a_tenant_need_not_take_turns_with_a_flood() -> None:
    settings = {"targets": Targets(tbt_s=0.1), "measured": MEASURED}
    timed = Timed(**settings)
    for number in range(200):
        timed.add(f"a{number}", PROMPT, 200, tenant="a")
    timed.add("b", 300, 40, at=2.0, tenant="b")
    timed.run(lambda: "b" in timed.times)
    # A step of 100 ms has 95 tokens, of which those that decode take some: in turns it would be twice as long.
    decoding = sum(name.startswith("a") for name in timed.times)
    assert timed.ttft("b") <= 0.1 * (1 + -(-300 // (95 - decoding))) + 0.005


def test_a_tenant_that_was_idle_has_saved_nothing_up() -> None:
    timed = Timed()
    for number in range(100):
        timed.add(f"a{number}", PROMPT, 20, tenant="a")
    timed.run(lambda: timed.clock.now_s() > 5)
    for number in range(100):
        timed.add(f"b{number}", PROMPT, 20, tenant="b")
    began = timed.clock.now_s()
    timed.run(lambda: timed.clock.now_s() > began + 4)
    a, b = served(timed, "a", began, began + 4), served(timed, "b", began, began + 4)
    assert 0.4 * (a + b) <= b <= 0.6 * (a + b)


def test_users_divide_the_share_of_their_tenant() -> None:
    timed = Timed()
    for number in range(60):
        timed.add(f"a{number}", 200, 20, tenant="key", user="loud")
    for number in range(5):
        timed.add(f"b{number}", 200, 20, at=1.0, tenant="key", user="quiet")
    timed.run(lambda: all(f"b{number}" in timed.times for number in range(5)))
    assert sum(f"a{number}" in timed.times for number in range(60)) < 30


def test_the_earliest_deadline_is_first() -> None:
    timed = Timed(sizes=limits(num_blocks=512, max_slots=1, max_step_tokens=64, max_model_len=512))
    timed.add("running", 20, 50)
    timed.add("patient", 20, 3, at=0.01)
    timed.add("chat", 20, 3, at=0.02, profile="chat")
    timed.run()
    assert timed.times["chat"][0] < timed.times["patient"][0]


@pytest.mark.parametrize(("aging_s", "starved"), [(0.0, True), (2.0, False)])
def test_waiting_makes_a_request_older_and_then_earlier(aging_s: float, starved: bool) -> None:
    """Case 7, the other way: later ones do not keep an old one waiting for ever."""
    timed = Timed(
        sizes=limits(num_blocks=512, max_slots=1, max_step_tokens=64, max_model_len=512), aging_s=aging_s
    )
    timed.add("low", 20, 3, at=0.1, priority=1)
    for number in range(40):
        timed.add(f"high{number}", 20, 50, at=0.28 * number)
    timed.run(lambda: "low" in timed.times or timed.clock.now_s() > 10)
    assert ("low" not in timed.times) == starved
