"""Values from the command line, checked without the library that typer checks them with. Knows no option.

typer imports pydantic as soon as a command has options, given or not: 0.13 s, longer than an engine takes to load.
What is plainly right is taken here; all else goes typer's way, which also has the words for what is wrong. What
they lack is the value.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup

__all__ = ["ARGUMENTS", "QuickCommand", "QuickGroup"]

ARGUMENTS = "octavo.arguments"
"""Where a command's context has the words that it was given, to read them again (`context.meta`)."""

_UNDECIDED = object()


class QuickCommand(TyperCommand):
    """A command of typer's with the same answers, sooner. A typer that works otherwise is left alone."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _quicken(self.get_params(ctx))
        ctx.meta[ARGUMENTS] = tuple(args)
        return super().parse_args(ctx, args)


class QuickGroup(TyperGroup):
    """The same for the options before the command's name."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _quicken(self.get_params(ctx))
        return super().parse_args(ctx, args)


def _with_value(error: typer.BadParameter) -> str:
    """What is wrong with which value, in pydantic's words where it found the fault."""
    details = getattr(error.__cause__, "errors", None)
    if details is None:
        return str(error.message)
    reason = str(error.message).partition(", unable to")[0].removeprefix("Value error, ")
    must = reason.removeprefix("Input should ")
    return reason if must == reason else f"{details()[0]['input']!r} should {must}."


def _quicken(parameters: Iterable[Any]) -> None:
    for parameter in parameters:
        own = getattr(parameter, "get_runtime_param", None)
        if own is not None and not isinstance(own, _Quick):
            parameter.get_runtime_param = _Quick(parameter, own)


class _Quick:
    """Stands for a parameter's `get_runtime_param`, and for the object with `coerce` that it returns."""

    def __init__(self, parameter: Any, own: Any) -> None:
        self._own = own
        self._default = parameter.default
        self._annotation = parameter.type_descriptor.annotation
        self._info = parameter.type_descriptor.parameter_info

    def __call__(self) -> _Quick:
        return self

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        taken = self._taken(value, several=param.multiple or param.nargs == -1)
        if taken is not _UNDECIDED:
            return taken
        try:
            return self._own().coerce(value, param=param, ctx=ctx)
        except typer.BadParameter as error:
            raise typer.BadParameter(_with_value(error), ctx, param) from error

    def _taken(self, value: Any, *, several: bool) -> Any:
        kind = self._annotation
        if value is None:
            return () if several else None
        if self._info.parser is not None and not several:
            try:
                return self._info.parser(value)
            except (ValueError, typer.BadParameter):
                return _UNDECIDED
        if kind is str and type(value) is str:
            return value
        if kind == list[str] and several and all(type(each) is str for each in value):
            return list(value)
        if get_origin(kind) is not None and type(value) is str and value in get_args(kind):
            return value  # of a Literal
        if kind in (int, float) and type(value) is kind and value == self._default:
            return value
        limited = self._info.min is not None or self._info.max is not None
        if kind is int and type(value) is str and value.isascii() and value.isdecimal() and not limited:
            return int(value)
        return _UNDECIDED
