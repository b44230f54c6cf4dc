"""A vector for a prompt: hidden states of a language model's first layers. Knows a model, and no label.

What a prompt is about shows after a few layers already; the mean of their states over the prompt's tokens costs a
tenth of a whole pass. The states go through the model's last norm, as those of `/v1/embeddings` do. They are computed
by the engine's own kernels: the same text has the same vector, bit for bit, alone and among others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Self

import msgspec
import numpy as np

from octavo.backends.base import ChoiceRule, Limits, Plan, PlanRow, SampleRow, SlotOpen
from octavo.backends.native import BLOCK_SIZE, NativeBackend
from octavo.errors import RoutingError, ServerError
from octavo.models.store import StoredModel, open_model
from octavo.routing.signs import clipped

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["DEFAULT_LAYERS", "DEFAULT_TOKENS", "Embedder", "EmbeddingSpec"]

DEFAULT_LAYERS = 4
DEFAULT_TOKENS = 128
_TOGETHER = 16
"""Prompts in one step."""


class EmbeddingSpec(msgspec.Struct, frozen=True):
    """Which vectors a policy was trained with."""

    model: str
    """As `octavo pull` takes it."""
    weights_hash: str
    layers: int
    tokens: int
    """At most so many of a prompt, half of them its first and half its last."""
    width: int


class Embedder:
    """Prompts in, float32 vectors out. May be called from several threads; it computes one call at a time.

    Raises ModelError where the model cannot be found or run, SettingsError where the kernels are not built.
    """

    def __init__(
        self,
        model: str,
        *,
        layers: int = DEFAULT_LAYERS,
        tokens: int = DEFAULT_TOKENS,
        threads: int | None = None,
    ) -> None:
        stored = open_model(model)
        if not 1 <= layers <= stored.spec.layers:
            raise RoutingError(f"embedding layers are {layers}; '{model}' has 1 to {stored.spec.layers}.")
        self.spec = EmbeddingSpec(model, stored.spec.weights_hash, layers, tokens, stored.spec.hidden)
        self._tokenizer = stored.tokenizer()
        self._blocks = -(-tokens // BLOCK_SIZE)
        limits = Limits(_TOGETHER * self._blocks, BLOCK_SIZE, _TOGETHER, _TOGETHER * tokens, tokens)
        self._backend = NativeBackend(_shallow(stored, layers), limits, threads=threads)
        self._lock = threading.Lock()
        self._step = 0

    @classmethod
    def of(cls, spec: EmbeddingSpec, *, threads: int | None = None) -> Self:
        """The one that a policy was trained with. Raises RoutingError where the model is another by now."""
        made = cls(spec.model, layers=spec.layers, tokens=spec.tokens, threads=threads)
        if made.spec != spec:
            made.close()
            raise RoutingError(
                f"The policy was trained with another '{spec.model}' (weights {spec.weights_hash[:12]}, here "
                f"{made.spec.weights_hash[:12]}); train it again."
            )
        return made

    def vectors(
        self, texts: Sequence[str], progress: Callable[[int], None] | None = None
    ) -> NDArray[np.float32]:
        """[texts, width]. `progress` is told how many are done."""
        found = np.zeros((len(texts), self.spec.width), dtype=np.float32)
        with self._lock:
            for at in range(0, len(texts), _TOGETHER):
                part = self._compute([self._ids(text) for text in texts[at : at + _TOGETHER]])
                found[at : at + len(part)] = part
                if progress:
                    progress(at + len(part))
        return found

    def close(self) -> None:
        """Free the model. Calling it twice is harmless."""
        self._backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ids(self, text: str) -> list[int]:
        ids = self._tokenizer.encode(clipped(text)) or [0]
        most = self.spec.tokens
        return ids if len(ids) <= most else ids[: most - most // 2] + ids[-(most // 2) :]

    def _compute(self, prompts: Sequence[list[int]]) -> NDArray[np.float32]:
        opens, rows, samples = [], [], []
        for slot, ids in enumerate(prompts):
            table = tuple(range(slot * self._blocks, (slot + 1) * self._blocks))
            opens.append(SlotOpen(slot, tuple(ids), (table,), ChoiceRule(len(ids)), "mean"))
            rows.append(PlanRow(slot, 0, len(ids)))
            samples.append(SampleRow(slot, len(ids) - 1, slot))
        self._step += 1
        handle = self._backend.launch(Plan(self._step, tuple(opens), (), tuple(rows), tuple(samples)))
        self._backend.sample(handle)
        answers = self._backend.collect(handle)
        if any(not answer.vector for answer in answers):
            raise ServerError(f"The model '{self.spec.model}' has a vector that is not finite.")
        return np.stack([np.frombuffer(answer.vector, dtype="<f4") for answer in answers])


def _shallow(model: StoredModel, layers: int) -> StoredModel:
    """The same model without its later layers."""
    spec = model.spec
    program = msgspec.structs.replace(spec.program, layers=spec.program.layers[:layers])
    groups = tuple(
        msgspec.structs.replace(group, layers=tuple(layer for layer in group.layers if layer < layers))
        for group in spec.kv_groups
    )
    if len(groups) != 1:
        raise RoutingError(
            f"'{spec.name}' keeps its layers in several groups; embeddings need a model with one."
        )
    return replace(
        model, spec=msgspec.structs.replace(spec, layers=layers, program=program, kv_groups=groups)
    )
