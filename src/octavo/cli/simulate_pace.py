"""`octavo simulate --calibrate`, and where a run's pace comes from. Knows options and the terminal."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from octavo.cli.results import check_outputs
from octavo.errors import InvalidParameter
from octavo.simulation.calibrated import CalibratedPace, Calibration, Watched, read_pace, saved_at
from octavo.simulation.measured import Measured

__all__ = ["HERE", "KNOBS", "calibrate", "outside", "pace_asked"]

HERE = "here"
"""This machine, among the names of hardware."""
KNOBS = ("block_size", "max_running", "max_step_tokens", "max_model_len")
"""Of an engine, that a calibration may be told, and a run may change."""


def calibrate(
    source: str, output: Path | None, knobs: dict[str, int], threads: int | None, console: Console
) -> None:
    """Measure a model in this process, or a server at a URL; write and print what came out. `knobs` and `threads`: as
    they were given. Raises ClientError."""
    check_outputs(output, None)
    with _progress() as told:
        if "://" in source:
            found = _of_server(source, knobs, told)
            if threads is not None:
                found = msgspec.structs.replace(found, threads=threads)
        else:
            found = _of_model(source, knobs if threads is None else {**knobs, "threads": threads}, told)
    path = output or saved_at(found.model if "://" in source else source)
    found.write(path)
    for name, words in Measured(calibration=found).facts():
        console.print(f"{name:>15}  {words}", markup=False)
    console.print()
    console.print(_terms(found))
    console.print(f"\nThe pace is in {path}.", markup=False, soft_wrap=True)


def pace_asked(pace: Path | None, hardware: str, model: str) -> Calibration | CalibratedPace | None:
    """What `--pace` or `--hardware here` names; None where the catalogue is meant. Raises InvalidParameter."""
    if pace is not None:
        return read_pace(pace)
    if hardware != HERE:
        return None
    path = saved_at(model)
    if not path.is_file():
        raise InvalidParameter(
            f"This machine was not calibrated for the model {model!r}; run octavo simulate --calibrate {model} first."
        )
    return read_pace(path)


def outside(watched: Watched) -> list[str]:
    """What a run asked of a pace beyond what was measured, in sentences."""
    return [
        f"{count:,} of {watched.steps:,} steps have more {name.replace('_', ' ')} than any that was measured (up to "
        f"{most:,}): for them the terms are drawn on in straight lines."
        for name, (count, most) in watched.outside.items()
    ]


def _of_model(name: str, knobs: dict[str, int], told: Callable[[int, int], None]) -> Calibration:
    from octavo.cli.pull import fetch, with_backend
    from octavo.config import EngineConfig
    from octavo.engine.build import build_engine
    from octavo.simulation.calibrate_engine import calibrate_engine

    model = fetch(name)
    settings = with_backend({"model_dir": str(model.dir), "speculation": "off", **knobs})
    engine = build_engine(EngineConfig(**settings))
    try:
        return calibrate_engine(engine, model=name, told=told)
    finally:
        engine.close()


def _of_server(url: str, knobs: dict[str, int], told: Callable[[int, int], None]) -> Calibration:
    from octavo.bench.target import discover
    from octavo.simulation.calibrate_server import Knobs, calibrate_server

    async def measure() -> Calibration:
        return await calibrate_server(await discover(url), Knobs(**knobs), told=told)

    return asyncio.run(measure())


def _terms(found: Calibration) -> Table:
    table = Table("term", "", "95 % between", "and", box=None, pad_edge=False)
    pace, fitted = found.pace, found.fitted
    values = {"per_step_s": pace.per_step_s}
    values |= {f"token_s[{at}]": seconds for at, seconds in zip(pace.tokens, pace.token_s, strict=True) if at}
    for one in ("per_sample_s", "per_sequence_s", "per_kv_token_s", "per_pair_s"):
        values[one] = getattr(pace, one)
    if found.source != "engine":
        values |= {one: getattr(found.host, one) for one in found.host.__struct_fields__}
    for name, seconds in values.items():
        bars = [_shown(bar[name]) if name in bar else "" for bar in (fitted.low, fitted.high)]
        table.add_row(name, _shown(seconds), *bars)
    return table


def _shown(seconds: float) -> str:
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return "0" if seconds == 0 else f"{seconds / 1e-12:.3g} ps"


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    columns = (TextColumn("measuring"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("", total=None)

        def told(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield told
