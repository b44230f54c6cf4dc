"""What an answer must look like: a JSON schema, a regular expression, choices, a grammar. Knows no token and no parser.

A grammar is plain data, so that it travels with a request: over the wire, through the journal and restarts, into step
logs. `sampling/guide.py` compiles it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from octavo.errors import InvalidParameter

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

__all__ = [
    "MAX_GBNF_BYTES",
    "MAX_SOURCE_BYTES",
    "SPACING",
    "Grammar",
    "GrammarKind",
    "lark_json",
    "lark_text",
]

GrammarKind = Literal["json_schema", "regex", "choice", "lark", "gbnf"]

MAX_SOURCE_BYTES = 1 << 20
"""Of a grammar: one of that size takes about a second to compile, in a thread."""
MAX_GBNF_BYTES = 64 << 10
"""Of one in GBNF, which is translated to Lark in Python first: half a second for that size."""

SPACING: JsonCompileOptions = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON as Python's own encoder writes it. White space at will lets a small model write nothing but white space."""
_GBNF_RULE = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)


class Grammar(msgspec.Struct, frozen=True, array_like=True):
    """One constraint on an answer. Raises InvalidParameter for a source that is empty or too large."""

    kind: GrammarKind
    source: str
    """The schema as JSON; the expression, which the whole answer matches; a JSON list of strings; or the grammar."""

    def __post_init__(self) -> None:
        if not self.source:
            raise InvalidParameter(
                "The grammar is empty; leave it out, or say what the answer may be.", "grammar"
            )
        limit = MAX_GBNF_BYTES if self.kind == "gbnf" else MAX_SOURCE_BYTES
        if len(self.source) > limit or len(self.source.encode(errors="replace")) > limit:
            raise InvalidParameter(
                f"The {_NAMES[self.kind]} has {len(self.source)} characters; at most {limit} bytes are allowed.",
                "grammar",
            )

    @classmethod
    def json(
        cls,
        schema: Mapping[str, Any] | str | None = None,
        *,
        compact: bool = False,
        whitespace_pattern: str | None = None,
    ) -> Grammar:
        """JSON that `schema` allows (a dict, or the schema as JSON); None: any object.

        White space is one blank behind commas and colons, or none at all (`compact`), or what `whitespace_pattern`, a
        regular expression, allows between any two parts. llguidance's own options may stand in the schema, under
        "x-guidance". Raises InvalidParameter for a text that is not a JSON object.
        """
        if isinstance(schema, str):
            try:
                schema = msgspec.json.decode(schema)
            except (msgspec.DecodeError, RecursionError) as error:
                raise InvalidParameter(f"The JSON schema is no valid JSON: {error}.", "grammar") from None
            if not isinstance(schema, dict):
                raise InvalidParameter("The JSON schema must be a JSON object.", "grammar")
        schema = {"type": "object"} if schema is None else schema
        return cls("json_schema", _with_options(schema, compact, whitespace_pattern))

    @classmethod
    def choice(cls, choices: Sequence[str]) -> Grammar:
        """One of these texts. Raises InvalidParameter where there is none, or an empty one."""
        if not choices or not all(choices):
            what = "holds an empty text, which no answer can be" if choices else "is empty"
            raise InvalidParameter(f"The list of choices {what}; give texts.", "grammar")
        return cls("choice", msgspec.json.encode(list(choices)).decode())

    @classmethod
    def of(cls, text: str) -> Grammar:
        """A grammar in Lark's notation or in GBNF, whichever it is: a rule of GBNF has "::="."""
        return cls("gbnf" if _GBNF_RULE.search(text) else "lark", text)


_NAMES: dict[GrammarKind, str] = {
    "json_schema": "JSON schema",
    "regex": "regular expression",
    "choice": "list of choices",
    "lark": "grammar",
    "gbnf": "grammar in GBNF",
}


def lark_json(
    schema: Mapping[str, Any], *, compact: bool = False, whitespace_pattern: str | None = None
) -> str:
    """JSON that `schema` allows as a part of a Lark grammar, spaced as `Grammar.json` does.

    `Grammar("lark", f'start: {lark_text("<tool_call>")} {lark_json(schema)} {lark_text("</tool_call>")}')` is JSON
    between two texts. A control token is written by its name, without quotes: `<|python_tag|>`.
    """
    return f"%json {_with_options(schema, compact, whitespace_pattern)}"


def lark_text(text: str) -> str:
    """A literal text as a part of a Lark grammar. It is text: a control token of that name does not match it."""
    return msgspec.json.encode(text).decode()


def _with_options(schema: Mapping[str, Any], compact: bool, whitespace_pattern: str | None) -> str:
    options: dict[str, Any] = {**SPACING}
    if compact or whitespace_pattern is not None:
        options |= {"item_separator": ",", "key_separator": ":"}
    if whitespace_pattern is not None:
        options |= {"whitespace_flexible": True, "whitespace_pattern": whitespace_pattern}
    own = schema.get("x-guidance")
    if own is None or isinstance(own, dict):
        schema = {**schema, "x-guidance": options | (own or {})}
    return msgspec.json.encode(schema).decode()
