"""What the measured server says of itself: its /metrics, as readings by our names (READINGS).

Knows how to ask, not which metric says what (projects.py) nor how the text is written (exposition.py). It never spoils
a run: a server without metrics gives one note. It has a connection of its own, and reading a text of 150 kB takes half
a millisecond of the loop (benchmarks/scrape.py).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from http import HTTPStatus
from urllib.parse import quote

from octavo.bench.address import Address
from octavo.bench.connection import ClockNs, Failure
from octavo.bench.exposition import Sample, samples
from octavo.bench.pool import Answer, Pool, fetch
from octavo.bench.projects import PROJECTS, Project, model_of, project_of
from octavo.bench.target import Target

__all__ = ["MAX_TEXT_BYTES", "Scraper"]

MAX_TEXT_BYTES = 4 << 20
"""A longer text is not read: it would take a hundredth of a second each time."""
TIMEOUT_S = 5.0
_WANTED = frozenset(name for project in PROJECTS for name in project.metrics())
_ASKED = {
    "accept": "text/plain; version=0.0.4",  # in OpenMetrics, which is longer, colons may become underscores
    "accept-encoding": "identity",
    "user-agent": "octavo-bench",
}


class Scraper:
    """Reads one server's metrics, whenever it is called: a `Scrape` of the bench's client. Used again by each run."""

    def __init__(
        self,
        address: Address,
        *,
        model: str | None = None,
        key: str | None = None,
        headers: Sequence[tuple[str, str]] = (),
        insecure: bool = False,
        clock_ns: ClockNs = time.perf_counter_ns,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """`model`: whose samples count, where the server tells of several. `key` is sent as a bearer token, and is in
        no note; `headers` are more of each request. `insecure`: any certificate will do."""
        self.project: Project | None = None
        """Whose names the metrics have; None before the first reading."""
        self._address = address
        self._model = model
        self._key = key
        self._headers = tuple(headers)
        self._timeout_s = timeout_s
        self._pool = Pool(address, clock_ns=clock_ns, max_connections=1, insecure=insecure)
        self._query = ""
        self._failed = self._asked = 0
        self._why = ""
        self._ended = False
        """There is nothing to be read, now or later."""

    @classmethod
    def of(cls, target: Target, clock_ns: ClockNs = time.perf_counter_ns) -> Scraper:
        """The measured server's."""
        return cls(
            target.address,
            model=target.model,
            key=target.key,
            headers=target.headers,
            insecure=target.insecure,
            clock_ns=clock_ns,
        )

    async def __call__(self) -> dict[str, float] | None:
        """The readings by our names; None where there are none now, and `notes` says why. Raises nothing. A server that
        has none is asked once."""
        if self._ended:
            return None
        self._asked += 1
        try:
            return self._values(await self._fetch())
        except Failure as failure:
            self._missed(f"{self._where} could not be read: {failure}.")
        except _NoMetrics as reason:
            self._ended = self.project is None
            self._missed(str(reason))
        return None

    @property
    def notes(self) -> list[str]:
        """What is missing so far and why, in sentences."""
        if self.project is None:
            return [self._why] if self._why else []
        if not self._failed:
            return []
        return [
            f"{self._failed} of {self._asked} readings of {self._where} failed; the last one: {self._why}"
        ]

    async def close(self) -> None:
        """Ends its connection."""
        await self._pool.close()

    async def _fetch(self) -> Answer:
        answer = await fetch(self._pool, self._request(), self._timeout_s)
        if answer.status == HTTPStatus.BAD_REQUEST and self._model and not self._query:
            # llama.cpp's router serves several models, and wants to know which.
            self._query = f"?model={quote(self._model, safe='')}"
            answer = await fetch(self._pool, self._request(), self._timeout_s)
        return answer

    def _request(self) -> bytes:
        fields = {"host": self._address.authority, **_ASKED}
        fields.update(self._headers)
        if self._key:
            fields["authorization"] = f"Bearer {self._key}"
        lines = [f"GET {self._address.path}/metrics{self._query} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in fields.items()]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    @property
    def _where(self) -> str:
        return f"{self._address.path}/metrics"

    def _values(self, answer: Answer) -> dict[str, float]:
        """Raises _NoMetrics."""
        self._check(answer)
        found = list(samples(answer.body, _WANTED))
        project = project_of(sample.name for sample in found)
        if project is None:
            begins = " ".join(answer.body[:40].decode("utf-8", "replace").split())
            raise _NoMetrics(
                f"{self._where} has no metric of {', '.join(one.name for one in PROJECTS)}; it begins with {begins!r}."
            )
        own = self._own(found)
        self.project = project
        return project.values(own)

    def _check(self, answer: Answer) -> None:
        """As far as the head and the length tell. Raises _NoMetrics."""
        status = answer.status
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            raise _NoMetrics(
                f"{self._where} is not open to this key ({status}), so the server's own numbers are missing."
            )
        if status in (HTTPStatus.NOT_FOUND, HTTPStatus.NOT_IMPLEMENTED, HTTPStatus.METHOD_NOT_ALLOWED):
            raise _NoMetrics(
                f"{self._where} is not served ({status}), so the server's own numbers are missing; llama.cpp has it "
                "with --metrics, SGLang with --enable-metrics."
            )
        if status != HTTPStatus.OK:
            raise Failure("status", f"status {status}")
        if len(answer.body) > MAX_TEXT_BYTES:
            raise _NoMetrics(
                f"{self._where} is {len(answer.body):,} bytes long, and at most {MAX_TEXT_BYTES:,} are read."
            )

    def _own(self, found: list[Sample]) -> list[Sample]:
        """Those of the model, where there are others. Raises _NoMetrics."""
        models = {model for sample in found if (model := model_of(sample)) is not None}
        if len(models) < 2:  # it may be known by another of its names
            return found
        if self._model not in models:
            raise _NoMetrics(
                f"{self._where} tells of {len(models)} models ({', '.join(sorted(models))[:200]}), and none of them "
                f"is {self._model!r}."
            )
        return [sample for sample in found if model_of(sample) in (None, self._model)]

    def _missed(self, why: str) -> None:
        self._failed += 1
        self._why = why.replace(self._key, "***") if self._key else why


class _NoMetrics(Exception):
    """What came is nothing to read, and asking again would not change it."""
