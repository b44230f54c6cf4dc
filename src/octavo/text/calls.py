"""How models write the calls of tools, and the way back: the formats, and what reads them (grammar: `forcing`).

Three families, chosen by a model's chat template: Hermes (also Qwen and most others), Llama 3, Mistral. Knows text and
the names of control tokens; no API and no tokenizer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

from octavo.text.pieces import Piece, overlap

__all__ = ["FORMATS", "CallFormat", "CallSplitter", "format_of"]

_STRING = r'"((?:[^"\\]|\\.)*)"'


class CallFormat(NamedTuple):
    """How one family writes calls: a mark, a head with the name, the arguments as JSON, a tail.

    `mark` opens a call, or a list of them; None: the answer begins with the call itself. `head` matches what stands
    between it and the arguments and has the name, as JSON, in its first group, or bare in its second. `tail` matches
    what follows the arguments; with a first group, another head follows.
    """

    name: str
    mark: str | None
    head: re.Pattern[str]
    tail: re.Pattern[str]
    written: tuple[str, str, str, str]
    """Before a call's name (quoted), between name and arguments, behind the arguments; between two calls."""
    around: tuple[str, str] = ("", "")
    """What encloses all calls, behind the mark."""
    marks: tuple[str, ...] = ()
    """All names of control tokens that it uses, where the vocabulary has them."""
    quoted: bool = True
    """The name is written as JSON."""


_BODY = rf'\s*\{{\s*"name"\s*:\s*{_STRING}\s*,\s*"(?:arguments|parameters)"\s*:\s*'

HERMES = CallFormat(
    "hermes",
    "<tool_call>",
    re.compile(_BODY),
    re.compile(r"\s*\}\s*</tool_call>"),
    ('\n{"name": ', ', "arguments": ', "}\n</tool_call>", "\n<tool_call>"),
    marks=("<tool_call>", "</tool_call>"),
)
LLAMA = CallFormat(
    "llama",
    None,
    re.compile(_BODY),
    re.compile(r"\s*\}(\s*;)?"),
    ('{"name": ', ', "parameters": ', "}", "; "),
    marks=("<|python_tag|>",),
)
MISTRAL = CallFormat(
    "mistral",
    "[TOOL_CALLS]",
    re.compile(r"\s*\[?" + _BODY),
    re.compile(r"\s*\}\s*(?:(,)|\])"),
    ('{"name": ', ', "arguments": ', "}", ", "),
    around=("[", "]"),
    marks=("[TOOL_CALLS]",),
)
MISTRAL_ARGS = CallFormat(
    "mistral-args",
    "[TOOL_CALLS]",
    re.compile(r"()([\w.-]+)(?:\[CALL_ID\]\w*)?\[ARGS\]\s*"),
    re.compile(""),
    ("", "[ARGS]", "", "[TOOL_CALLS]"),
    marks=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    quoted=False,
)
FORMATS = (HERMES, LLAMA, MISTRAL, MISTRAL_ARGS)


def format_of(template: str) -> CallFormat:
    """What a chat template shows the model; Hermes where it shows none, since most models have met that one."""
    if "[TOOL_CALLS]" in template:
        return MISTRAL_ARGS if "[ARGS]" in template else MISTRAL
    if "<tool_call>" in template:
        return HERMES
    if "<|python_tag|>" in template or ('"parameters": ' in template and "ipython" in template):
        return LLAMA
    return HERMES


class CallSplitter:
    """Calls out of a text, in one format. White space around calls belongs to nothing.

    Arguments that the end of an answer cuts off stay as they are; a call that it cuts off before its name is nothing.
    """

    def __init__(self, form: CallFormat, *, must: bool = False) -> None:
        """`must`: a grammar leaves nothing but calls, so what is neither is the beginning of one."""
        self._form = form
        self._must = must
        self._held = ""
        self._state: Literal["start", "text", "head", "arguments", "tail"] = (
            "start" if form.mark is None else "text"
        )
        self._calls = 0
        self._depth = 0
        self._quoted = self._escaped = False

    def push(self, text: str) -> Sequence[Piece]:
        self._held += text
        pieces: list[Piece] = []
        while self._advance(pieces):
            pass
        return pieces

    def finish(self) -> Sequence[Piece]:
        held, self._held = self._held, ""
        if self._state in ("head", "arguments"):
            return ()
        if self._state == "tail":
            found = self._form.tail.match(held)
            held = held[found.end() :] if found else ""
        mark = self._form.mark or ""
        if self._must or (
            self._calls and mark.startswith(held.strip())
        ):  # the beginning of a call, or of another
            return ()
        return (Piece(held),) if held else ()

    @property
    def cut_off(self) -> bool:
        return self._state == "arguments"

    def _advance(self, pieces: list[Piece]) -> bool:
        """One step; False when more text is needed."""
        match self._state:
            case "start":
                return self._begin()
            case "text":
                return self._read_text(pieces)
            case "head":
                return self._read_head(pieces)
            case "arguments":
                return self._read_arguments(pieces)
            case "tail":
                return self._read_tail()

    def _begin(self) -> bool:
        """A format without a mark: is it a call?"""
        text = self._held.lstrip()
        for mark in self._form.marks:
            if text.startswith(mark):
                self._held, self._state = text.removeprefix(mark), "head"
                return True
        if text.startswith('{"name"'):
            self._state = "head"
            return True
        if any(possible.startswith(text) for possible in (*self._form.marks, '{"name"')):
            return False
        self._state = "text"
        return True

    def _read_text(self, pieces: list[Piece]) -> bool:
        mark, held = self._form.mark, self._held
        if mark is None:
            shown = len(held)
        else:
            place = held.find(mark)
            if place >= 0:
                if text := held[:place].rstrip():
                    pieces.append(Piece(text))
                self._held, self._state = held[place + len(mark) :], "head"
                return True
            shown = len(held) - overlap(held, mark)
        text = held[:shown].rstrip()
        if text:
            pieces.append(Piece(text))
            self._held = held[len(text) :]
        return False

    def _read_head(self, pieces: list[Piece]) -> bool:
        found = self._form.head.match(self._held)
        if found is None or found.end() == len(self._held):  # white space may go on
            return False
        name = json.loads(f'"{found[1]}"', strict=False) if self._form.quoted else found[2]
        pieces.append(Piece("", "call", self._calls, name))
        self._calls += 1
        self._held, self._state = self._held[found.end() :], "arguments"
        self._depth, self._quoted, self._escaped = 0, False, False
        return True

    def _read_arguments(self, pieces: list[Piece]) -> bool:
        held = self._held
        for place, letter in enumerate(held):
            if self._escaped:
                self._escaped = False
            elif self._quoted:
                self._escaped, self._quoted = letter == "\\", letter != '"'
            elif letter == '"':
                self._quoted = True
            elif letter in "{[":
                self._depth += 1
            elif letter in "}]":
                self._depth -= 1
                if self._depth == 0:
                    pieces.append(Piece(held[: place + 1], "call", self._calls - 1))
                    self._held, self._state = held[place + 1 :], "tail"
                    return True
        if held:
            pieces.append(Piece(held, "call", self._calls - 1))
            self._held = ""
        return False

    def _read_tail(self) -> bool:
        found = self._form.tail.match(self._held)
        if found is None:
            return False
        again = found.re.groups and found[1]
        if self._form.mark is None and not again:  # what separates two calls may still come
            return False
        self._held = self._held[found.end() :]
        self._state = "head" if again else "text"
        return True
