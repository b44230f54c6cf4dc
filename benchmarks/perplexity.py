"""Perplexity of a backend on the text of the GPL-3: what its arithmetic costs in accuracy.

    python benchmarks/perplexity.py --backend native reference

The text is cut into windows of 512 tokens without BOS, each read from an empty cache; of each, also of the shorter
last one, the tokens from the 257th on are scored, so that every scored token has at least 256 before it.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import get_args

from octavo.backends.base import Backend, ChoiceRule, Limits, Plan, PlanRow, SampleRow, SlotOpen
from octavo.config import KvDtype
from octavo.models.store import StoredModel, open_model

__all__ = ["LIMITS", "TEXT", "WINDOW", "perplexity", "score_windows", "text_ids"]

TEXT = Path("/usr/share/common-licenses/GPL-3")
WINDOW = 512
BLOCK = 16
LIMITS = Limits(
    num_blocks=WINDOW // BLOCK, block_size=BLOCK, max_slots=1, max_step_tokens=WINDOW, max_model_len=WINDOW
)


def text_ids(model: StoredModel, text: Path = TEXT) -> list[int]:
    return model.tokenizer().encode(text.read_text("utf-8"), add_bos=False)


def score_windows(backend: Backend, ids: Sequence[int]) -> Iterator[list[float]]:
    """Per window: the log-probabilities of its tokens WINDOW / 2 …"""
    for step, begin in enumerate(range(0, len(ids) - WINDOW // 2, WINDOW)):
        window = tuple(ids[begin : begin + WINDOW])
        opened = SlotOpen(0, window, (tuple(range(LIMITS.num_blocks)),), ChoiceRule(len(window)))
        targets = tuple(SampleRow(0, i - 1, 0, target=window[i]) for i in range(WINDOW // 2, len(window)))
        handle = backend.launch(Plan(step, (opened,), rows=(PlanRow(0, 0, len(window)),), samples=targets))
        backend.sample(handle)
        yield [sample.logprob for sample in backend.collect(handle) if sample.logprob is not None]


def perplexity(logprobs: Sequence[float]) -> float:
    return math.exp(-math.fsum(logprobs) / len(logprobs))


def make_backend(name: str, model: StoredModel, kv_dtype: KvDtype, threads: int | None) -> Backend:
    if name == "native":
        from octavo.backends.native import NativeBackend

        return NativeBackend(model, LIMITS, kv_dtype=kv_dtype, threads=threads)
    from octavo.backends.reference import ReferenceBackend

    return ReferenceBackend(model, LIMITS, kv_dtype=kv_dtype)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--backend", nargs="+", choices=("native", "reference"), default=["native"])
    parser.add_argument("--kv-dtype", nargs="+", choices=get_args(KvDtype), default=["bf16"])
    parser.add_argument("--model", default="smollm2", help="whatever `octavo pull` takes, or a GGUF file")
    parser.add_argument("--text", type=Path, default=TEXT)
    parser.add_argument("--threads", type=int, help="of the native backend; all cores when left out")
    arguments = parser.parse_args()

    print("| backend | KV | tokens scored | perplexity | seconds |")
    print("|---|---|---|---|---|")
    for name in arguments.backend:
        model = open_model(arguments.model, packed=name == "native")
        ids = text_ids(model, arguments.text)
        for kv_dtype in arguments.kv_dtype:
            backend = make_backend(name, model, kv_dtype, arguments.threads)
            began = time.perf_counter()
            logprobs = [logprob for window in score_windows(backend, ids) for logprob in window]
            seconds = time.perf_counter() - began
            print(f"| {name} | {kv_dtype} | {len(logprobs)} | {perplexity(logprobs):.3f} | {seconds:.1f} |")
            backend.close()


if __name__ == "__main__":
    main()
