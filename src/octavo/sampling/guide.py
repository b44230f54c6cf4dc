"""Grammars compiled by llguidance, and where an answer stands in one: masks of tokens. Knows no request and no step.

Sources: llguidance (https://github.com/guidance-ai/llguidance) derives a regular expression of bytes from the grammar
at each place and walks the vocabulary's trie along it; what the grammar leaves no choice about, it writes down as one
run of tokens.

llguidance is imported when the first grammar comes (0.1 s), and its table of tokens is made then (0.15 s).
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from octavo.errors import InvalidParameter
from octavo.sampling.grammar import SPACING, Grammar
from octavo.sampling.schema import without_pitfalls
from octavo.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    import numpy as np
    from llguidance import LLMatcher, LLTokenizer
    from numpy.typing import NDArray

__all__ = ["Compiler", "Guide", "MaskFiller"]

_MAX_LEXER_STATES = 50_000
"""Of one answer, 1 to 2 kB each."""
_MAX_ITEMS_IN_ROW = 4000
"""Ways in which a grammar may go on at one place: n properties that may be left out make 4 n, and a thousand of them a
mask of some 70 ms."""
_MAX_FORCED = 1 << 15
"""Tokens at the beginning of an answer that the grammar leaves no choice about."""
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|.)", re.DOTALL)
"""In GBNF."""
_EMBEDDED = re.compile(r"%json\s*(?=\{)")
_DECODER = json.JSONDecoder()
"""For JSON with something behind it."""
_NOTHING_FITS = "NoExtensionBias"
"""In an error of llguidance's: from the beginning on, no byte is allowed."""
_MAX_REASON = 400
"""Characters of an error of llguidance's; it lists all control tokens where one is not known."""


class Guide:
    """Where one answer stands in its grammar. Not for two threads at once."""

    __slots__ = ("_consumed", "matcher")

    def __init__(self, matcher: LLMatcher) -> None:
        self.matcher = matcher
        self._consumed = 0

    def copy(self) -> Guide:
        """Another answer at the same place."""
        copy = Guide(self.matcher.deep_copy())
        copy._consumed = self._consumed
        return copy

    def follow(self, tokens: Sequence[int], start: int) -> None:
        """`tokens[start:]` is the answer now, which has only grown since the last call."""
        if len(tokens) > start + self._consumed:
            new = list(tokens[start + self._consumed :])
            self._consumed += len(new)
            self.matcher.consume_tokens(new)

    def allowed(self, tokens: Sequence[int]) -> int:
        """How many of these tokens, from the first on, may come next; the place stays as it is."""
        return self.matcher.validate_tokens(list(tokens))

    def forced(self) -> list[int]:
        """The tokens that come next whatever the model says, as far as that is known."""
        return self.matcher.compute_ff_tokens()

    @property
    def error(self) -> str | None:
        """Why the answer cannot go on: the grammar has become too complex at this place."""
        return _short(self.matcher.get_error()) if self.matcher.is_error() else None


class Compiler:
    """Turns grammars into guides over one vocabulary. For any number of threads."""

    def __init__(self, vocabulary: Vocabulary, end_ids: Sequence[int], *, for_masks: bool = True) -> None:
        """`end_ids`: the tokens of which any may end an answer whose grammar is fulfilled. `for_masks` false: only to
        find out which grammars are good; the table of tokens is made in half the time."""
        self._vocabulary = vocabulary
        self._end_ids = list(end_ids)
        self._for_masks = for_masks
        self._lock = threading.Lock()
        self._table: LLTokenizer | None = None

    def compile(self, grammar: Grammar) -> Guide:
        """The beginning of an answer. Takes from a millisecond to a second, most of it without the GIL. Raises
        InvalidParameter with llguidance's reason."""
        import llguidance

        if not self._end_ids:
            raise InvalidParameter(
                "This model has no end token, so an answer could not end where its grammar does.", "grammar"
            )
        limits = llguidance.LLParserLimits(
            max_lexer_states=_MAX_LEXER_STATES, max_items_in_row=_MAX_ITEMS_IN_ROW, verbose_errors=False
        )
        matcher = llguidance.LLMatcher(self._tokens(), _source(grammar), log_level=0, limits=limits)
        endless = not matcher.is_error() and len(matcher.compute_ff_tokens()) > _MAX_FORCED
        if not matcher.is_error():
            matcher.compute_bitmask()  # the first one takes the longest, and copies know it
        if matcher.is_error():
            raise InvalidParameter(_short(matcher.get_error()), "grammar")
        if endless:
            raise InvalidParameter(
                f"It begins with more than {_MAX_FORCED} tokens that are all given; does a schema require itself?",
                "grammar",
            )
        return Guide(matcher)

    def _tokens(self) -> LLTokenizer:
        with self._lock:
            if self._table is None:
                self._table = _table(self._vocabulary, self._end_ids, self._for_masks)
            return self._table


class MaskFiller:
    """Computes many masks at once, on several threads."""

    def __init__(self, vocab_size: int, threads: int) -> None:
        import llguidance

        self._executor = llguidance.LLExecutor(threads)
        self._words = -(-vocab_size // 32)

    def fill(self, places: Sequence[tuple[Guide, Sequence[int]]]) -> NDArray[np.int32]:
        """For each guide and its drafts, one row of bit words for the token that comes now, then one behind each draft:
        [sum of 1 + drafts, words]. Nothing is allowed behind a draft that is not allowed itself."""
        import llguidance.numpy as numpy_masks
        import numpy as np

        masks = np.zeros((sum([1 + len(drafts) for _, drafts in places]), self._words), np.int32)
        plain: list[tuple[Any, int]] = []
        drafted: list[tuple[Any, int, list[int]]] = []
        row = 0
        for guide, drafts in places:
            if drafts:
                drafted.append((guide.matcher, row, list(drafts)))
            else:
                plain.append((guide.matcher, row))
            row += 1 + len(drafts)
        if plain:
            numpy_masks.fill_next_token_bitmask_par(self._executor, plain, masks)
        if drafted:
            numpy_masks.fill_next_token_bitmask_par_with_draft_tokens(self._executor, drafted, masks)
        return masks


def _table(vocabulary: Vocabulary, end_ids: list[int], for_masks: bool) -> LLTokenizer:
    """llguidance's table of tokens, from bytes alone: any tokenizer will do."""
    from llguidance import LLTokenizer, TokenizerWrapper

    class Tokens(TokenizerWrapper):
        """What a text that is forced is cut into: the longest tokens, from left to right. The model's own rules would
        cut almost all of these texts alike, and they would have to be loaded into the engine."""

        def __init__(self) -> None:
            self.is_tokenizer_wrapper = True
            self.eos_token_id = end_ids[0]
            self.bos_token_id = None
            self.tokens = vocabulary.pieces
            self.special_token_ids = sorted(vocabulary.special)
            self.table: LLTokenizer | None = None

        def __call__(self, text: str) -> list[int]:
            return [] if self.table is None else self.table.greedy_tokenize(text)

    tokens = Tokens()
    table = LLTokenizer(tokens, n_vocab=vocabulary.size, eos_token=end_ids, slices=None if for_masks else [])
    tokens.table = table
    return table


def _source(grammar: Grammar) -> str:
    """As llguidance reads it. Raises InvalidParameter for what does not even get there."""
    from llguidance import LLMatcher

    match grammar.kind:
        case "json_schema":
            try:
                return LLMatcher.grammar_from_json_schema(_schema(grammar.source), defaults=SPACING)
            except ValueError as error:
                raise InvalidParameter(
                    f"The JSON schema is no JSON object: {_short(str(error))}.", "grammar"
                ) from None
        case "regex":
            return LLMatcher.grammar_from_regex(grammar.source)
        case "choice":
            return f"start: CHOICE\nCHOICE: {_alternatives(grammar.source)}"
        case "lark":
            return LLMatcher.grammar_from_lark(_lark(grammar.source))
        case "gbnf":
            from llguidance.gbnf_to_lark import any_to_lark

            try:
                return LLMatcher.grammar_from_lark(any_to_lark(_with_characters(grammar.source)))
            except RecursionError:
                raise InvalidParameter("The grammar is nested too deeply.", "grammar") from None
            except Exception as error:  # noqa: BLE001 - the translator's own errors derive from Exception itself
                raise InvalidParameter(_short(str(error)), "grammar") from None


def _with_characters(gbnf: str) -> str:
    """The same with characters in the place of their numbers, of which the translator drops leading zeros."""

    def character(match: re.Match[str]) -> str:
        digits = match[1] or match[2]
        if digits is None:
            return match[0]
        code = int(digits, 16)
        if code < 0x80:  # a quote, say
            return f"\\x{code:02X}"
        return match[0] if 0xD800 <= code < 0xE000 or code > 0x10FFFF else chr(code)

    return _ESCAPE.sub(character, gbnf)


def _schema(source: str) -> str:
    try:
        schema = msgspec.json.decode(source)
    except (msgspec.DecodeError, RecursionError):
        return source  # llguidance says what is wrong
    if isinstance(schema, dict) and without_pitfalls(schema):
        return msgspec.json.encode(schema).decode()
    return source


def _lark(source: str) -> str:
    """The same with the schemas in it as `_schema` has them."""
    parts, start = list[str](), 0
    for match in _EMBEDDED.finditer(source):
        if match.end() < start:
            continue  # inside the last one
        try:
            schema, end = _DECODER.raw_decode(source, match.end())
        except (ValueError, RecursionError):
            continue  # llguidance says what is wrong
        if without_pitfalls(schema):
            parts += [source[start : match.end()], msgspec.json.encode(schema).decode()]
            start = end
    return "".join([*parts, source[start:]])


def _alternatives(choices: str) -> str:
    try:
        texts = msgspec.json.decode(choices, type=list[str])
    except msgspec.DecodeError as error:
        raise InvalidParameter(f"The choices are no JSON list of strings: {error}.", "grammar") from None
    return " | ".join(msgspec.json.encode(text).decode() for text in texts)


def _short(reason: str) -> str:
    """An error of llguidance's, as one line, without the state of its parser."""
    if _NOTHING_FITS in reason:
        return "Nothing can ever fulfil it: it asks for what does not exist, or it requires itself."
    line = " ".join(reason.partition("<state>")[0].split())
    return line if len(line) <= _MAX_REASON else f"{line[:_MAX_REASON]}…"
