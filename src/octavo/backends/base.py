"""The only door to tensors: what a step asks of a backend, and what it answers. Knows no tensor and no policy.

The engine calls, once per step and in this order:

    handle  = backend.launch(plan)           # the forward pass starts
    backend.sample(handle, masks)            # the choice of tokens starts, right behind it
    samples = backend.collect(handle)        # the answers; `depth` steps later on a pipelined backend

A backend executes plans in the order of their launch. So a block freed by one plan may be written by the next,
and a token of a plan may be "sample r of the plan before" (see `PlanRow.tokens`).

Ownership: the scheduler owns every decision (blocks, slots, counts); the backend owns what it was told about
each slot (block table, token history, choice rule) and the KV memory. A backend raises (`PlanError`) only for
plans that break this contract, and then the process may end: a plan never holds a client's mistake.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from octavo.config import Pooling
from octavo.errors import ServerError
from octavo.models.spec import ModelSpec

if TYPE_CHECKING:  # the server process reads these types and has no use for NumPy
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "Backend",
    "BlockCopy",
    "ChoiceRule",
    "DiskBlock",
    "Handle",
    "Limits",
    "Plan",
    "PlanError",
    "PlanRow",
    "SampleRow",
    "Samples",
    "SlotOpen",
    "TokenSample",
]


class PlanError(ServerError):
    """A plan, or a call, that breaks the contract of this module: a fault of the engine."""


class ChoiceRule(msgspec.Struct, frozen=True, array_like=True):
    """How a slot's tokens are chosen: SamplingParams after every default is filled in. See `sampling/`.

    A token is a function of the slot's history alone. With l the raw logits of the row and H the history up to
    and including the row's position (P = its first `prompt_tokens` ids, O = the rest):

    1. repetition: for each id in P ∪ O: l = l / r if l > 0 else l · r
    2. l −= frequency · count_in_O(id) + presence · [id in O]
    3. l += bias[id]; masked ids (grammar) and, while len(O) < min_tokens, `banned_early` ids become −inf
    4. temperature 0 (below 2⁻¹²⁶): argmax, lowest id on ties. Otherwise t = l / temperature, and the kept set is
       top_k: the k largest t (ties at the edge: lowest ids first);
       top_p: of those, renormalised, in descending order (ties: lowest id first), the shortest run whose
              probability reaches top_p (the token that crosses the line is kept);
       min_p: of those, t ≥ max(t) + ln(min_p).
       The token is argmax(t + G(id)) over the kept set, lowest id on ties.
    5. G(id) = −ln(−ln u), u = (w + 0.5) / 2³² in float64, w = word (id mod 4) of
       Philox4x32-10(key = (seed low 32, seed high 32), counter = (len(O), id div 4, purpose = 0, 0)).

    All of 1–4 in float32, one rounding per written operation (the probabilities of top_p and their sums may be
    wider); G and t + G in float64. The choice is −1 where a logit is NaN or no id is allowed.
    """

    prompt_tokens: int
    seed: int = 0
    """uint64; child i of a request has the request's seed + i (mod 2⁶⁴)."""
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0
    bias: tuple[tuple[int, float], ...] = ()
    """(id, value), ids ascending."""
    min_tokens: int = 0
    banned_early: tuple[int, ...] = ()
    logprobs: int = -1
    """−1: no log-probability; k ≥ 0: the token's own and the k largest (raw logits, before step 1)."""


class SlotOpen(msgspec.Struct, frozen=True, array_like=True):
    """A slot gets a new occupant; whatever it held before is forgotten."""

    slot: int
    history: tuple[int, ...]
    """All known token ids of the sequence, from position 0."""
    tables: tuple[tuple[int, ...], ...]
    """Per KV group: physical block ids from logical block 0 (may be empty; a fork shares its parent's)."""
    rule: ChoiceRule
    pooling: Pooling | None = None
    """Not None: the slot chooses no token. Where its prompt ends it answers with a vector: of the hidden states behind
    the final norm (what the head reads) the last token's, or the mean of all. A mean is a sum in float64, token by
    token in the order of their positions, divided and then rounded to float32; so its rows must follow each other from
    position 0 on, with no token that was computed for somebody else."""


class BlockCopy(msgspec.Struct, frozen=True, array_like=True):
    """Copy the whole physical block `source` onto `target`, all layers, before any row of this plan runs."""

    group: int
    source: int
    target: int


class DiskBlock(msgspec.Struct, frozen=True, array_like=True):
    """A physical block and its place in the disk cache: `key` is the name of what is in it, and its KV group."""

    group: int
    block: int
    key: bytes


class PlanRow(msgspec.Struct, frozen=True, array_like=True):
    """A sequence advances by `count` tokens: positions start … start + count − 1 are computed and their K, V stored."""

    slot: int
    start: int
    count: int
    tokens: tuple[int, ...] = ()
    """Ids that are new to the slot's history, written at positions start + count − len(tokens) …
    A value v ≥ 0 is an id; v < 0 means "sample −v − 1 of the plan launched before this one"."""
    tables_at: tuple[int, ...] = ()
    """Per KV group: the logical block from which `blocks` is written into the slot's table (replacing or appending)."""
    blocks: tuple[tuple[int, ...], ...] = ()
    """Per KV group: physical block ids. Both tuples are empty when no table changes."""


class SampleRow(msgspec.Struct, frozen=True, array_like=True):
    """One answer wanted from a computed token.

    `row` and `offset` name the token whose hidden state is used (position rows[row].start + offset).
    `slot` names whose history and rule apply: rows[row].slot itself, or a fork opened in this plan.
    `target` −1: choose the next token by the slot's rule; of a slot that pools, answer with its vector.
    `target` t ≥ 0: do not choose; report the raw log-probability of id t and the `top` largest (prompt logprobs).
    """

    row: int
    offset: int
    slot: int
    target: int = -1
    top: int = 0


class Plan(msgspec.Struct, frozen=True, array_like=True):
    """What one step does: deltas against what the backend already knows. Applied in the order of the fields, but for
    `saves` and `loads`: the engine carries them out before the launch, in this order. So what a block held is read out
    before anything is written to it, and a block that was loaded may be copied and read by this very plan.
    """

    step: int
    opens: tuple[SlotOpen, ...] = ()
    copies: tuple[BlockCopy, ...] = ()
    rows: tuple[PlanRow, ...] = ()
    samples: tuple[SampleRow, ...] = ()
    saves: tuple[DiskBlock, ...] = ()
    """To be read out and kept on disk: their blocks are given away."""
    loads: tuple[DiskBlock, ...] = ()
    """To be written: what was fetched of them came with this step's inputs."""
    fetches: tuple[bytes, ...] = ()
    """Keys to be read from disk; later inputs tell what became of them."""
    touches: tuple[bytes, ...] = ()
    """Keys whose blocks are given away and need no writing: on disk they are as good as new."""

    @property
    def tokens(self) -> int:
        """How many tokens this step computes."""
        return sum(row.count for row in self.rows)


class TokenSample(msgspec.Struct, frozen=True, array_like=True):
    """The answer to one SampleRow."""

    token: int
    """The chosen id (or the target; 0 with a vector). −1, and nothing else, where there is none: the row's logits hold
    NaN or its vector something that is not finite (the model's arithmetic failed), or a mask allows nothing. No other
    row is touched by that."""
    logprob: float | None = None
    """Natural logarithm; float32 value. None when the rule asks for none."""
    top: tuple[tuple[int, float], ...] = ()
    """(id, logprob), most likely first, ties by lowest id."""
    vector: bytes = b""
    """Of a slot that pools: float32, little-endian, as many as the model's hidden states are wide."""


Samples = tuple[TokenSample, ...]
"""Aligned with `Plan.samples`."""

Handle = object
"""What `launch` returns; only its backend looks inside."""


class Limits(msgspec.Struct, frozen=True):
    """Sizes a backend allocates for at construction; nothing is allocated in a step."""

    num_blocks: int
    block_size: int
    max_slots: int
    """Running sequences at once."""
    max_step_tokens: int
    """Tokens in one plan."""
    max_model_len: int
    """Tokens in one sequence."""


class Backend(Protocol):
    """Runs the program of one model over slots."""

    name: str
    """`native`, `reference`, …"""
    spec: ModelSpec
    limits: Limits
    invariant: bool
    """True: every answer is bit-identical whatever else is in the plan, and however the tokens were chunked."""
    arithmetic_id: str
    """Equal ids mean equal bits: weights hash, kernel version, instruction class, KV type, activation mode."""

    def launch(self, plan: Plan) -> Handle:
        """Start the forward pass of `plan`."""

    def sample(self, handle: Handle, masks: Sequence[NDArray[np.int32] | None] | None = None) -> None:
        """Start choosing. `masks`: one per SampleRow (or None for no masks at all): None, or int32 bit words
        [ceil(vocab / 32)], bit (id mod 32) of word (id div 32) set where the id is allowed."""

    def collect(self, handle: Handle) -> Samples:
        """Wait for the answers. Each handle is collected once, in launch order."""

    def read_block(self, group: int, block: int) -> bytes:
        """What a physical block holds after every plan launched so far, all layers; the layout is the backend's own.
        Raises PlanError for a block that does not exist."""

    def write_block(self, group: int, block: int, data: bytes) -> None:
        """Make a physical block hold what `read_block` once gave, bit for bit, here or on another backend with the same
        `arithmetic_id` and spec. Raises PlanError for a block that does not exist and for other bytes than a block has.
        """

    def close(self) -> None:
        """Free threads and memory. Calling it twice is harmless."""
