"""When a sequence ends, and what it tells. Knows one sequence and its newest token, nothing of steps."""

from __future__ import annotations

from typing import NamedTuple

from octavo.backends.base import TokenSample
from octavo.scheduling.outputs import FinishReason, SequenceOutput
from octavo.scheduling.sequence import Sequence

__all__ = ["End", "end_after", "output_of"]


class End(NamedTuple):
    """Why, and what of the text is not part of the answer."""

    reason: FinishReason
    stop_reason: int | str | None = None
    cut_bytes: int = 0
    error: str | None = None


def end_after(sequence: Sequence, token: int, piece: bytes) -> End | None:
    """The end that `token`, the newest one, brings; None when it goes on. `piece`: its bytes."""
    request, params = sequence.request, sequence.request.params
    outputs = len(sequence.tokens) - sequence.prompt_tokens
    armed = outputs >= params.min_tokens
    if armed and (token in request.end_ids or token in request.stop_ids):
        reason = token if token in request.stop_ids else None
        return End("stop", reason, 0 if params.include_stop_str_in_output else len(piece))
    match = sequence.stop.feed(piece, armed=armed)
    if match is not None:
        cut = match.after + (0 if params.include_stop_str_in_output else match.length)
        return End("stop", params.stop[match.which], cut)
    return End("length") if outputs >= request.max_output else None


def output_of(
    sequence: Sequence, samples: tuple[TokenSample, ...] = (), end: End | None = None
) -> SequenceOutput:
    """What the request is told of its sequence; with its first tokens, the prompt's log-probabilities too."""
    request = sequence.request
    if end is None and not request.scores_prompt:
        held, cached = sequence.stop.held_bytes, sequence.cached_tokens
        return SequenceOutput(request.id, sequence.child, samples, held, cached_tokens=cached)
    prompt_samples: tuple[TokenSample | None, ...] = ()
    if request.scores_prompt and (end is None or end.reason not in ("abort", "error")):
        scored = request.prompt_samples
        prompt_samples = (None, *(scored[position] for position in range(1, sequence.prompt_tokens)))
        request.scores_prompt = False
    return SequenceOutput(
        request_id=request.id,
        child=sequence.child,
        samples=samples,
        held_bytes=0 if end else sequence.stop.held_bytes,
        finish_reason=end.reason if end else None,
        stop_reason=end.stop_reason if end else None,
        cut_bytes=end.cut_bytes if end else 0,
        prompt_samples=prompt_samples,
        cached_tokens=sequence.cached_tokens,
        error=end.error if end else None,
    )
