"""Jinja for templates nobody has read, in Hugging Face's dialect. Knows Jinja's dangers, and no chats.

Jinja's sandbox keeps a template from Python's internals and from changing its input, but not from using all
memory or time. Here every loop turn, call and operator is counted, values have a greatest size, and what
makes large values out of small ones is checked before it runs, or left out.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from datetime import datetime
from itertools import chain
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

__all__ = ["MAX_CHARACTERS", "MAX_SECONDS", "MAX_STEPS", "Sandbox"]

MAX_CHARACTERS = 16 * 2**20
"""Of the output, and of any value."""
MAX_STEPS = 1_000_000
"""Loop turns, calls and operators in one rendering; a template that is meant well needs a few per message."""
MAX_SECONDS = 2.0
"""A net under the other two."""

_MAX_BITS = 4096
_ITEM = 8
"""Characters that anything but a string counts for."""
_GROWING_METHODS = frozenset(
    {"center", "encode", "expandtabs", "format", "format_map", "ljust", "rjust", "translate", "zfill"}
)
_REMOVED_FILTERS = (
    "batch", "center", "filesizeformat", "forceescape", "format", "pprint", "random", "slice", "truncate",
    "urlencode", "urlize", "wordwrap", "xmlattr",
)  # fmt: skip
_REMOVED_GLOBALS = ("cycler", "joiner", "lipsum")


class _Meter:
    """What one rendering has used."""

    def __init__(self) -> None:
        self.steps = 0
        self.deadline = time.monotonic() + MAX_SECONDS

    def step(self) -> None:
        self.steps += 1
        if self.steps > MAX_STEPS or time.monotonic() > self.deadline:
            raise SecurityError("the template runs too long")


_meter: ContextVar[_Meter] = ContextVar("meter")


class Sandbox(ImmutableSandboxedEnvironment):
    """`from_string` compiles, `run` renders within the limits. A breach raises jinja2's SecurityError."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, now: Callable[[], datetime]) -> None:
        """`now` is the clock of `strftime_now`."""
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
        )
        for name in _REMOVED_FILTERS:
            del self.filters[name]
        for name in _REMOVED_GLOBALS:
            del self.globals[name]
        self.filters["tojson"] = _to_json
        self.filters["replace"] = _replace
        self.filters["join"] = _limited_join(self.filters["join"])
        self.filters["indent"] = _limited_indent(self.filters["indent"])
        self.filters["_counted"] = _counted
        self.filters["_sized"] = _sized
        self.filters["_joined"] = _joined
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda text: now().strftime(_date_format(text))

    def run(self, template: jinja2.Template, variables: dict[str, Any]) -> str:
        """The output of a compiled template."""
        token = _meter.set(_Meter())
        try:
            pieces, size = [], 0
            for piece in template.generate(variables):
                size += len(piece)
                _check_size(size)
                pieces.append(piece)
            return "".join(pieces)
        finally:
            _meter.reset(token)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """Loops, assignments and `~` are no calls in Jinja; here they pass through filters that count."""
        template = super()._parse(source, name, filename)
        for parent in list(template.find_all(nodes.Node)):
            for field, value in parent.iter_fields():
                if isinstance(value, nodes.Concat):
                    setattr(parent, field, _joined_node(value))
                elif isinstance(value, list):
                    value[:] = [_joined_node(v) if isinstance(v, nodes.Concat) else v for v in value]
        for node in template.find_all((nodes.For, nodes.Assign, nodes.With)):
            if isinstance(node, nodes.For):
                node.iter = _filtered(node.iter, "_counted")
            elif isinstance(node, nodes.Assign):
                node.node = _filtered(node.node, "_sized")
            elif isinstance(node, nodes.With):
                node.values = [_filtered(value, "_sized") for value in node.values]
        return template

    def wrap_str_format(self, value: Any) -> None:
        """Jinja would let `format` through to a safe variant, which pads to any width."""

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        growing = isinstance(obj, str) and attr in _GROWING_METHODS
        return not growing and super().is_safe_attribute(obj, attr, value)

    def call(self, context: Context, obj: Any, *args: Any, **kwargs: Any) -> Any:
        _meter.get().step()
        for argument in (*args, *kwargs.values()):
            _sized(argument)
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, str):
            name = getattr(obj, "__name__", "")
            if name == "replace":
                return _replace(owner, *args, **kwargs)
            if name == "join" and len(args) == 1:
                parts = list(args[0])
                _check_size(sum(map(len, parts)) + len(owner) * len(parts))
                return owner.join(parts)
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _meter.get().step()
        if operator == "+":
            _check_size(_length(left) + _length(right))
        elif operator == "*":
            if isinstance(left, int) and isinstance(right, int):
                _check_bits(left.bit_length() + right.bit_length())
            else:
                _check_size(_length(left) * _number(right), _length(right) * _number(left))
        elif operator == "**":
            if isinstance(left, int) and isinstance(right, int):
                _check_bits(left.bit_length() * abs(right))
        elif isinstance(left, str):
            raise SecurityError("the template formats a text with %, which is not allowed")
        return super().call_binop(context, operator, left, right)


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks what a model is trained on; here it is only its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _check_size(*sizes: int) -> None:
    if max(sizes) > MAX_CHARACTERS:
        raise SecurityError(f"the template makes a text of more than {MAX_CHARACTERS} characters")


def _check_bits(bits: int) -> None:
    if bits > _MAX_BITS:
        raise SecurityError(f"the template makes a number of more than {_MAX_BITS} bits")


def _length(value: Any) -> int:
    return len(value) if isinstance(value, (str, list, tuple)) else 0


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _counted(values: Iterable[Any]) -> Iterator[Any]:
    """The iterable of a `for`, counting its turns."""
    meter = _meter.get()
    for value in values:
        meter.step()
        yield _sized(value)


def _sized(value: Any) -> Any:
    """A value that gets a name. Lists that hold another list twice, in turn, would print without end."""
    if not isinstance(value, str):
        _check_size(_printed(value, {}))
    return value


def _printed(value: Any, known: dict[int, int]) -> int:
    """About how many characters the value prints as; a list that is held twice is measured once."""
    if isinstance(value, str):
        return len(value)
    items: Iterable[Any]
    if isinstance(value, (list, tuple)):
        items = value
    elif isinstance(value, dict):
        items = chain(value, value.values())
    elif isinstance(value, Namespace):
        items = (object.__getattribute__(value, "_Namespace__attrs"),)
    else:
        return _ITEM
    if id(value) not in known:
        known[id(value)] = 0  # where it holds itself it prints as "..."
        known[id(value)] = _ITEM + sum(_printed(item, known) for item in items)
    return known[id(value)]


def _filtered(node: nodes.Node, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _joined_node(concat: nodes.Concat) -> nodes.Filter:
    return _filtered(nodes.List(concat.nodes, lineno=concat.lineno), "_joined")


def _joined(values: list[Any]) -> str:
    """The operator `~`."""
    _meter.get().step()
    parts = list(map(str, values))
    _check_size(sum(map(len, parts)))
    return "".join(parts)


def _replace(text: Any, old: Any, new: Any, count: int | None = None) -> str:
    source, old, new = str(text), str(old), str(new)
    limit = -1 if count is None else count
    times = source.count(old) if limit < 0 else min(limit, source.count(old))
    _check_size(len(source) + times * len(new))
    return source.replace(old, new, limit)


def _limited_join(join: Callable[..., str]) -> Callable[..., str]:
    @jinja2.pass_eval_context
    def limited(context: Any, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
        values = list(value)
        _check_size(len(values) * len(str(d)) + sum(len(v) for v in values if isinstance(v, str)))
        joined: str = join(context, values, d, attribute)
        return joined

    return limited


def _limited_indent(indent: Callable[..., str]) -> Callable[..., str]:
    def limited(s: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
        margin = width if isinstance(width, int) else len(width)
        _check_size(len(s) + margin * (s.count("\n") + 1))
        return indent(s, width, first, blank)

    return limited


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """What templates are written for: plain JSON, without the HTML escapes of Jinja's own filter."""
    if indent is not None and not 0 <= indent <= 16:
        raise SecurityError(f"tojson is asked for an indent of {indent}; at most 16 are allowed")
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _date_format(text: str) -> str:
    """The C library pads dates to any width it is asked for."""
    if re.search(r"\d{3}", text):
        raise SecurityError(f"the date format {text[:40]!r} has a width of three digits or more")
    return text


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)
