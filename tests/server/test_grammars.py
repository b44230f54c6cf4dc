"""Grammars that end the process that compiles them, or never end: they are refused, and nobody else notices."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator

import pytest

from octavo.errors import InvalidParameter, Overloaded
from octavo.sampling.check import Tokens, framed, read_frame
from octavo.sampling.grammar import Grammar
from octavo.server import grammars as grammars_module
from octavo.server.grammars import Grammars
from tests.fakes import END, VOCABULARY

DEEP = Grammar("lark", "start: a0\n" + "".join(f"a{i}: a{i + 1}\n" for i in range(2700)) + 'a2700: "x"\n')
DEEP_SCHEMA = Grammar.json(
    {
        "$ref": "#/$defs/d0",
        "$defs": {
            **{f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(2500)},
            "d2500": {"type": "string"},
        },
    }
)
ENDLESS = Grammar.json({"type": "string", "allOf": [{"pattern": f"[a-z]{{0,{i}}}x"} for i in range(60)]})
GOOD = Grammar("regex", "[a-z]+")


@pytest.fixture
def grammars() -> Iterator[Grammars]:
    grammars = Grammars(VOCABULARY, (END,))
    yield grammars
    grammars.close()
    grammars.close()


def verdict(grammars: Grammars, grammar: Grammar) -> str | None:
    try:
        asyncio.run(grammars.check(grammar, "field"))
    except InvalidParameter as error:
        return f"{error.param}: {error}"
    return None


@pytest.mark.parametrize("deep", [DEEP, DEEP_SCHEMA], ids=["lark", "schema"])
def test_one_that_is_too_deep_is_refused(grammars: Grammars, deep: Grammar) -> None:
    assert verdict(grammars, GOOD) is None
    first = verdict(grammars, deep)
    assert first is not None and first.startswith("field: ") and "too deep or too large" in first
    assert verdict(grammars, deep) == first, "a bad verdict is kept too"
    assert verdict(grammars, Grammar("regex", "b")) is None, "there is a new process"


def test_one_that_gets_no_time_has_no_verdict(grammars: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    """That the machine is busy says nothing about the grammar."""
    assert verdict(grammars, GOOD) is None
    monkeypatch.setattr(grammars_module, "WALL_S", 0.1)
    for _ in range(2):
        with pytest.raises(Overloaded, match="busy"):
            verdict(grammars, ENDLESS)
    monkeypatch.undo()
    assert verdict(grammars, Grammar("regex", "b")) is None, "there is a new process"


@pytest.mark.slow
def test_one_that_takes_too_much_of_the_processor_or_of_memory_is_refused(grammars: Grammars) -> None:
    assert "too deep or too large" in (verdict(grammars, ENDLESS) or "")
    assert verdict(grammars, GOOD) is None


def test_an_endless_one_holds_up_no_other_and_not_the_end(grammars: Grammars) -> None:
    async def ask() -> None:
        endless = asyncio.create_task(grammars.check(ENDLESS, None))
        again = asyncio.create_task(grammars.check(ENDLESS, None))
        await asyncio.sleep(0)
        gone = asyncio.create_task(grammars.check(Grammar("regex", "never"), None))
        await asyncio.sleep(0)
        gone.cancel()
        await grammars.check(GOOD, None)
        assert not endless.done() and not again.done()
        await asyncio.to_thread(grammars.close)
        for one in (endless, again):
            with pytest.raises(Overloaded, match="shutting down"):
                await one
        with pytest.raises(Overloaded):
            await grammars.check(Grammar("regex", "later"), None)
        await grammars.check(GOOD, None)  # is known
        assert gone.cancelled()

    asyncio.run(ask())


def test_no_more_than_so_many_wait(grammars: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammars_module, "MAX_WAITING", 2)

    async def ask() -> list[BaseException | None]:
        checks = [grammars.check(Grammar("regex", text), None) for text in ("a", "b", "a", "c")]
        return await asyncio.gather(*checks, return_exceptions=True)

    *served, refused = asyncio.run(ask())
    assert served == [None, None, None], "the same one waits once"
    assert isinstance(refused, Overloaded)


def test_the_process_ends_with_its_parent_in_the_middle_of_one() -> None:
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "octavo.sampling.check"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None and process.stdout is not None
    with process:
        process.stdin.write(framed(Tokens(VOCABULARY.pieces, (END,), (END,))))
        process.stdin.flush()
        assert read_frame(process.stdout)
        process.stdin.write(framed(ENDLESS))
        process.stdin.close()
        with pytest.raises(EOFError):
            read_frame(process.stdout)
    assert process.returncode == 0, "and not by its limits"
