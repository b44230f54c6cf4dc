"""When a sequence ends, and what it tells. Knows one sequence and its newest token, nothing of steps."""

from __future__ import annotations

from typing import NamedTuple

from octavo.backends.base import TokenSample
from octavo.sampling.stops import StopMatcher
from octavo.scheduling.outputs import FinishReason, SequenceOutput
from octavo.scheduling.sequence import Request, Sequence

__all__ = ["End", "end_after", "end_with", "output_of", "stuck_end", "take_prompt_samples", "without_token"]


class End(NamedTuple):
    """Why, and what of the text is not part of the answer."""

    reason: FinishReason
    stop_reason: int | str | None = None
    cut_bytes: int = 0
    error: str | None = None
    refused: bool = False
    """The error is the client's."""


def end_after(sequence: Sequence, token: int, piece: bytes) -> End | None:
    """The end that `token`, the newest one, brings; None when it goes on. `piece`: its bytes."""
    return _end(sequence, sequence.stop, len(sequence.tokens), token, piece)


def end_with(sequence: Sequence, token: int, piece: bytes) -> End | None:
    """The end that `token` would bring if it were the next one; the sequence stays as it is."""
    return _end(sequence, sequence.stop.copy(), len(sequence.tokens) + 1, token, piece)


def _end(sequence: Sequence, stop: StopMatcher, length: int, token: int, piece: bytes) -> End | None:
    request, params = sequence.request, sequence.request.params
    outputs = length - sequence.prompt_tokens
    armed = outputs >= params.min_tokens
    if armed and (token in request.end_ids or token in request.stop_ids):
        reason = token if token in request.stop_ids else None
        return End("stop", reason, 0 if params.include_stop_str_in_output else len(piece))
    match = stop.feed(piece, armed=armed)
    if match is not None:
        cut = match.after + (0 if params.include_stop_str_in_output else match.length)
        return End("stop", params.stop[match.which], cut)
    return End("length") if outputs >= request.max_output else None


def without_token(request: Request) -> End:
    """The end where no token can be chosen."""
    if request.params.grammar is None:
        return End(
            "error",
            error="The model's output is not a number for this prompt; the model or its file is damaged.",
        )
    return End(
        "error",
        error="The grammar has become too complex to be followed at this place; make it simpler.",
        refused=True,
    )


def stuck_end(request: Request, running: int, waiting: int, free: int) -> End:
    """The end of a request that keeps all others out: so many sequences run and wait, so many blocks are free."""
    why = (
        f"Request {request.id!r} can neither run nor end: {running} sequences run, {waiting} wait, {free} blocks are "
        "free. This is a fault of the server."
    )
    return End("error", error=why)


def output_of(
    sequence: Sequence, samples: tuple[TokenSample, ...] = (), end: End | None = None
) -> SequenceOutput:
    """What the request is told of its sequence; with its first tokens, the prompt's log-probabilities too."""
    request = sequence.request
    if end is None and not request.scores_prompt:
        held, cached = sequence.stop.held_bytes, sequence.cached_tokens
        return SequenceOutput(request.id, sequence.child, samples, held, cached_tokens=cached)
    failed = end is not None and end.reason in ("abort", "error")
    vector = b""
    if request.pooling is not None:
        vector, samples = b"".join(sample.vector for sample in samples), ()
    return SequenceOutput(
        request_id=request.id,
        child=sequence.child,
        samples=samples,
        held_bytes=0 if end else sequence.stop.held_bytes,
        finish_reason=end.reason if end else None,
        stop_reason=end.stop_reason if end else None,
        cut_bytes=end.cut_bytes if end else 0,
        prompt_samples=() if failed else take_prompt_samples(request),
        cached_tokens=sequence.cached_tokens,
        error=end.error if end else None,
        refused=end.refused if end else False,
        accepted_tokens=sequence.accepted if end else 0,
        rejected_tokens=sequence.tried - sequence.accepted if end else 0,
        vector=vector,
    )


def take_prompt_samples(request: Request) -> tuple[TokenSample | None, ...]:
    """The prompt's log-probabilities where they were asked for, once."""
    if not request.scores_prompt:
        return ()
    request.scores_prompt = False
    scored = request.prompt_samples
    return (None, *(scored[position] for position in range(1, len(request.add.prompt))))
