"""An executor that runs what it is given at once, so that a search is one process in a test."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeVar

__all__ = ["Inline"]

P = ParamSpec("P")
T = TypeVar("T")


class Inline(Executor):
    def __init__(self) -> None:
        self.asked: list[Any] = []

    def submit(self, function: Callable[P, T], /, *arguments: P.args, **named: P.kwargs) -> Future[T]:
        self.asked.append(arguments[0])
        future: Future[T] = Future()
        future.set_result(function(*arguments, **named))
        return future
