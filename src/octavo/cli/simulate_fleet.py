"""What the command line says of several servers. Knows its spelling, and nothing of what they do."""

from __future__ import annotations

import re
from dataclasses import dataclass

from octavo.cli.options import parse_duration
from octavo.config import RouterName
from octavo.errors import InvalidParameter
from octavo.simulation.failures import Failure, Failures
from octavo.timing.clock import microseconds

__all__ = ["Fleet"]

_SPELLING = re.compile(r"(?:replica )?(?P<number>\d+) at (?P<at>\S+?)(?: for (?P<lasts>\S+))?", re.IGNORECASE)


@dataclass(frozen=True)
class Fleet:
    """How many servers, who of them gets a request, and when they die."""

    replicas: int
    router: RouterName
    fail: tuple[str, ...] = ()
    mtbf_s: float | None = None
    repair_s: float = 60.0

    def __post_init__(self) -> None:
        if self.fail and self.mtbf_s is not None:
            raise InvalidParameter("--fail lists when replicas die, and --mtbf draws it; drop one of them.")
        if self.mtbf_s is not None and self.mtbf_s <= 0:
            raise InvalidParameter("--mtbf is 0, and a mean time between failures is more; drop it for none.")

    def failures(self, seed: int) -> Failures | None:
        """None where nobody dies. Each has draws of its own, so they are made anew for each run. Raises
        InvalidParameter."""
        if self.mtbf_s is not None:
            return Failures(mtbf_s=self.mtbf_s, repair_s=self.repair_s, seed=seed)
        return Failures([self._failure(text) for text in self.fail]) if self.fail else None

    def facts(self) -> list[tuple[str, str]]:
        """Words on what is beside an ordinary run."""
        if self.mtbf_s is not None:
            return [
                ("failures", f"of a replica every {self.mtbf_s:g} s in the mean, for {self.repair_s:g} s")
            ]
        return [("failures", "; ".join(self.fail))] if self.fail else []

    def _failure(self, text: str) -> Failure:
        found = _SPELLING.fullmatch(text.strip())
        if found is None:
            raise InvalidParameter(
                f"--fail is {text!r}; write 'replica 2 at 30s for 60s', or leave out the end where it stays dead."
            )
        number = int(found["number"])
        if not 1 <= number <= self.replicas:
            raise InvalidParameter(
                f"--fail names replica {number}, and --replicas is {self.replicas}; they are counted from 1."
            )
        at_us = microseconds(parse_duration(found["at"]))
        if found["lasts"] is None:
            return Failure(number - 1, at_us, None)
        return Failure(number - 1, at_us, at_us + max(microseconds(parse_duration(found["lasts"])), 1))
