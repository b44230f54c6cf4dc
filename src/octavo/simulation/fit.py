"""Which requests of a workload a server of some size can have at all. Knows sizes, and runs nothing."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

import msgspec

from octavo.errors import CapacityError, ClientError
from octavo.scheduling.admission import Capacity
from octavo.simulation.asking import Asking
from octavo.simulation.prompts import tokens_of
from octavo.workload.request import Request

__all__ = ["Fit", "fit"]

_LOOKED_AT = 20_000
"""Requests of a workload: the first ones tell what the others are like."""


class Fit(msgspec.Struct, kw_only=True):
    """What was found."""

    requests: int = 0
    """That were looked at."""
    refused: int = 0
    cut: int = 0
    """Whose answer ends before its length, at the limit for prompt and answer together."""
    longest: int = 0
    """Tokens of the longest prompt with its answer."""
    limit: int = 0
    reason: str = ""
    """Why the first one is refused, in a sentence."""

    def words(self) -> str | None:
        """None where all of them fit."""
        said = []
        if self.refused:
            said.append(f"{self.refused:,} of {self.requests:,} requests are refused, such as: {self.reason}")
        if self.cut:
            said.append(
                f"{self.cut:,} of {self.requests:,} answers are cut: the longest request has {self.longest:,} tokens "
                f"with its answer, and the limit is {self.limit:,}."
            )
        return " ".join(said) or None


def fit(
    requests: Iterable[Request], capacity: Capacity, asking: Asking, *, allow_refused: bool = False
) -> Fit:
    """Look at the first of them. `allow_refused`: some may be refused, as a server would, but not all.

    Raises CapacityError, with how many can never be served and why.
    """
    found = Fit(limit=capacity.max_model_len)
    for request in islice(requests, _LOOKED_AT):
        prompt, params = tokens_of(request), asking.params(request)
        found.requests += 1
        found.longest = max(found.longest, prompt + request.output_tokens)
        try:
            capacity.check((0,) * prompt, params)
        except ClientError as error:
            found.refused += 1
            found.reason = found.reason or str(error)
        else:
            found.cut += prompt + request.output_tokens > capacity.max_model_len
    if found.refused and found.refused == found.requests:
        raise CapacityError(
            f"None of the workload's {found.requests:,} requests can be served: {found.reason}"
        )
    if found.refused and not allow_refused:
        raise CapacityError(
            f"{found.refused:,} of the workload's {found.requests:,} requests can never be served (--allow-refused "
            f"counts them as failed): {found.reason}"
        )
    return found
