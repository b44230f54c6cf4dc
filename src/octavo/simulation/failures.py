"""When replicas die, and for how long. Knows times and places, nothing of what is lost with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from octavo.errors import InvalidParameter
from octavo.timing.clock import microseconds
from octavo.workload.draws import Draws

__all__ = ["Failure", "Failures"]


class Failure(NamedTuple):
    """A replica dies at `at_us`, and a new engine serves in its place at `until_us`; None: never."""

    place: int
    at_us: int
    until_us: int | None


class Failures:
    """Those that somebody lists, or those of replicas that live for exponentially distributed times."""

    def __init__(
        self,
        listed: Sequence[Failure] = (),
        *,
        mtbf_s: float | None = None,
        repair_s: float = 60.0,
        seed: int = 0,
    ) -> None:
        """`mtbf_s`: the mean time from a start to a failure, in place of a list; `repair_s`: from there to the next
        start. Each place has draws of its own. Raises InvalidParameter for a replica that dies while it is dead."""
        self._listed = sorted(listed, key=lambda one: (one.at_us, one.place))
        self._mtbf_s = mtbf_s
        self._repair_us = max(microseconds(repair_s), 1)
        self._seed = seed
        self._draws: dict[int, Draws] = {}
        dead: dict[int, int | None] = {}
        for one in self._listed:
            until_us = dead.get(one.place, 0)
            if until_us is None or one.at_us < until_us:
                raise InvalidParameter(
                    f"--fail lets replica {one.place + 1} die at {one.at_us / 1e6:g} s, when it is dead already."
                )
            dead[one.place] = one.until_us

    def after(self, place: int, at_us: int) -> Failure | None:
        """The next one of a replica that starts at this time."""
        if self._mtbf_s is None:
            return next((one for one in self._listed if one.place == place and one.at_us >= at_us), None)
        draws = self._draws.setdefault(place, Draws(self._seed, f"failures/{place}"))
        dies_us = at_us + max(microseconds(draws.exponential() * self._mtbf_s), 1)
        return Failure(place, dies_us, dies_us + self._repair_us)
