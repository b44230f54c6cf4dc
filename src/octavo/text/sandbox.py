"""Jinja for templates nobody has read, in Hugging Face's dialect. Knows Jinja's dangers, and no chats.

Jinja's sandbox keeps a template from Python's internals and from changing its input, but not from using all
memory or time. Here every loop turn, call, filter, test and operator is counted by the size of what it reads and makes,
values have a greatest size, and what makes large values out of small ones is checked before it runs, or left out.
"""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from itertools import chain
from typing import Any, NoReturn, cast

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

__all__ = [
    "GROWTH",
    "MAX_CHARACTERS",
    "MAX_SECONDS",
    "MAX_SOURCE",
    "MAX_STEPS",
    "Hurried",
    "Sandbox",
    "hurry",
]

MAX_CHARACTERS = 512 << 10
"""Of the output, and of any value; or `GROWTH` times those of the input, where that is more. One operation on so much
takes some ten milliseconds, in which nothing else of Python runs."""
GROWTH = 8
MAX_STEPS = 1_000_000
"""In one rendering: loop turns, calls, filters and operators, and one more for each `_PER_STEP` characters that they
read or make. A template that is meant well needs a few per message, and a few for each of its characters."""
MAX_SECONDS = 2.0
"""A net under the other two."""
MAX_SOURCE = 512 << 10
"""Characters of a template; the longest that are known have a twentieth."""

_PER_STEP = 64

_MAX_BITS = 4096
_ITEM = 8
"""Characters that anything but a string counts for."""
_GROWING_METHODS = frozenset(
    {"center", "encode", "expandtabs", "format", "format_map", "ljust", "rjust", "translate", "zfill"}
)
_REMOVED_FILTERS = (
    "batch", "center", "filesizeformat", "forceescape", "format", "pprint", "random", "slice", "striptags", "sum",
    "truncate", "urlencode", "urlize", "wordcount", "wordwrap", "xmlattr",
)  # fmt: skip
_SORTING = ("dictsort", "groupby", "max", "min", "sort", "unique")
"""These look at all of every item."""
_OF_NUMBERS = frozenset({"bit_length", "denominator", "imag", "is_integer", "numerator", "real"})
_REMOVED_GLOBALS = ("cycler", "joiner", "lipsum")


class Hurried(Exception):
    """The rendering takes longer than `hurry` allows; nothing else is wrong with it."""


class _Meter:
    """What one rendering has used, and may."""

    def __init__(self, input_size: int) -> None:
        self.most_characters = max(MAX_CHARACTERS, GROWTH * input_size)
        self._steps = 0
        self._most_steps = MAX_STEPS + input_size // 4
        hurried = _hurried.get()
        self._error: Exception = SecurityError("the template runs too long") if hurried is None else Hurried()
        self._deadline = time.monotonic() + (MAX_SECONDS if hurried is None else hurried)

    def step(self, *values: Any) -> None:
        """One more, which reads or makes `values`."""
        self.charge(sum(map(_length, values)))

    def charge(self, size: int) -> None:
        """One more, which reads or makes so many characters."""
        self._steps += 1 + size // _PER_STEP
        if self._steps > self._most_steps:
            raise SecurityError("the template runs too long")
        if time.monotonic() > self._deadline:
            raise self._error


_meter: ContextVar[_Meter] = ContextVar("meter")
_hurried: ContextVar[float | None] = ContextVar("hurried", default=None)


@contextmanager
def hurry(seconds: float) -> Iterator[None]:
    """Renderings inside raise Hurried after so long: for a thread that has other things to do."""
    token = _hurried.set(seconds)
    try:
        yield
    finally:
        _hurried.reset(token)


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
        for name in _SORTING:
            self.filters[name] = _limited_sort(self.filters[name])
        for name in ("string", "escape", "e"):
            self.filters[name] = _limited_text(self.filters[name])
        self.filters["round"] = _limited_round(self.filters["round"])
        self.filters["tojson"] = _to_json
        self.filters["replace"] = _replace
        self.filters["join"] = _limited_join(self.filters["join"])
        self.filters["indent"] = _limited_indent(self.filters["indent"])
        for name, one in self.filters.items():
            self.filters[name] = _metered(cast(Callable[..., Any], one))
        for name, test in self.tests.items():
            self.tests[name] = _metered(cast(Callable[..., Any], test))
        self.finalize = _sized
        self.filters["_counted"] = _counted
        self.filters["_sized"] = _sized
        self.filters["_joined"] = _joined
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda text: now().strftime(_date_format(text))

    def run(self, template: jinja2.Template, variables: dict[str, Any]) -> str:
        """The output of a compiled template."""
        token = _meter.set(_Meter(_printed(variables, {})))
        try:
            pieces, size = [], 0
            for piece in template.generate(variables):
                size += len(piece)
                _check_size(size)
                pieces.append(piece)
            return "".join(pieces)
        finally:
            _meter.reset(token)

    @staticmethod
    def concat(parts: Iterable[str]) -> str:
        """Of what a block, a macro or `set` has printed."""
        pieces = list(parts)
        size = sum(map(len, pieces))
        _check_size(size)
        joined = "".join(pieces)
        if (meter := _meter.get(None)) is not None:
            meter.step(joined)
        return joined

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """Loops, assignments and `~` are no calls in Jinja; here they pass through filters that count."""
        if len(source) > MAX_SOURCE:
            raise SecurityError(f"it has {len(source)} characters; at most {MAX_SOURCE} are taken")
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
        if isinstance(obj, (int, float, bytes)):  # to_bytes(10**9)
            return attr in _OF_NUMBERS
        growing = isinstance(obj, str) and attr in _GROWING_METHODS
        return not growing and super().is_safe_attribute(obj, attr, value)

    def call(self, context: Context, obj: Any, *args: Any, **kwargs: Any) -> Any:
        owner = getattr(obj, "__self__", None)
        _meter.get().step(owner, *args, *kwargs.values())
        for argument in (*args, *kwargs.values()):
            _sized(argument)
        if isinstance(owner, str):
            name = getattr(obj, "__name__", "")
            if name == "replace":
                return _replace(owner, *args, **kwargs)
            if name == "join" and len(args) == 1:
                parts = list(args[0])
                _check_size(_printed(parts, {}) + len(owner) * len(parts))
                return _made(owner.join(parts))
        return _made(super().call(context, obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _meter.get().step(left, right)
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
        return _made(super().call_binop(context, operator, left, right))


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks what a model is trained on; here it is only its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _check_size(*sizes: int) -> None:
    meter = _meter.get(None)
    most = MAX_CHARACTERS if meter is None else meter.most_characters
    if max(sizes) > most:
        raise SecurityError(f"the template makes a text of more than {most} characters")


def _made(value: Any) -> Any:
    """A value that is new, counted; what gives its items one by one is counted as it does."""
    if isinstance(value, Iterator):
        return _counted(value)
    _check_size(_length(value))
    _meter.get().step(value)
    return value


def _metered(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter or a test that counts what it reads and what it makes."""

    @functools.wraps(function)  # with the marks of jinja2.pass_context and its like
    def metered(*args: Any, **kwargs: Any) -> Any:
        _meter.get().step(*args, *kwargs.values())
        return _made(function(*args, **kwargs))

    return metered


def _check_bits(bits: int) -> None:
    if bits > _MAX_BITS:
        raise SecurityError(f"the template makes a number of more than {_MAX_BITS} bits")


def _length(value: Any) -> int:
    """About how many characters, not looking into its items."""
    if isinstance(value, str):
        return len(value)
    return _ITEM * len(value) if isinstance(value, (list, tuple, dict)) else 0


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _counted(values: Iterable[Any]) -> Iterator[Any]:
    """The iterable of a `for`, counting its turns."""
    meter = _meter.get()
    for value in values:
        meter.step(value)
        yield _sized(value)


def _sized(value: Any) -> Any:
    """A value that gets a name or is printed. Lists that hold another list twice, in turn, would print without end."""
    if not isinstance(value, str):
        _check_size(_printed(value, {}))
    elif (meter := _meter.get(None)) is not None:
        meter.step(value)
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
    _check_size(_printed(values, {}))
    parts = list(map(str, values))
    _check_size(sum(map(len, parts)))
    return str(_made("".join(parts)))


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
        _check_size(len(values) * len(str(d)) + _printed(values, {}))
        joined: str = join(context, values, d, attribute)
        return joined

    return limited


def _limited_sort(sort: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(sort)
    def limited(environment: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        values = value if isinstance(value, (Mapping, str)) else list(value)
        _meter.get().charge(_printed(values, {}))
        return sort(environment, values, *args, **kwargs)

    return limited


def _limited_text(made: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(made)
    def limited(value: Any) -> Any:
        _check_size(_printed(value, {}))
        return made(value)

    return limited


def _limited_round(rounded: Callable[..., Any]) -> Callable[..., Any]:
    def limited(value: float, precision: int = 0, method: Any = "common") -> Any:
        if abs(precision) > 20:
            raise SecurityError(f"round is asked for {precision:.3g} digits; at most 20 are allowed")
        return rounded(value, precision, method)

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
    _check_size(_printed(value, {}))
    if indent is None and separators is None:
        return json.dumps(value, ensure_ascii=ensure_ascii, sort_keys=sort_keys)
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    pieces, size = [], 0
    for piece in encoder.iterencode(value):  # depth times width, or long separators
        size += len(piece)
        _check_size(size)
        pieces.append(piece)
    return "".join(pieces)


def _date_format(text: str) -> str:
    """The C library pads dates to any width it is asked for, and repeats what it is asked for often."""
    _check_size(64 * len(text))
    if re.search(r"\d{3}", text):
        raise SecurityError(f"the date format {text[:40]!r} has a width of three digits or more")
    return text


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)
