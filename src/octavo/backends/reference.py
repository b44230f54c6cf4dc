"""The readable truth: a backend in NumPy that other backends are tested against. Knows no speed.

Arithmetic is float32 on the dequantised weights of any GGUF format. Every answer is bit-identical whatever
else is in the plan, because each number is computed by operations that cannot see the neighbours:
elementwise ones, sums along one row, and products by `einsum`, which (unlike BLAS) neither changes its order
with the shape nor starts threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from octavo.backends import choice
from octavo.backends.arithmetic import (
    Floats,
    attention,
    bfloat16,
    int8,
    matmul,
    rotations,
    silu,
    unchanged,
)
from octavo.backends.base import (
    BlockCopy,
    ChoiceRule,
    Handle,
    Limits,
    Plan,
    PlanError,
    PlanRow,
    SampleRow,
    Samples,
    SlotOpen,
    TokenSample,
)
from octavo.backends.flight import Flight, Step
from octavo.config import KvDtype, Pooling
from octavo.errors import ModelError, SettingsError
from octavo.models.gguf import GGUFFile
from octavo.models.program import Attention, Embed, Gated, Head, Linear, Norm, Op, RopeOp
from octavo.models.spec import ModelSpec

__all__ = ["ReferenceBackend"]

Ints = NDArray[np.int64]

HEAD_ROWS = 16  # rows whose logits exist at the same time: 3 MB at a vocabulary of 49,152


class Source(Protocol):
    """What is needed of a stored model."""

    @property
    def spec(self) -> ModelSpec: ...
    @property
    def source(self) -> Path: ...


class Weights:
    """The tensors of a GGUF file as float32, each dequantised when it is first used and then kept."""

    def __init__(self, path: Path) -> None:
        try:
            import gguf
        except ImportError as error:
            raise SettingsError(
                "backend is 'reference', which needs the package gguf, and that is not installed; "
                "install octavo[reference] or take backend 'native'."
            ) from error
        self._file = GGUFFile(path)
        self._dequantize = gguf.dequantize
        self._kinds = {name: gguf.GGMLQuantizationType(t.type.id) for name, t in self._file.tensors.items()}
        self._kept: dict[str, Floats] = {}
        for tensor in {t.type: t for t in self._file.tensors.values()}.values():
            try:
                self._float32(tensor.name, np.zeros((1, tensor.type.block_bytes), np.uint8))
            except NotImplementedError as error:
                raise ModelError(
                    f"'{path}': tensor {tensor.name!r} has type {tensor.type.name}, which the package gguf "
                    "cannot dequantise; take a file with other types."
                ) from error

    def rows(self, name: str, ids: Ints) -> Floats:
        """Rows `ids` of a matrix, [len(ids), inputs]. Not kept: few rows of an embedding are used."""
        return self._float32(name, self._raw(name)[ids])

    def matrix(self, name: str) -> Floats:
        """A matrix, transposed: [inputs, outputs]."""
        if name not in self._kept:
            self._kept[name] = np.ascontiguousarray(self._float32(name, self._raw(name)).T)
        return self._kept[name]

    def vector(self, name: str) -> Floats:
        if name not in self._kept:
            self._kept[name] = self._float32(name, self._raw(name))[0]
        return self._kept[name]

    def clear(self) -> None:
        self._kept.clear()

    def _raw(self, name: str) -> NDArray[np.uint8]:
        """The file's bytes, [rows, bytes of a row]; a vector is one row."""
        rows = self._file.tensors[name].shape[:-1]
        return self._file.data(name).reshape(*rows or (1,), -1)

    def _float32(self, name: str, raw: NDArray[np.uint8]) -> Floats:
        return np.asarray(self._dequantize(raw, self._kinds[name]), np.float32)


@dataclass
class Slot:
    """What the backend was told about one running sequence."""

    history: list[int]
    tables: list[list[int]]
    rule: ChoiceRule
    pooling: Pooling | None = None
    sum: NDArray[np.float64] | None = None
    """Of a mean: what its tokens so far add up to."""
    summed: int = 0
    """How many these are."""


@dataclass
class Span:
    """The tokens of one plan row: places `first` … of the batch, positions `start` … of the sequence."""

    slot: Slot
    start: int
    count: int
    first: int


@dataclass
class Batch:
    """All tokens of a plan, one after another, and the buffers of the program: float32 [tokens, width]."""

    tokens: Ints
    positions: Ints
    spans: list[Span]
    buffers: dict[str, Floats] = field(default_factory=dict)


class Pass(Step):
    """A step with what its forward pass left for `sample`."""

    __slots__ = ("batch", "plan")

    def __init__(self, plan: Plan, batch: Batch) -> None:
        super().__init__(plan)
        self.plan = plan
        self.batch = batch


class ReferenceBackend:
    """`Backend` in NumPy. `launch` and `sample` do their work at once.

    `depth`: how many plans may be launched and not yet collected when another is launched. `kv_dtype` "bf16" and
    "int8" round K and V to what those hold (kept in float32 arrays). Raises SettingsError without the package `gguf`,
    PlanError for a plan or a call that breaks the contract of `backends/base.py`.
    """

    name = "reference"
    invariant = True

    def __init__(self, model: Source, limits: Limits, *, kv_dtype: KvDtype = "fp32", depth: int = 0) -> None:
        self.spec = model.spec
        self.limits = limits
        simd = "+".join(np.show_config(mode="dicts")["SIMD Extensions"]["found"])
        self.arithmetic_id = (
            f"reference:{self.spec.weights_hash}:numpy-{np.__version__}:{simd}:kv-{kv_dtype}:exact"
        )
        self._depth = depth
        self._round = {"fp32": unchanged, "bf16": bfloat16, "int8": int8}[kv_dtype]
        self._weights = Weights(model.source)
        self._cos, self._sin = rotations(self.spec.rope, limits.max_model_len)
        self._kv = [  # per group [block][layer][K|V][head][token][component]
            np.zeros(
                (limits.num_blocks, len(g.layers), 2, g.kv_heads, limits.block_size, g.head_dim), np.float32
            )
            for g in self.spec.kv_groups
        ]
        self._slots: dict[int, Slot] = {}
        self._flight: Flight[Pass] = Flight()
        *self._final, self._head = self.spec.program.end

    # The three calls of a step

    def launch(self, plan: Plan) -> Handle:
        self._check_turn(plan)
        for opened in plan.opens:
            self._open(opened)
        for copied in plan.copies:
            self._copy(copied)
        batch = self._advance(plan.rows)
        if plan.rows:
            self._run(chain(self.spec.program.start, *self.spec.program.layers), batch)
        return self._flight.launched(Pass(plan, batch))

    def sample(self, handle: Handle, masks: Sequence[NDArray[np.int32] | None] | None = None) -> None:
        step = self._flight.to_sample(handle, masks)
        rows = step.plan.samples
        for span in step.batch.spans:
            if span.slot.pooling == "mean":
                self._sum(step.batch, span)
        askers: dict[int, list[int]] = {}  # place in the batch → the sample rows that want its logits
        answers: dict[int, TokenSample] = {}
        for i, row in enumerate(rows):
            place = self._place(step, row)
            if row.target < 0 and self._slot(row.slot).pooling is not None:
                answers[i] = self._pool(step.batch, row, place)
            else:
                askers.setdefault(place, []).append(i)
        places = sorted(askers)
        for begin in range(0, len(places), HEAD_ROWS):
            tile = places[begin : begin + HEAD_ROWS]
            for place, logits in zip(tile, self._logits(step.batch, tile), strict=True):
                for i in askers[place]:
                    mask = None if masks is None else masks[i]
                    answers[i] = self._answer(logits, rows[i], step.batch.positions[place], mask)
        step.samples = tuple(answers[i] for i in range(len(rows)))

    def collect(self, handle: Handle) -> Samples:
        return self._flight.collect(handle)

    def read_block(self, group: int, block: int) -> bytes:
        return self._block(group, block).tobytes()

    def write_block(self, group: int, block: int, data: bytes) -> None:
        held = self._block(group, block)
        if len(data) != held.nbytes:
            raise PlanError(f"write_block: {len(data)} bytes for a block of {held.nbytes}.")
        held[:] = np.frombuffer(data, np.float32).reshape(held.shape)

    def close(self) -> None:
        self._slots.clear()
        self._flight.clear()
        self._kv.clear()
        self._weights.clear()

    # What a plan changes

    def _check_turn(self, plan: Plan) -> None:
        if not self._kv:
            raise PlanError(f"launch of step {plan.step}: the backend is closed.")
        self._flight.check_launch(plan)
        if len(self._flight) > self._depth:
            raise PlanError(
                f"launch of step {plan.step}: {len(self._flight)} plans are in flight at depth {self._depth}."
            )
        if plan.tokens > self.limits.max_step_tokens:
            raise PlanError(
                f"launch of step {plan.step}: {plan.tokens} tokens are over {self.limits.max_step_tokens}."
            )

    def _open(self, opened: SlotOpen) -> None:
        if not 0 <= opened.slot < self.limits.max_slots:
            raise PlanError(f"slot {opened.slot} does not exist; there are {self.limits.max_slots}.")
        if len(opened.tables) != len(self._kv):
            raise PlanError(f"slot {opened.slot}: {len(opened.tables)} tables for {len(self._kv)} KV groups.")
        for table in opened.tables:
            self._check_blocks(table)
        self._check_tokens(opened.history)
        self._slots[opened.slot] = Slot(
            list(opened.history), [list(table) for table in opened.tables], opened.rule, opened.pooling
        )

    def _copy(self, copied: BlockCopy) -> None:
        self._block(copied.group, copied.target)[:] = self._block(copied.group, copied.source)

    def _block(self, group: int, block: int) -> Floats:
        """[layer][K|V][head][token][component]"""
        if not 0 <= group < len(self._kv):
            raise PlanError(f"a block of KV group {group}; there are {len(self._kv)}.")
        self._check_blocks((block,))
        kept: Floats = self._kv[group][block]
        return kept

    def _advance(self, rows: Sequence[PlanRow]) -> Batch:
        """Bring the slots up to date and lay out the tokens to compute."""
        spans: list[Span] = []
        tokens: list[int] = []
        positions: list[int] = []
        if len({row.slot for row in rows}) < len(rows):
            raise PlanError("two rows of one plan advance the same slot.")
        for row in rows:
            slot = self._slot(row.slot)
            self._extend(slot, row)
            end = row.start + row.count
            if slot.pooling == "mean":
                if row.start != slot.summed or end > slot.rule.prompt_tokens:
                    raise PlanError(
                        f"slot {row.slot} has pooled {slot.summed} tokens; {row} is not what follows."
                    )
                slot.summed = end
            spans.append(Span(slot, row.start, row.count, len(tokens)))
            tokens += slot.history[row.start : end]
            positions += range(row.start, end)
        return Batch(np.array(tokens, np.int64), np.array(positions, np.int64), spans)

    def _extend(self, slot: Slot, row: PlanRow) -> None:
        end = row.start + row.count
        at = end - len(row.tokens)
        if row.start < 0 or row.count < 1 or at < row.start:
            raise PlanError(
                f"slot {row.slot}: {row} computes nothing, or holds more tokens than it computes."
            )
        if at > len(slot.history):
            raise PlanError(
                f"slot {row.slot}: positions {row.start} … {end - 1} need {at} known tokens; "
                f"the history holds {len(slot.history)}."
            )
        if end > self.limits.max_model_len:
            raise PlanError(f"slot {row.slot}: {end} tokens; the limit is {self.limits.max_model_len}.")
        if row.tokens:
            tokens = [self._resolve(token) for token in row.tokens]
            self._check_tokens(tokens)
            slot.history[at:] = tokens
        for table, logical, blocks in zip(slot.tables, row.tables_at, row.blocks, strict=False):
            if not 0 <= logical <= len(table):
                raise PlanError(f"slot {row.slot}: blocks at {logical} leave a hole after {len(table)}.")
            self._check_blocks(blocks)
            table[logical : logical + len(blocks)] = blocks
        for table in slot.tables:
            if len(table) * self.limits.block_size < end:
                raise PlanError(
                    f"slot {row.slot}: {end} tokens do not fit the {len(table)} blocks of its table."
                )

    def _resolve(self, token: int) -> int:
        """An id as it is; v < 0 is sample −v − 1 of the plan before."""
        if token >= 0:
            return token
        before = self._flight.last.samples if self._flight.last is not None else None
        if before is None or -token - 1 >= len(before):
            raise PlanError(f"token {token} refers to a sample that the plan before does not have.")
        return max(before[-token - 1].token, 0)  # after −1 the sequence ends; until then any id will do

    def _slot(self, slot: int) -> Slot:
        if slot not in self._slots:
            raise PlanError(f"slot {slot} was never opened.")
        return self._slots[slot]

    def _check_blocks(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            if not 0 <= block < self.limits.num_blocks:
                raise PlanError(f"block {block} does not exist; there are {self.limits.num_blocks}.")

    def _check_tokens(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            if not 0 <= token < self.spec.vocab_size:
                raise PlanError(f"token {token} is outside the vocabulary of {self.spec.vocab_size}.")

    # The program

    @np.errstate(over="ignore", invalid="ignore")  # a damaged model's NaN are answers: TokenSample(-1)
    def _run(self, ops: Iterable[Op], batch: Batch) -> None:
        """Apply the operations to the batch's buffers, in order."""
        buffers, weights = batch.buffers, self._weights
        for op in ops:
            match op:
                case Embed():
                    buffers["x"] = np.float32(op.scale) * weights.rows(op.table, batch.tokens)
                case Norm():
                    source = buffers[op.source]
                    mean = np.mean(source * source, axis=-1, keepdims=True)
                    gain = weights.vector(op.weight) + np.float32(op.offset)
                    buffers[op.target] = source / np.sqrt(mean + np.float32(op.eps)) * gain
                case Linear():
                    for i, target in enumerate(op.targets):
                        y = matmul(buffers[op.source], weights.matrix(op.weights[i]))
                        if op.biases and (bias := op.biases[i]) is not None:
                            y = y + weights.vector(bias)
                        if op.add:
                            y = buffers[target] + np.float32(op.scale) * y
                        buffers[target] = y
                case Gated():
                    gate = matmul(buffers[op.source], weights.matrix(op.gate))
                    buffers[op.target] = silu(gate) * matmul(buffers[op.source], weights.matrix(op.up))
                case RopeOp():
                    for name in ("q", "k"):
                        self._rotate(buffers[name], batch.positions)
                case Attention():
                    buffers["a"] = self._attend(op, batch)
                case Head():
                    y = matmul(buffers[op.source], weights.matrix(op.weight))
                    buffers["logits"] = np.float32(op.scale) * y

    def _rotate(self, x: Floats, positions: Ints) -> None:
        """Rotate every head of `x` [tokens, heads · head_dim] in place."""
        rope, pairs = self.spec.rope, self.spec.rope.dim // 2
        heads = x.reshape(len(x), -1, self.spec.head_dim)
        if rope.interleaved:
            a, b = heads[..., 0 : 2 * pairs : 2], heads[..., 1 : 2 * pairs : 2]
        else:
            a, b = heads[..., :pairs], heads[..., pairs : 2 * pairs]
        cos, sin = self._cos[positions, None], self._sin[positions, None]
        a[...], b[...] = a * cos - b * sin, a * sin + b * cos

    def _attend(self, op: Attention, batch: Batch) -> Floats:
        """Write K and V of these tokens, then read everything back from the cache, query by query."""
        group, size = self.spec.kv_groups[op.group], self.limits.block_size
        cache = self._kv[op.group][:, group.layers.index(op.layer)]  # [block][K|V][head][token][component]
        shape = (-1, group.kv_heads, group.head_dim)
        for span in batch.spans:
            here = slice(span.first, span.first + span.count)
            table = np.array(span.slot.tables[op.group])
            blocks, inside = table[batch.positions[here] // size], batch.positions[here] % size
            cache[blocks, 0, :, inside] = self._round(batch.buffers["k"][here].reshape(shape))
            cache[blocks, 1, :, inside] = self._round(batch.buffers["v"][here].reshape(shape))

        q = batch.buffers["q"].reshape(len(batch.tokens), group.kv_heads, -1, group.head_dim)
        a = np.empty_like(q)
        for span in batch.spans:
            end = span.start + span.count
            low = max(0, span.start + 1 - group.window) // size * size if group.window else 0
            table = np.array(span.slot.tables[op.group][low // size : -(-end // size)])
            keys, values = (  # [kv head][position − low][component]
                np.moveaxis(cache[table, i], 0, 1).reshape(group.kv_heads, -1, group.head_dim) for i in (0, 1)
            )
            for i in range(span.count):
                stop = span.start + i + 1
                seen = slice((max(0, stop - group.window) if group.window else 0) - low, stop - low)
                a[span.first + i] = attention(
                    q[span.first + i], keys[:, seen], values[:, seen], np.float32(op.scale)
                )
        return a.reshape(len(a), -1)

    # The answers

    def _place(self, step: Pass, row: SampleRow) -> int:
        """Where in the batch the token of a sample row is."""
        if not 0 <= row.row < len(step.batch.spans):
            raise PlanError(f"sample row {row}: the plan has {len(step.batch.spans)} rows.")
        span = step.batch.spans[row.row]
        if not 0 <= row.offset < span.count:
            raise PlanError(f"sample row {row}: its plan row computes {span.count} tokens.")
        return span.first + row.offset

    def _logits(self, batch: Batch, places: list[int]) -> Floats:
        """[len(places), vocab]"""
        tile = self._finals(batch, places)
        self._run((self._head,), tile)
        return tile.buffers["logits"]

    def _finals(self, batch: Batch, places: Sequence[int]) -> Batch:
        """Some tokens of the batch, with what the head reads."""
        at = list(places)
        tile = Batch(batch.tokens[at], batch.positions[at], [])
        tile.buffers = {name: values[at] for name, values in batch.buffers.items()}
        self._run(self._final, tile)
        return tile

    def _hidden(self, batch: Batch, places: Sequence[int]) -> NDArray[np.float64]:
        """The final hidden states of some tokens, [len(places), hidden]"""
        assert isinstance(self._head, Head)
        return self._finals(batch, places).buffers[self._head.source].astype(np.float64)

    @np.errstate(over="ignore", invalid="ignore")
    def _sum(self, batch: Batch, span: Span) -> None:
        """Add a row's tokens to its slot's sum."""
        slot = span.slot
        slot.sum = np.zeros(self.spec.hidden) if slot.sum is None else slot.sum
        for hidden in self._hidden(batch, range(span.first, span.first + span.count)):
            slot.sum += hidden

    @np.errstate(over="ignore", invalid="ignore")
    def _pool(self, batch: Batch, row: SampleRow, place: int) -> TokenSample:
        """The vector of a slot whose prompt ends at `place`."""
        slot = self._slot(row.slot)
        if batch.spans[row.row].slot is not slot or batch.positions[place] + 1 != slot.rule.prompt_tokens:
            raise PlanError(
                f"sample row {row}: a slot that pools answers at the last token of its own prompt."
            )
        vector = self._hidden(batch, [place])[0] if slot.sum is None else slot.sum / slot.summed
        floats = vector.astype("<f4")
        return TokenSample(0, vector=floats.tobytes()) if np.isfinite(floats).all() else TokenSample(-1)

    def _answer(
        self, logits: Floats, row: SampleRow, position: int, mask: NDArray[np.int32] | None
    ) -> TokenSample:
        if row.target >= 0:
            self._check_tokens((row.target,))
            return TokenSample(-1) if np.isnan(logits).any() else choice.score(logits, row.target, row.top)
        slot = self._slot(row.slot)
        if len(slot.history) <= position:
            raise PlanError(f"sample row {row}: slot {row.slot} knows no token at position {position}.")
        token = choice.choose(logits, slot.history[: position + 1], slot.rule, mask)
        if slot.rule.logprobs < 0 or token < 0:
            return TokenSample(token)
        return choice.score(logits, token, slot.rule.logprobs)
