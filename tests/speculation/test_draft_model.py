"""A model that guesses: batched, with memory of its own, right where it is the same model, and never in the way."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from octavo.backends.base import Backend, Limits, Plan
from octavo.config import EngineConfig
from octavo.engine.build import build_engine
from octavo.engine.engine import Engine
from octavo.engine.messages import Add
from octavo.errors import SettingsError
from octavo.models.store import StoredModel, open_model
from octavo.speculation.draft_model import ModelDrafter
from octavo.speculation.drafter import Text
from octavo.speculation.registry import draft_model_of
from octavo.timing.clock import ManualClock
from tests.fakes import ScriptedBackend, limits, request, run, tokens
from tests.models.tiny import write_tiny_llama

VOCAB = 256


def following(history: tuple[int, ...], rule: object) -> int:
    """The scripted model: each token is one more than the last."""
    return (history[-1] + 1) % VOCAB


class Scripted(ScriptedBackend):
    """Has a spec, which a drafter asks for."""

    def __init__(self, sizes: Limits, tiny: StoredModel) -> None:
        super().__init__(sizes, following, len(tiny.spec.kv_groups))
        self.spec = msgspec.structs.replace(tiny.spec, vocab_size=VOCAB)


@pytest.fixture(scope="module")
def tiny(tiny_model_path: Path) -> StoredModel:
    return open_model(tiny_model_path, packed=True)


def drafter(tiny: StoredModel, vocab_size: int = VOCAB, **sizes: int) -> ModelDrafter:
    backend: Backend = Scripted(limits(**sizes), tiny)
    return ModelDrafter(backend, vocab_size, ManualClock())


def plans(model: ModelDrafter) -> list[Plan]:
    assert isinstance(model.backend, ScriptedBackend)
    return model.backend.plans


def text(*ids: int, scope: str = "") -> Text:
    return Text(list(ids), len(ids), scope)


def guessed(model: ModelDrafter, texts: list[Text], count: int) -> list[tuple[int, ...]]:
    found = [guesses[0].tokens if guesses else () for guesses in model.draft(texts, count)]
    model.check()
    return found


def test_all_texts_advance_together(tiny: StoredModel) -> None:
    model = drafter(tiny)
    texts = [text(1, 2, 3), text(50), text(*range(100, 140))]
    assert guessed(model, texts, 4) == [(4, 5, 6, 7), (51, 52, 53, 54), (140, 141, 142, 143)]
    assert [len(plan.rows) for plan in plans(model)] == [3, 3, 3, 3] and model.steps == 4
    assert [row.count for row in plans(model)[0].rows] == [1, 3, 40]


def test_right_guesses_are_not_computed_again(tiny: StoredModel) -> None:
    model, one = drafter(tiny), text(1, 2, 3)
    guessed(model, [one], 4)
    one.tokens += [4, 5, 6, 7, 8]  # all four were right, and one came behind them
    assert guessed(model, [one], 4) == [(9, 10, 11, 12)]
    assert (
        plans(model)[4].rows[0].count == 2
    )  # the last guess, which it had only chosen, and the newest token
    one.tokens += [9, 99]  # the second one was wrong
    assert guessed(model, [one], 4) == [(100, 101, 102, 103)]
    assert plans(model)[8].rows[0].count == 1
    one.tokens += [7]
    assert guessed(model, [one], 1) == [(8,)]


def test_a_long_text_is_read_in_parts_while_others_are_guessed(tiny: StoredModel) -> None:
    model = drafter(tiny, num_blocks=200, max_step_tokens=40, max_model_len=500)
    long, short = text(*(number % 200 for number in range(100))), text(7)
    rounds: list[list[tuple[int, ...]]] = []
    while not rounds or not rounds[-1][0]:
        rounds.append(guessed(model, [long, short], 2))
        short.tokens += [short.tokens[-1] + 1]
    assert [found[1] for found in rounds] == [(8, 9), (9, 10), (10, 11)]
    assert [found[0] for found in rounds] == [(), (), (100, 101)]
    assert max(plan.tokens for plan in plans(model)) <= 40


def test_texts_that_begin_alike_are_read_once_within_a_scope(tiny: StoredModel) -> None:
    model = drafter(tiny)
    beginning = tuple(range(48))
    guessed(model, [text(*beginning, 60, scope="a")], 1)
    guessed(model, [text(*beginning, 80, scope="a")], 1)
    guessed(model, [text(*beginning, 90, scope="b")], 1)
    assert [plan.rows[0].count for plan in plans(model)] == [49, 1, 49]


def test_memory_and_slots_of_texts_that_nobody_asks_for_are_given_away(tiny: StoredModel) -> None:
    model = drafter(tiny, num_blocks=6, max_slots=2)
    first, second, third = (text(*range(start, start + 40)) for start in (0, 50, 100))
    assert guessed(model, [first], 2) == [(40, 41)]
    assert guessed(model, [second], 2) == [(90, 91)]
    assert guessed(model, [third], 2) == [(140, 141)]
    assert guessed(model, [third, second, first], 2)[:2] == [(140, 141), (90, 91)]  # no slot for a third one
    model.ended(second)
    assert guessed(model, [third, first], 2) == [(140, 141), (40, 41)]
    for one in (first, second, third):
        model.ended(one)
    model.check()
    assert all(pool.used == 0 for pool in model._pools)


def test_a_text_that_has_not_grown_is_guessed_again(tiny: StoredModel) -> None:
    """Its last block is computed anew in a copy, where another text has it too."""
    model = drafter(tiny)
    one, same = text(*range(32)), text(*range(32), 60)
    assert guessed(model, [one], 2) == [(32, 33)]
    assert guessed(model, [same], 2) == [(61, 62)]
    assert guessed(model, [one], 2) == [(32, 33)]
    last = plans(model)[-2]
    assert last.rows[0].count == 1 and len(last.copies) == len(model._pools)


def test_without_memory_there_is_no_guess(tiny: StoredModel) -> None:
    model = drafter(tiny, num_blocks=4)
    assert guessed(model, [text(*range(40)), text(*range(100, 140))], 2) == [(40, 41), ()]
    assert guessed(model, [text(*range(250))], 10) == [()]  # nor behind the longest text that it can have


def test_tokens_that_the_other_model_has_not_are_not_guessed(tiny: StoredModel) -> None:
    assert guessed(drafter(tiny, 102), [text(98), text(101), text(5)], 4) == [
        (99, 100, 101),
        (),
        (6, 7, 8, 9),
    ]


# ---- with real models


def engine(
    model: StoredModel, backend: str, speculation: str, count: int | None = 4, **changes: int
) -> Engine:
    settings = {"model_dir": str(model.dir), "backend": backend, "num_blocks": 200, **changes}
    if count is not None:
        settings["speculation_tokens"] = count
    return build_engine(msgspec.convert({**settings, "speculation": speculation}, EngineConfig))


def asked(max_tokens: int, temperature: float) -> list[Add]:
    return [
        request(
            f"r{number}",
            [number, *range(20, 20 + 9 * number)],
            max_tokens=max_tokens,
            temperature=temperature,
            top_p=0.9,
            presence_penalty=0.3,
            logit_bias={40: 1.5},
            ignore_eos=True,
            seed=number,
        )
        for number in range(1, 5)
    ]


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_model_that_guesses_for_itself_is_always_right(
    tiny: StoredModel, backend: str, temperature: float
) -> None:
    """Four tokens at a time: a fifth of the steps, sampled too, for both draw the same noise."""
    steps, answers = {}, {}
    for speculation in ("off", f"draft:{tiny.dir}"):
        one = engine(tiny, backend, speculation)
        found = run(one, *asked(51, temperature))
        answers[speculation] = {name: tokens(items) for name, items in found.items()}
        stats = one.stats()
        steps[speculation] = stats.steps
        assert stats.accepted_tokens == stats.draft_tokens
        assert stats.saved_steps == 51 - stats.steps
        one.close()
    assert answers["off"] == answers[f"draft:{tiny.dir}"]
    assert steps["off"] == 51 and steps[f"draft:{tiny.dir}"] == 11


def test_a_model_that_knows_nothing_is_soon_not_asked(tiny: StoredModel, tmp_path: Path) -> None:
    other = open_model(write_tiny_llama(tmp_path / "other.gguf", seed=5), packed=True)
    one = engine(tiny, "native", f"draft:{other.dir}", None)
    plain = engine(tiny, "native", "off")
    speculator = one._speculator
    assert speculator is not None and speculator._model is not None
    speculator._model.seconds = lambda *_: 1e-6  # type: ignore[method-assign] # it would cost nothing
    wanted, found = run(plain, *asked(150, 1.0)), run(one, *asked(150, 1.0))
    assert {name: tokens(items) for name, items in found.items()} == {
        name: tokens(items) for name, items in wanted.items()
    }
    assert 0 < speculator._model.steps < one.stats().steps / 2
    one.close()
    plain.close()


def test_a_model_with_another_tokenizer_is_refused(tiny: StoredModel, model_dir: Path) -> None:
    with pytest.raises(SettingsError, match=r"another tokenizer than .* \(its token \d+ is"):
        engine(tiny, "native", f"draft:{model_dir}")


@pytest.mark.parametrize("wrong", ["", "of", "draft", "draft:", "DRAFT:smollm2"])
def test_what_speculation_may_be(wrong: str) -> None:
    with pytest.raises(SettingsError, match="it is off, ngram, suffix, auto, or draft: and a model"):
        draft_model_of(wrong)
    assert draft_model_of("draft:/models/a b") == "/models/a b"
    assert draft_model_of("auto") is draft_model_of("off") is None
