"""Grammars in the engine, over a scripted model that would rather say something else: nothing illegal ever comes out,
whatever the steps are like, and a request waits beside the steps while its grammar is compiled."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from octavo.engine.engine import Engine
from octavo.engine.replay import replay
from octavo.sampling.grammar import Grammar
from octavo.sampling.guide import Compiler, Guide
from octavo.scheduling.inputs import Add
from octavo.scheduling.outputs import SequenceOutput
from octavo.scheduling.scheduler import Scheduler
from octavo.speculation.registry import DRAFTERS
from octavo.speculation.speculator import Speculator
from tests.fakes import END, limits, make_engine, plans_of, request, run, tokens
from tests.sampling.test_guide import ENDLESS_LATER, NESTED
from tests.speculation.drafting import Drafting

Answers = dict[tuple[str, int], list[SequenceOutput]]

GRAMMARS = {
    "json": Grammar.json(NESTED),
    "word": Grammar("regex", "[a-f]{2,9}(, [a-f]{2,9}){0,4}"),
    "choice": Grammar.choice(["yes, certainly", "yes", "no"]),
    "forced": Grammar("lark", 'start: "a long text that is given and then " /[0-9]{1,5}/ " and more of it"'),
}


def traffic() -> list[Add]:
    """Requests with grammars between some without."""
    adds = [
        request(
            f"{name}{number}", "the same beginning " * number + name, grammar=grammar, seed=number, **params
        )
        for number in range(3)
        for name, grammar in GRAMMARS.items()
        for params in [{"n": 3, "max_tokens": 60} if number == 1 else {"max_tokens": 25 if number else 90}]
    ]
    free = [request(f"free{number}", "the same beginning", seed=number, max_tokens=20) for number in range(4)]
    scored = [
        request(
            "scored", "a prompt of some length", prompt_logprobs=1, grammar=GRAMMARS["json"], max_tokens=90
        )
    ]
    return [*adds[:6], *free, *adds[6:], *scored]


def text(outputs: list[SequenceOutput]) -> bytes:
    return bytes(token for token in tokens(outputs) if token != END)


@pytest.fixture(scope="module")
def alone() -> dict[tuple[str, int], list[int]]:
    """What each request answers alone."""
    answers: dict[tuple[str, int], list[int]] = {}
    for add in traffic():
        answers.update({key: tokens(items) for key, items in run(make_engine(), add).items()})
    return answers


def test_alone_every_answer_is_legal(alone: dict[tuple[str, int], list[int]]) -> None:
    whole = 0
    for (name, _), answer in alone.items():
        if name.startswith("free"):
            continue
        kind = name.rstrip("012").replace("scored", "json")
        if answer[-1] == END:
            whole += 1
            said = bytes(answer[:-1]).decode()
            if kind == "json":
                value = msgspec.json.decode(said)
                assert list(value) == ["kind", "list", "code"] and re.fullmatch(
                    "[A-Z]{2}[0-9]+", value["code"]
                )
                assert len(value["list"]) <= 3 and all(isinstance(one, int | str) for one in value["list"])
            elif kind == "word":
                assert re.fullmatch("[a-f]{2,9}(, [a-f]{2,9}){0,4}", said)
            elif kind == "choice":
                assert said in ("yes, certainly", "yes", "no")
            else:
                assert re.fullmatch("a long text that is given and then [0-9]{1,5} and more of it", said)
    assert whole >= 12


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("kind", ["right", "wrong", "random", "each", None])
@pytest.mark.parametrize("squeezed", [False, True])
def test_the_same_in_a_batch(
    alone: dict[tuple[str, int], list[int]], depth: int, kind: str | None, squeezed: bool
) -> None:
    """With drafts that are right, wrong (illegal ones too), or none; in chunks, forked, preempted; at either depth."""
    sizes = limits(num_blocks=26, max_step_tokens=24) if squeezed else limits(num_blocks=400, max_slots=32)
    engine = make_engine(
        sizes,
        depth=depth,
        speculator=None if kind is None else lambda one: Drafting(one, alone, kind, 0),  # type: ignore[arg-type]
    )
    for grammar in GRAMMARS.values():
        engine.guides.check(grammar)  # so that all enter in the first step
    answers = {key: tokens(items) for key, items in run(engine, *traffic()).items()}
    assert answers == alone
    assert bool(engine.stats().preemptions) is squeezed
    assert engine.stats().accepted_tokens > (0 if squeezed else 100) or kind in ("wrong", None)
    assert not engine.guides.guided and not engine.guides.compiling


@pytest.mark.parametrize("name", DRAFTERS)
def test_a_grammar_s_own_drafts(alone: dict[tuple[str, int], list[int]], name: str, tmp_path: Path) -> None:
    """What is forced is guessed, and always right; a log of it replays without the grammars."""
    log = tmp_path / "steps.jsonl"
    forced = request("forced", "x", grammar=GRAMMARS["forced"], max_tokens=90)
    plain = run(make_engine(), forced)

    def speculator(scheduler: Scheduler) -> Speculator:
        return Speculator(DRAFTERS[name](), scheduler, guide_of=lambda one: engine.guides.of(one), fixed=8)  # noqa: PLW0108 - it is not there yet

    engine = make_engine(log=str(log), speculator=speculator)
    answers = run(engine, forced)
    stats = engine.stats()
    assert tokens(answers["forced", 0]) == tokens(plain["forced", 0])
    assert stats.accepted_tokens == stats.draft_tokens > 35
    assert stats.steps < 20
    engine.close()
    engine = make_engine(limits(num_blocks=80, max_step_tokens=24), log=str(log), speculator=speculator)
    assert {key: tokens(items) for key, items in run(engine, *traffic()).items()} == alone
    assert engine.stats().accepted_tokens > 100
    engine.close()
    assert [report.difference for report in replay(log)] == [None, None]


@pytest.mark.parametrize("cut", [1, 7, 15])
def test_a_new_engine_goes_on_in_the_middle(alone: dict[tuple[str, int], list[int]], cut: int) -> None:
    """As after a restart: the answer so far comes with the request, some children have ended."""
    resumed = []
    for add in traffic():
        answers = [alone[add.request_id, child] for child in range(add.params.n)]
        ended = tuple(child for child, answer in enumerate(answers) if len(answer) <= cut)
        if len(ended) < len(answers):
            outputs = tuple(tuple(answer[:cut]) for answer in answers)
            resumed.append(msgspec.structs.replace(add, outputs=outputs, finished=ended))
    assert len(resumed) > 5
    for key, items in run(make_engine(), *resumed).items():
        assert tokens(items) == alone[key][cut:]


class Slow:
    """Holds every compilation until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go = threading.Event()
        self.count = 0
        compile_ = Compiler.compile

        def slow(compiler: Compiler, grammar: Grammar) -> Guide:
            self.count += 1
            assert self.go.wait(60)
            return compile_(compiler, grammar)

        monkeypatch.setattr(Compiler, "compile", slow)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    slow = Slow(monkeypatch)
    yield slow
    slow.go.set()


def steps(engine: Engine, count: int) -> list[SequenceOutput]:
    return [item for _ in range(count) for item in engine.step().items]


def test_others_go_on_while_a_grammar_is_compiled(slow: Slow) -> None:
    """Case 28."""
    engine = make_engine()
    for number in range(2):
        engine.add(request(f"guided{number}", "x", grammar=GRAMMARS["choice"]))
    engine.add(request("free", "x", max_tokens=5, ignore_eos=True))
    said = steps(engine, 6)
    assert said[-1].finish_reason == "length" and {item.request_id for item in said} == {"free"}
    assert not engine.idle and engine.stats().waiting == 0, "it has not entered"
    slow.go.set()
    answers = run(engine)
    assert {key[0] for key in answers} == {"guided0", "guided1"} and slow.count == 1
    engine.close()


def test_a_request_that_leaves_while_its_grammar_is_compiled(slow: Slow) -> None:
    engine = make_engine()
    engine.add(request("guided", "x", grammar=GRAMMARS["json"], n=2))
    assert steps(engine, 1) == [] and list(engine.guides.compiling) == ["guided"]
    engine.abort("guided")
    assert [(item.child, item.finish_reason) for item in steps(engine, 1)] == [(0, "abort"), (1, "abort")]
    assert engine.idle and not plans_of(engine)
    slow.go.set()
    assert tokens(run(engine, request("guided", "x", grammar=GRAMMARS["choice"]))["guided", 0])
    engine.close()


def test_an_aborted_answer_leaves_nothing_behind() -> None:
    engine = make_engine()
    engine.add(request("guided", "x", grammar=GRAMMARS["json"], max_tokens=200))
    while not engine.stats().running:
        engine.step()
    assert list(engine.guides.guided) == ["guided"]
    engine.abort("guided")
    run(engine)
    assert list(engine.guides.guided) == []
    engine.close()


def test_a_grammar_that_cannot_be_compiled_is_an_error_and_no_free_answer() -> None:
    """Case 27: also where nobody looked at it before."""
    engine = make_engine()
    answers = run(engine, request("bad", "x", grammar=Grammar("regex", "["), n=2), request("good", "x"))
    for child in range(2):
        [output] = answers["bad", child]
        assert output.finish_reason == "error" and "unclosed" in (output.error or "") and not output.samples
        assert output.refused
    assert tokens(answers["good", 0])
    engine.close()


def test_a_deep_grammar_does_not_overflow_the_stack() -> None:
    """Where no server has looked at it before: in Python, by `LLM`."""
    rules = "".join(f"a{i}: a{i + 1}\n" for i in range(30_000))
    engine = make_engine()
    answers = run(
        engine, request("deep", "x", grammar=Grammar("lark", f'start: a0\n{rules}a30000: "yes"'), n=2)
    )
    assert tokens(answers["deep", 0]) == tokens(answers["deep", 1]) == [*b"yes", END]
    engine.close()


def test_an_answer_that_cannot_go_on_is_an_error_and_no_whole_one() -> None:
    engine = make_engine()
    answers = run(
        engine, request("late", "x", grammar=Grammar.json(ENDLESS_LATER), max_tokens=200), request("b", "x")
    )
    assert answers["late", 0][-1].finish_reason == "error"
    assert "too complex" in (answers["late", 0][-1].error or "")
    assert answers["late", 0][-1].refused
    assert answers["b", 0][-1].finish_reason != "error" and not engine.guides.guided
    engine.close()


def test_compiled_grammars_are_kept_up_to_a_bound() -> None:
    engine = make_engine()
    for number in range(140):
        engine.guides.check(Grammar("regex", f"a{number}"))
    assert len(engine.guides._kept) == 128
    for number in range(3):
        engine.guides.check(Grammar("regex", f"[a{number}]" + "b" * 900_000))
    assert len(engine.guides._kept) == 2
    assert tokens(run(engine, request("x", "x", grammar=Grammar("regex", "a7")))["x", 0]) == [*b"a7", END]
    engine.close()
