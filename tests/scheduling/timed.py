"""An engine whose steps take as long as a formula says, on a clock that only they move. Knows no real time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from zlib import crc32

from octavo.engine.engine import Engine
from octavo.scheduling.inputs import Add
from octavo.timing.step_time import StepLoad, TimedLoad
from tests.fakes import limits, make_engine, request, timed

STEP_S, TOKEN_S = 0.005, 0.001


def seconds_of(tokens: int) -> float:
    return STEP_S + TOKEN_S * tokens


MEASURED = tuple(TimedLoad(StepLoad(n, 1, 0, n * n // 2), seconds_of(n)) for n in (1, 4, 16, 64, 256))


class Timed:
    """Steps, and the time of every token."""

    def __init__(self, **settings: object) -> None:
        sizes = settings.pop("sizes", None) or limits(
            num_blocks=4096, max_slots=64, max_step_tokens=512, max_model_len=8192
        )
        self.engine: Engine = make_engine(sizes, script=lambda h, r: 65, **settings)  # type: ignore[arg-type]
        self.clock = timed(self.engine, lambda plan: seconds_of(plan.tokens))
        self.times: dict[str, list[float]] = {}
        self.arrived: dict[str, float] = {}
        self._waiting: list[tuple[float, Add]] = []

    def add(self, name: str, prompt: int, outputs: int, *, at: float | None = None, **own: object) -> None:
        """A request of its own tokens, now or at a time to come."""
        now = self.clock.now_s()
        ids = [(crc32(name.encode()) + i * i) % 256 for i in range(prompt)]
        asked = request(
            name, ids, max_tokens=outputs, ignore_eos=True, arrival_s=now if at is None else at, **own
        )
        self._waiting.append((now if at is None else at, asked))
        self._waiting.sort(key=lambda one: one[0])

    def step(self) -> None:
        while self._waiting and (self.engine.idle or self._waiting[0][0] <= self.clock.now_s()):
            at, asked = self._waiting.pop(0)
            self.clock.advance(max(at - self.clock.now_s(), 0.0))
            self.arrived[asked.request_id] = at
            self.engine.add(asked)
        outputs = self.engine.step()
        for item in outputs.items:
            self.times.setdefault(item.request_id, []).extend([self.clock.now_s()] * len(item.samples))

    def run(self, until: Callable[[], bool] | None = None) -> None:
        """Until all is answered, or until something holds."""
        for _ in range(100_000):
            if until is not None and until():
                return
            if self.engine.idle and not self._waiting:
                return
            self.step()
        raise AssertionError("it does not end")

    def ttft(self, name: str) -> float:
        return self.times[name][0] - self.arrived[name]

    def worst_gap(self, names: Sequence[str]) -> float:
        return max(
            later - earlier
            for name in names
            for earlier, later in zip(self.times[name], self.times[name][1:], strict=False)
        )

    def tokens_by(self, name: str, until: float) -> int:
        return sum(time <= until for time in self.times.get(name, ()))
