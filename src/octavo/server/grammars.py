"""Whether grammars of requests can be used, found out in threads. Serves nothing and knows no HTTP."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from octavo.engine.guides import give_way
from octavo.errors import InvalidParameter
from octavo.sampling.grammar import Grammar
from octavo.sampling.guide import Compiler
from octavo.text.vocabulary import Vocabulary

__all__ = ["Grammars"]

KEPT = 256
"""Verdicts that are kept, and the bytes of the grammars they are about."""
KEPT_BYTES = 4 << 20
THREADS = 2


class Grammars:
    """The engine would find out too, and then it would be too late for a status code."""

    def __init__(self, vocabulary: Vocabulary, end_ids: Sequence[int]) -> None:
        self._compiler = Compiler(vocabulary, end_ids, for_masks=False)
        self._pool = ThreadPoolExecutor(THREADS, "octavo-grammar", initializer=give_way)
        self._verdicts: OrderedDict[Grammar, str | None] = OrderedDict()

    async def check(self, grammar: Grammar | None, name: str | None) -> None:
        """Raise InvalidParameter, with the reason, for a grammar that cannot be used; `name` is its field."""
        if grammar is None:
            return
        if grammar not in self._verdicts:
            verdict = await asyncio.get_running_loop().run_in_executor(self._pool, self._verdict, grammar)
            self._verdicts[grammar] = verdict
            size = sum([len(one.source) for one in self._verdicts])
            while len(self._verdicts) > KEPT or (size > KEPT_BYTES and len(self._verdicts) > 1):
                size -= len(self._verdicts.popitem(last=False)[0].source)
        else:
            self._verdicts.move_to_end(grammar)
            verdict = self._verdicts[grammar]
        if verdict is not None:
            name = name or "grammar"
            raise InvalidParameter(f"{name} cannot be used: {verdict}", name)

    def _verdict(self, grammar: Grammar) -> str | None:
        """What is wrong with it."""
        try:
            self._compiler.compile(grammar)
        except InvalidParameter as error:
            return str(error)
        return None
