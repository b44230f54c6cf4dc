"""The C++ kernels as a backend: the program lowered once, then one call a step. Knows no arithmetic.

`octavo._kernels.Runtime` (kernels/step.h) keeps the slots, the KV memory and the threads, reads plans directly,
and checks all that it reads; this module finds the weights, names the errors and keeps the order of calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, get_args

from octavo.backends.base import Handle, Limits, Plan, PlanError, Samples, TokenSample
from octavo.backends.flight import Flight, Step
from octavo.config import KvDtype
from octavo.errors import ModelError, SettingsError
from octavo.models.program import Attention, Buffer, Embed, Gated, Head, Linear, Norm, Op, RopeOp
from octavo.models.spec import ModelSpec
from octavo.models.store import PackedTensor, StoredModel

if TYPE_CHECKING:  # an engine process needs no NumPy, and starts without it 0.07 s sooner
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["NativeBackend"]

BLOCK_SIZE = 16
"""Tokens in a KV block: fixed by the cache's layout."""
BUFFERS = {name: number for number, name in enumerate(get_args(Buffer))}


class NativeBackend:
    """`Backend` over the C++ kernels. `launch` and `sample` do their work at once; any depth is allowed.

    `threads`: workers, the caller's thread among them; None takes the processors this process may use.
    `isa`: a name of OCTAVO_ISA (docs/knobs.md) lowers the choice of instructions (all give the same bits); "" does not.
    `copy_weights`: into huge pages of this process's own, instead of mapping their file.
    `beside`: a backend whose threads this one uses too, instead of `threads` of its own; they compute in turns.
    `progress`: one word of 64 bits, where (step << 16) + layer is written while a step runs.
    Where the model's arithmetic fails (NaN logits), that row's answer is TokenSample(-1), and no other's changes.

    Raises ModelError for a program that the kernels cannot run, SettingsError for limits that they cannot keep or
    kernels that are not built, PlanError for a plan or a call that breaks the contract of `backends/base.py`.
    """

    name = "native"
    invariant = True

    def __init__(
        self,
        model: StoredModel,
        limits: Limits,
        *,
        kv_dtype: KvDtype = "bf16",
        threads: int | None = None,
        isa: str = "",
        copy_weights: bool = False,
        beside: NativeBackend | None = None,
        progress: memoryview | None = None,
    ) -> None:
        kernels = load_kernels()
        if limits.block_size != BLOCK_SIZE:
            raise SettingsError(
                f"block_size is {limits.block_size}; the native backend's cache has blocks of {BLOCK_SIZE}: "
                f"use {BLOCK_SIZE}, or --backend reference."
            )
        if kv_dtype not in get_args(KvDtype):
            raise SettingsError(f"kv_dtype is {kv_dtype!r}; the native backend stores bf16, fp32 or int8.")
        self.spec = model.spec
        self.limits = limits
        self.arithmetic_id = (
            f"native:{self.spec.weights_hash}:{kernels.KERNEL_VERSION}:kv-{kv_dtype}:activations-int8"
        )
        threads = kernels.default_threads() if threads is None else threads
        weights = model.weights(copied=copy_weights, threads=threads)
        try:
            program = lower(model.spec, model.tensors, weights, kernels)
        except ValueError as error:
            raise ModelError(
                f"The model '{self.spec.name}' cannot run on the native backend: {error}"
            ) from error
        try:
            self._runtime: Any = kernels.Runtime(
                program,
                num_blocks=limits.num_blocks,
                max_slots=limits.max_slots,
                max_step_tokens=limits.max_step_tokens,
                max_model_len=limits.max_model_len,
                kv=kv_dtype,
                threads=threads,
                isa=isa,
                beside=beside._runtime if beside else None,
                progress=progress,
            )
        except ValueError as error:
            raise SettingsError(f"The native backend cannot keep these limits: {error}") from error
        except MemoryError as error:
            raise SettingsError(
                f"num_blocks is {limits.num_blocks}, which with the workspace does not fit this machine's "
                "memory; ask for less KV memory."
            ) from error
        self.threads: int = self._runtime.threads
        self.block_bytes: int = self._runtime.block_bytes
        """Of one KV block in every group."""
        self._flight: Flight[Step] = Flight()
        self._closed = False

    def launch(self, plan: Plan) -> Handle:
        if self._closed:
            raise PlanError(f"launch of step {plan.step}: the backend is closed.")
        self._flight.check_launch(plan)
        try:
            self._runtime.launch(plan)
        except (ValueError, TypeError, OverflowError, AttributeError) as error:
            raise PlanError(f"launch of step {plan.step}: {error}") from error
        return self._flight.launched(Step(plan))

    def sample(self, handle: Handle, masks: Sequence[NDArray[np.int32] | None] | None = None) -> None:
        step = self._flight.to_sample(handle, masks)
        try:
            answers = self._runtime.sample(masks and list(masks))
        except (ValueError, TypeError) as error:
            raise PlanError(f"sample of step {step.number}: {error}") from error
        step.samples = tuple([TokenSample(*answer) for answer in answers])

    def collect(self, handle: Handle) -> Samples:
        return self._flight.collect(handle)

    def read_block(self, group: int, block: int) -> bytes:
        try:
            data: bytes = self._runtime.read_block(group, block)
        except (ValueError, RuntimeError) as error:
            raise PlanError(f"read_block: {error}") from error
        return data

    def write_block(self, group: int, block: int, data: bytes) -> None:
        try:
            self._runtime.write_block(group, block, data)
        except (ValueError, RuntimeError) as error:
            raise PlanError(f"write_block: {error}") from error

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._flight.clear()
            self._runtime.close()

    # What tests, benchmarks and a watchdog look at; not part of the contract.

    def progress(self) -> tuple[int, int]:
        """(step, layer) that the last launch has reached. May be called from another thread."""
        packed: int = self._runtime.progress()
        return packed >> 16, packed & 0xFFFF

    def counters(self) -> dict[str, int]:
        """Of the last launch: `barriers` waited for; `by_rows` 1 if tiles of rows were claimed; `allocations` of heap
        memory; `weight_bytes` multiplied; `kv_bytes` of K and V that attention read, what rows share once."""
        counters: dict[str, int] = self._runtime.counters()
        return counters

    def measure(self, enabled: bool) -> None:
        """Measure the stages of every step from now on, or stop."""
        self._runtime.measure(enabled)

    def times(self) -> dict[str, float]:
        """Seconds that the calling thread's worker spent per stage since the last call."""
        times: dict[str, float] = self._runtime.times()
        return times


def load_kernels() -> Any:
    """The extension module. Raises SettingsError where it was not built."""
    try:
        return import_module("octavo._kernels")
    except ImportError as error:
        raise SettingsError(
            f"backend is 'native', and the C++ kernels are not installed ({error}); install a C++ compiler "
            "and Octavo again, or use --backend reference."
        ) from error


def lower(spec: ModelSpec, tensors: dict[str, PackedTensor], weights: memoryview, kernels: Any) -> Any:
    """The spec's program as a `_kernels.Program` over `weights`. Raises ValueError for what it cannot be."""
    for group in spec.kv_groups:
        if group.window:
            raise ValueError(
                f"layer {group.layers[0]} has a sliding window of {group.window} tokens, which the kernels do "
                "not have; use --backend reference."
            )
        if (group.kv_heads, group.head_dim) != (spec.kv_heads, spec.head_dim):
            raise ValueError("its KV groups differ in their heads; use --backend reference.")
    return Lowering(spec, tensors, weights, kernels).program()


class Lowering:
    """Gives each tensor its number once, and each operation to the C++ program."""

    def __init__(
        self, spec: ModelSpec, tensors: dict[str, PackedTensor], weights: memoryview, kernels: Any
    ) -> None:
        self._spec, self._tensors = spec, tensors
        self._numbers: dict[str, int] = {}
        self._to = kernels.Program(
            weights,
            vocab=spec.vocab_size,
            hidden=spec.hidden,
            heads=spec.heads,
            kv_heads=spec.kv_heads,
            head_dim=spec.head_dim,
            ffn=spec.ffn,
            rope_theta=spec.rope.theta,
            rope_dim=spec.rope.dim,
            rope_interleaved=spec.rope.interleaved,
            rope_factors=list(spec.rope.factors or ()),
            kv_layers=[len(group.layers) for group in spec.kv_groups],
        )

    def program(self) -> Any:
        program = self._spec.program
        for op in program.start:
            self._add(op)
        for layer in program.layers:
            self._to.layer()
            for op in layer:
                self._add(op)
        for op in program.end:
            self._add(op)
        self._to.finish()
        return self._to

    def _add(self, op: Op) -> None:
        to = self._to
        match op:
            case Embed():
                to.embed(self._number(op.table), op.scale)
            case Norm():
                source, target = BUFFERS[op.source], BUFFERS[op.target]
                to.norm(source, target, self._number(op.weight), op.eps, op.offset)
            case Linear():
                targets = [BUFFERS[target] for target in op.targets]
                weights = [self._number(name) for name in op.weights]
                biases = [-1 if name is None else self._number(name) for name in op.biases]
                to.linear(BUFFERS[op.source], targets, weights, biases, op.add, op.scale)
            case Gated():
                source, target = BUFFERS[op.source], BUFFERS[op.target]
                to.gated(source, target, self._number(op.gate), self._number(op.up))
            case RopeOp():
                to.rope()
            case Attention():
                place = self._spec.kv_groups[op.group].layers.index(op.layer)
                to.attention(op.group, place, op.scale)
            case Head():
                to.head(BUFFERS[op.source], self._number(op.weight), op.scale)

    def _number(self, name: str) -> int:
        """Of a matrix or a vector, which count apart; the program's operations know which they mean."""
        if name not in self._numbers:
            tensor = self._tensors[name]
            if tensor.kind == "vector":
                number = self._to.vector(offset=tensor.offset, nbytes=tensor.nbytes, size=tensor.cols)
            else:
                number = self._to.matrix(
                    offset=tensor.offset,
                    nbytes=tensor.nbytes,
                    rows=tensor.rows,
                    cols=tensor.cols,
                    container=tensor.container,
                    zero_point=tensor.zero_point,
                    has_min=tensor.has_min,
                )
            self._numbers[name] = number
        return self._numbers[name]
