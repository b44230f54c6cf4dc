"""What a request may say about the form of its answer, in the words of OpenAI, vLLM, SGLang and llama.cpp. Compiles
nothing.

Other routes call `Grammar.json` with a schema, or write a grammar in Lark's notation (see `lark_json`, `lark_text`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import msgspec

from octavo.errors import InvalidParameter
from octavo.protocol.body import Body
from octavo.protocol.bounds import one_of
from octavo.sampling.grammar import Grammar

__all__ = ["Constrained", "JsonSchemaFormat", "ResponseFormat", "StructuredOutputs"]


class JsonSchemaFormat(msgspec.Struct, kw_only=True):
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None
    """The schema is always kept to the letter."""


class ResponseFormat(msgspec.Struct, kw_only=True):
    """OpenAI's `response_format`."""

    type: Annotated[str, one_of("text", "json_object", "json_schema")]
    json_schema: JsonSchemaFormat | None = None
    schema: dict[str, Any] | None = None
    """llama.cpp's: of json_object, what the object must be."""


class StructuredOutputs(msgspec.Struct, kw_only=True):
    """vLLM's `structured_outputs`: one constraint, and how JSON is spaced."""

    json: dict[str, Any] | str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    """Lark or GBNF."""
    json_object: bool | None = None
    disable_any_whitespace: bool | None = None
    """true: no white space between the parts of JSON; else one blank behind commas and colons."""
    whitespace_pattern: str | None = None
    """A regular expression for the white space between the parts of JSON."""
    disable_additional_properties: bool | None = None
    structural_tag: dict[str, Any] | str | None = None


class Constrained(Body, kw_only=True):
    """The fields of a request that constrain its answer: one of them at most."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    """vLLM's older names of what `structured_outputs` holds."""
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_whitespace_pattern: str | None = None
    json_schema: dict[str, Any] | str | None = None
    """llama.cpp's and SGLang's."""
    grammar: str | None = None
    """llama.cpp's: GBNF."""
    regex: str | None = None
    """SGLang's."""
    ebnf: str | None = None

    @property
    def constrained_by(self) -> str | None:
        """The field that constrains the answer. Raises InvalidParameter where there are several."""
        constraint = self._constraint()
        return None if constraint is None else constraint[0]

    def constraint(self) -> Grammar | None:
        """What the answer must look like. Raises InvalidParameter with the field's name."""
        constraint = self._constraint()
        if constraint is None:
            return None
        name, make = constraint
        try:
            return make()
        except InvalidParameter as error:
            raise InvalidParameter(f"{name}: {error}", name) from None

    def _constraint(self) -> tuple[str, Callable[[], Grammar]] | None:
        spacing = self.guided_whitespace_pattern
        given = [
            *self._by_response_format(),
            *self._by_structured_outputs(),
            *_json("guided_json", self.guided_json, spacing),
            *_json("json_schema", self.json_schema, None),
            *_choice("guided_choice", self.guided_choice),
            *_regex("guided_regex", self.guided_regex),
            *_regex("regex", self.regex),
            *_grammar("guided_grammar", self.guided_grammar),
            *_grammar("grammar", self.grammar),
            *_grammar("ebnf", self.ebnf),
        ]
        if len(given) > 1:
            names = " and ".join(name for name, _ in given)
            raise InvalidParameter(
                f"{names} are given; an answer follows one of them: leave the others out.", given[1][0]
            )
        return given[0] if given else None

    def _by_response_format(self) -> list[tuple[str, Callable[[], Grammar]]]:
        form = self.response_format
        if form is None or form.type == "text":
            return []
        if form.type == "json_object":
            return _json("response_format", form.schema or {"type": "object"}, None)
        if form.type != "json_schema":
            hint = (
                "structural tags are not supported"
                if form.type == "structural_tag"
                else "there are no others"
            )
            raise InvalidParameter(
                f"response_format.type is {form.type[:40]!r}; it must be text, json_object or json_schema ({hint}).",
                "response_format.type",
            )
        name = "response_format.json_schema"
        if form.json_schema is None or form.json_schema.schema is None:
            missing = name if form.json_schema is None else f"{name}.schema"
            raise InvalidParameter(f"{missing} is missing; type json_schema needs it.", missing)
        return _json(f"{name}.schema", form.json_schema.schema, None)

    def _by_structured_outputs(self) -> list[tuple[str, Callable[[], Grammar]]]:
        asked, prefix = self.structured_outputs, "structured_outputs"
        if asked is None:
            return []
        for name in ("structural_tag", "disable_additional_properties"):
            if getattr(asked, name) not in (None, False):
                hint = "" if name == "structural_tag" else "; say additionalProperties in the schema"
                raise InvalidParameter(
                    f"{prefix}.{name} is not supported{hint or '; leave it out'}.", f"{prefix}.{name}"
                )
        pattern, compact = asked.whitespace_pattern, bool(asked.disable_any_whitespace)
        whole = {"type": "object"} if asked.json_object else None
        given = [
            *_json(f"{prefix}.json", asked.json, pattern, compact),
            *_json(f"{prefix}.json_object", whole, pattern, compact),
            *_regex(f"{prefix}.regex", asked.regex),
            *_choice(f"{prefix}.choice", asked.choice),
            *_grammar(f"{prefix}.grammar", asked.grammar),
        ]
        if not given:
            raise InvalidParameter(
                f"{prefix} says nothing; give json, json_object, regex, choice or grammar in it, or leave it out.",
                prefix,
            )
        return given


def _json(
    name: str, schema: dict[str, Any] | str | None, pattern: str | None, compact: bool = False
) -> list[tuple[str, Callable[[], Grammar]]]:
    if schema is None:
        return []
    _check_given(name, schema)
    return [(name, lambda: Grammar.json(schema, compact=compact, whitespace_pattern=pattern))]


def _regex(name: str, regex: str | None) -> list[tuple[str, Callable[[], Grammar]]]:
    if regex is None:
        return []
    _check_given(name, regex)
    return [(name, lambda: Grammar("regex", regex))]


def _choice(name: str, choices: list[str] | None) -> list[tuple[str, Callable[[], Grammar]]]:
    return [] if choices is None else [(name, lambda: Grammar.choice(choices))]


def _grammar(name: str, text: str | None) -> list[tuple[str, Callable[[], Grammar]]]:
    if text is None:
        return []
    _check_given(name, text)
    return [(name, lambda: Grammar.of(text))]


def _check_given(name: str, constraint: dict[str, Any] | str) -> None:
    """Raises InvalidParameter for an empty text, which would be dropped without a word."""
    if constraint == "":
        raise InvalidParameter(f"{name} is empty; leave it out, or say what the answer may be.", name)
