"""What commands that measure share: workloads as they are asked for, files to write to, exit codes. Knows no option."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from octavo.errors import BenchError, InvalidParameter
from octavo.workload.spec import Workload, load_workload

if TYPE_CHECKING:
    from octavo.bench.report import Report

__all__ = ["NOT_MET", "NOT_VALID", "changed_workload", "check_outputs", "exit_code", "key_in"]

NOT_MET, NOT_VALID = 1, 3


def changed_workload(
    name: str,
    *,
    seed: int | None = None,
    requests: int | None = None,
    duration_s: float | None = None,
    rate: float | None = None,
    seeds: int = 63,
) -> Workload:
    """A preset, file or trace with what is given in place of its own. `seeds`: bits that a seed may have.

    Raises WorkloadError, and InvalidParameter for a seed.
    """
    workload = load_workload(name)
    if seed is not None and seed >= 2**seeds:
        raise InvalidParameter(f"--seed is {seed}; it must be below 2**{seeds}.")
    changed = {"seed": seed, "requests": requests, "duration_s": duration_s}
    workload = msgspec.structs.replace(
        workload, **{key: value for key, value in changed.items() if value is not None}
    )
    return workload if rate is None else workload.at_rate(rate)


def check_outputs(record: Path | None, html: Path | None) -> None:
    """Raises InvalidParameter or BenchError now, and not after an hour of measuring."""
    if record is not None and record == html:
        raise InvalidParameter(f"--output and --html are both {record}; one would overwrite the other.")
    for path in (record, html):
        if path is not None:
            _check_writable(path)


def _check_writable(path: Path) -> None:
    if path.is_dir():
        raise BenchError(f"{path} is a folder; give the name of a file.")
    beside = path.with_name(path.name + ".part")
    try:
        beside.open("ab").close()
        beside.unlink()
    except OSError as error:
        raise BenchError(f"{path} cannot be written ({error.strerror}); check the path.") from None


def exit_code(made: Report) -> int:
    """Of a report: measured, not met, or not valid."""
    if not made.valid:
        return NOT_VALID
    return NOT_MET if made.chosen.met is False else 0


def key_in(variable: str | None) -> str | None:
    """The API key. Raises InvalidParameter where it should be in a variable that has none."""
    key = os.environ.get("OPENAI_API_KEY" if variable is None else variable) or None
    if key is None and variable is not None:
        raise InvalidParameter(f"--key-env is {variable!r}, and no such variable is set in the environment.")
    return key
