"""Requests of a description: the same for the same seed, in order, with what they share and wait for."""

from __future__ import annotations

import hashlib
import itertools
import tracemalloc
from typing import Any

import msgspec
import pytest

from octavo.workload import PRESETS, Request, Workload, load_workload, requests_of
from octavo.workload.draws import Draws
from octavo.workload.lengths import draw_length
from octavo.workload.request import WORDS
from octavo.workload.summary import summarize

BASE: dict[str, Any] = {
    "requests": 200,
    "arrivals": {"kind": "poisson", "rate": 2.0},
    "input": {"kind": "uniform", "min": 10, "max": 50},
    "output": {"kind": "fixed", "tokens": 7},
}


def _made(**changes: Any) -> list[Request]:
    return list(requests_of(msgspec.convert(BASE | changes, Workload)))


def _digest(requests: list[Request]) -> str:
    return hashlib.sha256(msgspec.json.encode(requests)).hexdigest()[:16]


PINNED = {
    "chat": "e0b3971f9de8260e",
    "autocomplete": "5a6d1af1c3130e11",
    "voice": "d35ecf7e115f96c0",
    "rag": "1d49c8640e0c9c82",
    "batch": "76eee215fd0b26bd",
    "agent": "fb2672dd22d31e25",
}


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_the_same_everywhere(name: str) -> None:
    """Pinned: whoever changes a preset or the generator changes what published figures mean, and says so."""
    assert _digest(list(itertools.islice(requests_of(load_workload(name)), 50))) == PINNED[name]


def test_a_seed_decides() -> None:
    assert _made() == _made(seed=0)
    assert _digest(_made()) != _digest(_made(seed=1))


def test_another_rate_asks_the_same() -> None:
    slow, fast = _made(), _made(arrivals={"kind": "constant", "rate": 50.0})
    assert [r.parts for r in slow] == [r.parts for r in fast] and slow[-1].at_s > fast[-1].at_s
    assert slow[3].token_ids() == fast[3].token_ids()


def test_a_duration_ends_the_beginning_of_sessions() -> None:
    made = _made(requests=None, duration_s=30.0, arrivals={"kind": "constant", "rate": 2.0})
    assert len(made) == 60 and made[-1].at_s == 29.5


def test_sessions_wait_for_answers_and_repeat_what_was_said() -> None:
    made = _made(
        sessions={
            "turns": {"kind": "fixed", "tokens": 4},
            "think": {"kind": "fixed", "seconds": 3.0},
            "tools": {
                "share": 0.5,
                "delay": {"kind": "fixed", "seconds": 0.25},
                "tokens": {"kind": "fixed", "tokens": 500},
            },
        },
        prefix=[{"tokens": 100}],
    )
    assert [r.index for r in made] == list(range(200))
    assert [r.at_s for r in made] == sorted(r.at_s for r in made)
    delays = set()
    for request in made:
        assert request.parts[0] == made[0].parts[0]
        if request.turn == 0:
            assert request.after is None
            continue
        assert request.after is not None
        before = made[request.after]
        assert (before.session, before.turn) == (request.session, request.turn - 1)
        assert request.at_s == pytest.approx(before.at_s + request.delay_s, abs=2e-6)
        delays.add(request.delay_s)
        said = request.parts[-2]
        assert request.parts[: len(before.parts)] == before.parts
        assert (said.answer_of, said.tokens) == (before.index, before.output_tokens)
        assert request.token_ids()[: before.input_tokens] == before.token_ids()
        assert (request.parts[-1].tokens == 500) == (request.delay_s == 0.25)
    assert delays == {0.25, 3.0}


def test_a_session_ends_before_its_context_is_too_long() -> None:
    sessions = {"turns": {"kind": "fixed", "tokens": 1000}, "max_context_tokens": 300}
    made = _made(sessions=sessions)
    assert max((r.input_tokens or 0) + r.output_tokens for r in made) <= 300
    assert max(r.turn for r in made) > 3


def test_clients_of_a_closed_loop_wait_and_think() -> None:
    made = _made(arrivals={"kind": "closed", "clients": 8, "think": {"kind": "exponential", "mean_s": 2.0}})
    assert [r.after for r in made[:8]] == [None] * 8
    waited_for = [r.after for r in made[8:]]
    assert None not in waited_for and len(set(waited_for)) == len(waited_for)
    for request in made[8:]:
        assert request.after is not None
        before = made[request.after]
        assert before.session % 8 == request.session % 8
        assert request.at_s == pytest.approx(before.at_s + request.delay_s, abs=2e-6)


def test_a_tree_of_prefixes_is_shared_by_popularity() -> None:
    levels = [
        {"tokens": 64},
        {"tokens": {"kind": "uniform", "min": 20, "max": 90}, "branches": 5, "exponent": 1.0},
        {"tokens": 32, "branches": 3},
    ]
    made = _made(requests=2000, prefix=levels)
    roots, middles = {r.parts[0] for r in made}, {r.parts[:2] for r in made}
    assert len(roots) == 1 and len(middles) == 5 and len({r.parts[:3] for r in made}) == 15
    top = sum(r.parts[1].key == "prefix/0/0" for r in made) / 2000
    assert top == pytest.approx(1 / (1 + 1 / 2 + 1 / 3 + 1 / 4 + 1 / 5), abs=0.05)
    # block hashes say what token ids say
    seen: dict[bytes, tuple[int, ...]] = {}
    for request in made[:100]:
        ids = request.token_ids()
        for place, one in enumerate(request.block_hashes(16, partial=False)):
            block = tuple(ids[: 16 * (place + 1)])
            assert seen.setdefault(one, block) == block
    assert len(set(seen.values())) == len(seen)


def test_tenants_have_their_share_priority_and_lengths() -> None:
    tenants = [
        {"name": "a", "weight": 3, "priority": 2},
        {"name": "b", "output": {"kind": "fixed", "tokens": 99}},
    ]
    made = _made(requests=2000, tenants=tenants)
    assert sum(r.tenant == "a" for r in made) / 2000 == pytest.approx(0.75, abs=0.04)
    assert {(r.tenant, r.priority, r.output_tokens) for r in made} == {("a", 2, 7), ("b", 0, 99)}


def test_a_prompt_as_words_shares_what_its_tokens_share() -> None:
    made = _made(prefix=[{"tokens": 30}])
    texts = [r.prompt_text().split() for r in made[:2]]
    assert texts[0][:30] == texts[1][:30] and texts[0][30:40] != texts[1][30:40]
    assert [len(text) for text in texts] == [r.input_tokens for r in made[:2]]
    assert len(WORDS) == len(set(WORDS)) > 100


def test_a_long_workload_takes_constant_memory() -> None:
    workload = msgspec.convert(BASE | {"requests": 10**9}, Workload)
    made = requests_of(workload)
    for _ in itertools.islice(made, 1000):
        pass
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in itertools.islice(made, 3000):
            pass
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 50_000


def test_presets_have_the_published_figures() -> None:
    def of(name: str) -> Any:
        workload = msgspec.structs.replace(load_workload(name), requests=1000)
        return summarize(requests_of(workload), block_size=256)

    chat = of("chat")
    assert chat.output.mean == pytest.approx(214.5, rel=0.08)
    sessions = load_workload("chat").sessions
    assert sessions is not None
    draws = Draws(0, "turns")  # of whole sessions; the last ones of a workload are cut off
    assert sum(draw_length(sessions.turns, draws) for _ in range(5000)) / 5000 == pytest.approx(2.0, abs=0.1)
    code = of("autocomplete")
    assert code.input.mean == pytest.approx(2048, rel=0.08) and code.input.p50 == pytest.approx(1469, rel=0.1)
    assert code.output.mean == pytest.approx(27.9, rel=0.15) and code.output.p50 == pytest.approx(13, abs=1)
    rag = of("rag")
    assert rag.input.mean == pytest.approx(1738, rel=0.1) and rag.output.mean == pytest.approx(90.7, rel=0.08)
    agent = of("agent")
    assert agent.input.mean == pytest.approx(8596, rel=0.1) and agent.output.mean == pytest.approx(
        182, rel=0.1
    )
    assert agent.hit_rate == pytest.approx(0.59, abs=0.05)
    assert of("voice").output.mean == pytest.approx(20.2, rel=0.05)
    assert of("batch").output.mean == pytest.approx(75, rel=0.05)
