"""Settings. Frozen, unknown names refused; each field's docstring is its command-line help."""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = [
    "DEFAULT_POOLING",
    "AllocatorName",
    "EngineConfig",
    "KvDtype",
    "PolicyName",
    "Pooling",
    "ProfileName",
    "RouterName",
]

KvDtype = Literal["bf16", "fp32", "int8"]
"""How K and V are stored; int8 has one fp32 scale for each token and head."""


PolicyName = Literal["static", "continuous", "prefill-first", "stall-free"]
AllocatorName = Literal["paged", "reserved-max", "reserved-pow2", "reserved-oracle"]
ProfileName = Literal["chat", "autocomplete", "voice", "rag", "batch"]
RouterName = Literal["round-robin", "least-loaded", "power-of-two", "cache-aware"]
Pooling = Literal["last", "mean"]
"""What stands for a whole text: its last token's final hidden state, or the mean of all."""
DEFAULT_POOLING: Pooling = "last"


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything an engine process needs. Paths are absolute; the environment was read at the edge."""

    model_dir: str
    """The store's folder of a converted model (see models/store)."""
    backend: Literal["native", "reference"] = "native"
    """Who computes: the C++ kernels, or readable NumPy."""
    kv_dtype: KvDtype = "bf16"
    """How K and V are stored: int8 takes half of bf16's memory, and a little accuracy."""
    kv_memory_bytes: int | None = None
    """Memory for the KV cache; the default is a quarter of what is free, 4 GiB at most."""
    memory_utilization: float | None = None
    """Instead of a size: the share (0 to 1) of the memory that weights and workspace leave free."""
    num_blocks: int | None = None
    """The size of the KV cache in blocks, instead of in bytes (for tests)."""
    block_size: int = 16
    """Tokens in a KV block."""
    max_running: int = 64
    """Sequences that run at once; more wait."""
    max_model_len: int | None = None
    """The longest sequence, prompt and output; the default is the model's own, or what the KV cache holds."""
    max_step_tokens: int = 512
    """The budget: tokens that one step may compute. Small steps, smooth streams; large ones, fast prompts."""
    policy: PolicyName = "stall-free"
    """How prompts and decodes share a step: `stall-free` mixes decodes with parts of prompts; the others are for
    comparison: whole prompts mixed in (`continuous`), prompts before decodes (`prefill-first`), a batch to its end."""
    allocator: AllocatorName = "paged"
    """How a sequence gets KV memory: block by block; or, for comparison, at once for the longest sequence, for its own
    length rounded up to a power of two, or for exactly that (`max_tokens` is taken for the answer's)."""
    tbt_target_s: float | None = None
    """The longest step that streams should see, such as 50ms: prompts get what is left of it. Measured at the start."""
    ttft_target_s: float | None = None
    """When a first token is due after its request's arrival, such as 500ms: orders the prompts that wait."""
    profile: ProfileName | None = None
    """Targets of requests that name no profile of their own: of a chat, of completion while typing, of speech, of
    retrieval, or `batch`, which takes only what the others leave."""
    priority_aging_s: float = 60.0
    """A request that has waited so long counts as one priority earlier; 0 for never."""
    speculation: str = "auto"
    """Who guesses the next tokens, several of which a step can verify at once: what came after the same words before in
    the same text (`ngram`), or in earlier answers (`suffix`), the better of both (`auto`), a smaller model with the
    same tokenizer where these know less (`draft:MODEL`), or nobody (`off`). Answers are the same."""
    speculation_tokens: int | None = None
    """Guess so many tokens in every step, whatever that costs; by default as many as pay, or none."""
    prefix_cache: bool = True
    """Reuse what was computed for requests that begin alike: a system prompt, the turns of a chat before."""
    cache_disk: str | None = None
    """A folder for computed blocks that memory has no room for: they are read again, also after a restart."""
    cache_disk_size_bytes: int = 8 << 30
    """How much that folder may hold; what was of no use for the longest time is given up first."""
    threads: int | None = None
    """Worker threads; the default is the number of cores this process may use."""
    weights: Literal["auto", "copy", "map"] = "auto"
    """Where weights lie: `map` their file, or `copy` it into huge pages; `auto` copies up to a quarter of free RAM."""
    depth: int = 0
    """Steps in flight beside the one being collected."""
    step_log: str | None = None
    """Write every step's inputs, plan and samples to this file, for `octavo replay`."""
