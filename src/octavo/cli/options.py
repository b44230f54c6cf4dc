"""Command-line options made from the fields of the settings. Knows names and types, not their meaning."""

from __future__ import annotations

import ast
import functools
import inspect
import re
import textwrap
import typing
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
import typer

from octavo.config import EngineConfig

__all__ = [
    "engine_options",
    "field_help",
    "flag_of",
    "parse_duration",
    "parse_port",
    "parse_size",
    "shown_default",
    "typed",
]

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY_UNITS = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}

_DURATIONS_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}

_ALIASES = {
    "max_running": ["--max-num-seqs"],
    "max_step_tokens": ["--max-num-batched-tokens"],
    "prefix_cache": ["--enable-prefix-caching"],
    "memory_utilization": ["--gpu-memory-utilization"],
}
"""vLLM's names, for those who know them."""


def parse_size(text: str) -> int:
    """Bytes from `2GiB`, `500MB`, `1.5g` (as `GB`) or a plain number. Raises typer.BadParameter."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)(b?)", text.strip().lower())
    if match is None or (match[3] and not match[2]):
        raise typer.BadParameter(f"{text!r} is not a size; write a number and a unit, such as 2GiB or 500MB.")
    units = _BINARY_UNITS if match[3] else _UNITS
    return int(float(match[1]) * units[match[2]])


def parse_duration(text: str) -> float:
    """Seconds from `50ms`, `1.5s`, `2min`, `1h` or `0`. Raises typer.BadParameter."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(us|ms|s|min|h)|0+", text.strip().lower())
    if match is None:
        raise typer.BadParameter(
            f"{text!r} is not a time; write a number, not below 0, and its unit, such as 50ms or 1.5s."
        )
    return float(match[1] or 0) * _DURATIONS_S[match[2] or "s"]


def shown_default(field: msgspec.structs.FieldInfo) -> str:
    """A field's default as one would write it on the command line: `8GiB`, `512`."""
    if field.name.endswith("_bytes") and field.default is not None and not field.default % (1 << 30):
        return f"{field.default >> 30}GiB"
    return str(field.default)


def parse_port(value: str | int) -> int:
    """A TCP port, 0 for any (typer sends a default through here too). Raises typer.BadParameter."""
    text = str(value)
    if not (text.isascii() and text.isdecimal() and int(text) < 1 << 16):
        raise typer.BadParameter(f"{text!r} is not a port; ports are 0 to 65535.")
    return int(text)


def field_help(settings: type[msgspec.Struct]) -> dict[str, str]:
    """The docstring that stands under each field in the source of `settings`, on one line, by field name."""
    body = ast.parse(textwrap.dedent(inspect.getsource(settings))).body[0]
    assert isinstance(body, ast.ClassDef)
    texts = {}
    for field, below in zip(body.body, body.body[1:], strict=False):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                texts[name] = " ".join(text.replace("`", "").split())
    return texts


def typed(context: typer.Context) -> frozenset[str]:
    """The options that were given, by their parameters' names."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return frozenset(
        name for name, source in sources.items() if source is not None and source.name != "DEFAULT"
    )


def flag_of(field: str) -> str:
    """The option for a field of EngineConfig: without its unit, which the value may have."""
    return "--" + field.removesuffix("_bytes").removesuffix("_s").replace("_", "-")


def engine_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give `command` one option per EngineConfig field in place of its parameter `settings`.

    The command gets `settings`: a dict of the fields that were given, and no other, so that a default is
    written down once, in EngineConfig. `model_dir` is left out: it comes from the model's name.
    """
    signature = inspect.signature(command, eval_str=True)
    hints = typing.get_type_hints(EngineConfig)
    helps = field_help(EngineConfig)
    fields = [field for field in msgspec.structs.fields(EngineConfig) if field.name != "model_dir"]
    options = []
    for field in fields:
        size, time = field.name.endswith("_bytes"), field.name.endswith("_s")
        default = f" [default: {shown_default(field)}]" if field.default is not None else ""
        flag = flag_of(field.name)
        if field.type is bool:
            flag = f"{flag}/--no-{flag.removeprefix('--')}"
        option = typer.Option(
            flag,
            *_ALIASES.get(field.name, []),
            help=helps[field.name] + default,
            parser=parse_size if size else parse_duration if time else None,
            metavar="SIZE" if size else "TIME" if time else None,
        )
        kind = hints[field.name] | None
        options.append(
            inspect.Parameter(
                field.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option]
            )
        )

    @functools.wraps(command)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        given = {field.name: kwargs.pop(field.name) for field in fields}
        settings = {name: value for name, value in given.items() if value is not None}
        command(*args, settings=settings, **kwargs)

    own = [parameter for name, parameter in signature.parameters.items() if name != "settings"]
    wrapper.__signature__ = signature.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
    return wrapper
