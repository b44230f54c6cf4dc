"""Runs written by hand: requests with events at known times."""

from __future__ import annotations

from typing import Any

from octavo.bench.record import Chunk, ClientSample, Exchange, Kind, Run, ServerSample

__all__ = ["ANSWER", "DONE", "answer", "event", "exchange", "run"]

ANSWER = Kind.ANSWER
DONE = Kind.DONE


def event(at_ms: float, tokens: int = 1, kind: int = ANSWER) -> Chunk:
    """One event; each token has four characters, where there is text at all."""
    text = kind & (Kind.ANSWER | Kind.REASONING | Kind.TOOL)
    return Chunk(round(at_ms * 1000), tokens, max(4 * tokens, 1) if text else 0, int(kind))


def exchange(intended_ms: float, chunks: list[Chunk], **fields: Any) -> Exchange:
    """A good one, sent at once, that ends with its last event; `fields` say otherwise (`_ms` become `_us`)."""
    intended_us = round(intended_ms * 1000)
    for name in [name for name in fields if name.endswith("_ms")]:
        fields[name.removesuffix("_ms") + "_us"] = round(fields.pop(name) * 1000)
    tokens = sum(chunk.tokens for chunk in chunks)
    index = fields.pop("index", 0)
    return Exchange(
        **{
            "index": index,
            "session": index,
            "intended_us": intended_us,
            "sent_us": intended_us,
            "end_us": chunks[-1].at_us if chunks else intended_us,
            "status": 200,
            "wanted_output": tokens,
            "output_tokens": tokens,
            "counted": "ids",
            "chunks": chunks,
            **fields,
        }
    )


def answer(intended_ms: float, ttft_ms: float, gap_ms: float, tokens: int, **fields: Any) -> Exchange:
    """A good one of even gaps, one token an event; it ends with its last token."""
    return exchange(
        intended_ms, [event(intended_ms + ttft_ms + place * gap_ms) for place in range(tokens)], **fields
    )


def run(
    exchanges: list[Exchange],
    *,
    client: list[ClientSample] | None = None,
    server: list[ServerSample] | None = None,
    **fields: Any,
) -> Run:
    """Of these requests, numbered in order where each is number 0; it ends with the last."""
    if all(one.index == 0 for one in exchanges):
        for index, one in enumerate(exchanges):
            one.index = index
            one.session = one.session or index
    end_us = max((one.end_us for one in exchanges), default=0)
    return Run(
        **{"seed": 1, "rate": 1.0, "began": "2026-01-01T00:00:00Z", "end_us": end_us, **fields},
        exchanges=exchanges,
        client=client or [],
        server=server or [],
    )
