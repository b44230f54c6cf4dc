"""Backends to test, made by name, so that every backend meets the same tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from octavo.backends.base import Backend, Limits
from octavo.models.store import open_model

LIMITS = Limits(num_blocks=128, block_size=16, max_slots=16, max_step_tokens=512, max_model_len=512)


class MakeBackend(Protocol):
    def __call__(self, name: str, model: str | Path, limits: Limits = LIMITS, **options: Any) -> Backend: ...


def make_backend(name: str, model: str | Path, limits: Limits = LIMITS, **options: Any) -> Backend:
    """A new backend; `model` is whatever the store opens, `options` are the backend's own."""
    stored = open_model(model, packed=name == "native")
    if name == "reference":
        from octavo.backends.reference import ReferenceBackend

        return ReferenceBackend(stored, limits, **options)
    if name == "native":
        from octavo.backends.native import NativeBackend

        return NativeBackend(stored, limits, **options)
    raise ValueError(name)


@pytest.fixture
def make() -> Iterator[MakeBackend]:
    """`make_backend`; what it made is closed when the test ends."""
    made: list[Backend] = []

    def make(name: str, model: str | Path, limits: Limits = LIMITS, **options: Any) -> Backend:
        made.append(make_backend(name, model, limits, **options))
        return made[-1]

    yield make
    for backend in made:
        backend.close()
