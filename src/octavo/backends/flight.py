"""The order in which a backend may be called, kept in one place. Knows no tensor and nothing of what a plan holds."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeVar

from octavo.backends.base import Handle, Plan, PlanError, Samples

__all__ = ["Flight", "Step"]


class Step:
    """A launched plan. `samples` is None until `sample`."""

    __slots__ = ("number", "samples", "wanted")

    def __init__(self, plan: Plan) -> None:
        self.number = plan.step
        self.wanted = len(plan.samples)
        self.samples: Samples | None = None


S = TypeVar("S", bound=Step)


class Flight(Generic[S]):
    """The steps that were launched and not yet collected, oldest first; `last` is the newest ever launched.

    Raises PlanError for a call that is out of turn.
    """

    def __init__(self) -> None:
        self._steps: deque[S] = deque()
        self.last: S | None = None

    def __len__(self) -> int:
        return len(self._steps)

    def check_launch(self, plan: Plan) -> None:
        """May `plan` be launched now?"""
        if self.last is not None and self.last.samples is None:
            raise PlanError(f"launch of step {plan.step}: step {self.last.number} was not sampled.")

    def launched(self, step: S) -> S:
        """`step` flies from now on."""
        self._steps.append(step)
        self.last = step
        return step

    def to_sample(self, handle: Handle, masks: Sequence[object] | None) -> S:
        """The step that `sample` was called for."""
        step = self.last
        if step is None or handle is not step or step.samples is not None:
            raise PlanError("sample: the handle is not the last launched plan, or it was sampled before.")
        if masks is not None and len(masks) != step.wanted:
            raise PlanError(f"sample: {len(masks)} masks for {step.wanted} sample rows; give one per row.")
        return step

    def collect(self, handle: Handle) -> Samples:
        """The answers of the oldest step, which then has landed."""
        if not self._steps or handle is not self._steps[0]:
            raise PlanError("collect: the handle is not the oldest in flight; collect each once, in order.")
        samples = self._steps[0].samples
        if samples is None:
            raise PlanError(f"collect: step {self._steps[0].number} was never sampled.")
        self._steps.popleft()
        return samples

    def clear(self) -> None:
        """Forget everything, `last` too."""
        self._steps.clear()
        self.last = None
