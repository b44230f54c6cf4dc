"""How many replicas are wanted, by what they have to do. Knows numbers and times, no replica and no request."""

from __future__ import annotations

import math
from collections import deque
from typing import Annotated

import msgspec

from octavo.errors import InvalidParameter
from octavo.timing.clock import microseconds

__all__ = ["Autoscaler", "Scaling"]


class Scaling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rule of Kubernetes' HorizontalPodAutoscaler for a mean value of each pod, without its tolerance of a tenth:
    as many replicas as answers that are to come over `target`, rounded up."""

    least: Annotated[int, msgspec.Meta(ge=0)] = 1
    """Serve from the beginning, and always; with 0 the first request waits for a cold start."""
    most: Annotated[int, msgspec.Meta(ge=1)]
    target: Annotated[float, msgspec.Meta(gt=0)] = 16.0
    """Answers to come of each replica."""
    every_s: Annotated[float, msgspec.Meta(gt=0)] = 15.0
    """From one look at the load to the next."""
    cold_start_s: Annotated[float, msgspec.Meta(ge=0)] = 60.0
    """From the decision to the first request: a machine, an image, the weights."""
    down_after_s: Annotated[float, msgspec.Meta(ge=0)] = 300.0
    """So long must fewer have been enough: a replica that leaves takes its cache with it."""

    def __post_init__(self) -> None:
        if self.least > self.most:
            raise InvalidParameter(
                f"At least {self.least} replicas and at most {self.most} are wanted; write the smaller number first."
            )


class Autoscaler:
    """Looks at the load now and then, and remembers what it wanted."""

    def __init__(self, scaling: Scaling) -> None:
        self.scaling = scaling
        self._wanted: deque[tuple[int, int]] = deque()
        """When, and how many: only those that no later look has outdone, so they fall."""

    def wanted(self, answers: int, at_us: int) -> int:
        """Replicas that should serve `answers`, now that it is `at_us`: the most that was wanted in `down_after_s`."""
        rule = self.scaling
        now = min(max(math.ceil(answers / rule.target), rule.least), rule.most)
        while self._wanted and self._wanted[-1][1] <= now:
            self._wanted.pop()
        self._wanted.append((at_us, now))
        while self._wanted[0][0] < at_us - microseconds(rule.down_after_s):
            self._wanted.popleft()
        return self._wanted[0][1]
