"""Labels and logs: who was right about which prompt, as files have it. Knows tables, and nothing of what is learnt.

A label file has one row for each prompt: the prompt, and for each tier whether its answer was correct. Beside them may
stand what each answer cost, when the prompt was asked, and of what task it is. The task is for reports alone: it is
never a feature, because nobody gives it when a request comes.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from octavo.errors import RoutingError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Labels", "read_labels"]

CORRECT = "_correct"
COST = "_cost"
MAX_FILE_BYTES = 1 << 30
"""Of a label file, unpacked."""
MAX_PROMPT_CHARS = 1 << 20

_RIGHT = frozenset({"1", "1.0", "true", "yes", "correct"})
_WRONG = frozenset({"0", "0.0", "false", "no", "incorrect", "wrong"})


@dataclass(frozen=True)
class Labels:
    """Rows of a label file. Tiers stand in the order of their cost, the cheapest first."""

    tiers: tuple[str, ...]
    prompts: tuple[str, ...]
    correct: NDArray[np.bool_]
    """[rows, tiers]."""
    costs: NDArray[np.float64] | None = None
    """[rows, tiers], in one currency; None: not in the file."""
    tasks: tuple[str, ...] | None = None
    asked_s: NDArray[np.float64] | None = None
    """[rows], seconds since 1970."""

    def __len__(self) -> int:
        return len(self.prompts)

    def take(self, rows: Iterable[int]) -> Labels:
        """These rows, in this order."""
        places = [int(row) for row in rows]
        return Labels(
            self.tiers,
            tuple(self.prompts[row] for row in places),
            self.correct[places],
            None if self.costs is None else self.costs[places],
            None if self.tasks is None else tuple(self.tasks[row] for row in places),
            None if self.asked_s is None else self.asked_s[places],
        )

    @property
    def days(self) -> float | None:
        """Between the first and the last prompt; None where that is not known."""
        if self.asked_s is None or len(self) < 2:
            return None
        return float(self.asked_s.max() - self.asked_s.min()) / 86_400 or None


def read_labels(
    path: Path, *, tiers: Sequence[str] | None = None, prompt: str = "prompt", task: str | None = None
) -> Labels:
    """Read CSV or JSONL, either of them perhaps gzipped.

    `tiers`: names or columns, the cheapest first; None takes the columns that end in `_correct`, as they stand in the
    file. A tier NAME is the column NAME_correct or NAME, and its costs are NAME_cost. `prompt`, `task`: columns; task
    None takes the column `task` where there is one. A column `time` has seconds since 1970 or ISO 8601.
    Raises RoutingError for a file that cannot be read, for columns that it has not, for values that are no labels, and
    where a tier is always right or always wrong: then there is nothing to learn.
    """
    rows, columns = _rows(path)
    if not rows:
        raise RoutingError(f"{path} has no rows; labels are one prompt a row, with a column for each tier.")
    if prompt not in columns:
        raise RoutingError(f"{path} has no column '{prompt}'; it has {_list(columns)}.")
    if task is not None and task not in columns:
        raise RoutingError(f"{path} has no column '{task}'; it has {_list(columns)}.")
    found = _tier_columns(path, columns, tiers)
    prompts = tuple(_text(path, number, prompt, row.get(prompt)) for number, row in rows)
    correct = np.array(
        [
            [_label(path, number, column, row.get(column)) for column in found.values()]
            for number, row in rows
        ],
        dtype=np.bool_,
    )
    for place, (name, column) in enumerate(found.items()):
        if correct[:, place].all() or not correct[:, place].any():
            always = "1" if correct[0, place] else "0"
            raise RoutingError(
                f"{path}: column '{column}' is {always} in all {len(rows):,} rows, so one class is missing and "
                f"there is nothing to learn about tier '{name}'; give rows of both kinds."
            )
    tasks = task if task is not None else ("task" if "task" in columns else None)
    return Labels(
        tuple(found),
        prompts,
        correct,
        _costs(path, rows, columns, tuple(found)),
        None if tasks is None else tuple(str(row.get(tasks) or "") for _, row in rows),
        None if "time" not in columns else _times(path, rows),
    )


Row = tuple[int, Mapping[str, Any]]


def _rows(path: Path) -> tuple[list[Row], list[str]]:
    """Rows with the numbers of their lines or records, and the columns' names in their order."""
    text = _content(path)
    if not text.strip():
        return [], []
    if text.lstrip().startswith("{"):
        return _records(path, text)
    csv.field_size_limit(MAX_PROMPT_CHARS * 4)
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    rows: list[Row] = []
    try:
        columns = [column.strip() for column in reader.fieldnames or ()]
        reader.fieldnames = columns
        for number, row in enumerate(reader, 1):
            if None in row or None in row.values():
                raise RoutingError(
                    f"{path}, row {number} has another number of fields than the {len(columns)} columns of the header."
                )
            rows.append((number, row))
    except csv.Error as error:
        raise RoutingError(f"{path}, row {len(rows) + 1} is no CSV: {error}.") from None
    twice = sorted({column for column in columns if columns.count(column) > 1})
    if twice:
        raise RoutingError(f"{path} has the column '{twice[0]}' more than once.")
    return rows, columns


def _records(path: Path, text: str) -> tuple[list[Row], list[str]]:
    rows: list[Row] = []
    columns: dict[str, None] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            record = msgspec.json.decode(line)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise RoutingError(f"{path}, line {number} is no JSON: {error}.") from None
        if not isinstance(record, dict):
            raise RoutingError(f"{path}, line {number} is no JSON object.")
        rows.append((number, record))
        columns |= dict.fromkeys(record)
    return rows, list(columns)


def _content(path: Path) -> str:
    try:
        raw = path.read_bytes()
        if raw[:2] == b"\x1f\x8b":
            with gzip.open(io.BytesIO(raw)) as file:
                raw = file.read(MAX_FILE_BYTES + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise RoutingError(f"{path} is a damaged gzip file: {error}.") from None
    except OSError as error:
        raise RoutingError(f"The labels {path} cannot be read: {error.strerror or error}.") from None
    if len(raw) > MAX_FILE_BYTES:
        raise RoutingError(f"{path} is larger than {MAX_FILE_BYTES >> 20} MiB; give a part of it.")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RoutingError(f"{path} is not UTF-8: byte {error.start:,} cannot be read.") from None


def _tier_columns(path: Path, columns: Sequence[str], tiers: Sequence[str] | None) -> dict[str, str]:
    """Tiers' names and their columns."""
    labels = [column for column in columns if column.endswith(CORRECT) and column != CORRECT]
    if tiers is None:
        found = {column.removesuffix(CORRECT): column for column in labels}
    else:
        found = {}
        for name in tiers:
            column = name if name in columns else name + CORRECT
            if column not in columns:
                raise RoutingError(
                    f"{path} has no column '{name}' or '{name}{CORRECT}'; it has {_list(columns)}."
                )
            found[column.removesuffix(CORRECT)] = column
        if len(found) < len(tiers):
            raise RoutingError(f"--tiers is '{','.join(tiers)}'; name each tier once.")
    if len(found) < 2:
        raise RoutingError(
            f"{path} has labels of {_list(found) if found else 'no tier'}; routing needs two or more: columns that end "
            f"in {CORRECT}, or --tiers with their names, the cheapest first."
        )
    return found


def _text(path: Path, number: int, column: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise RoutingError(
            f"{path}, row {number}: '{column}' is {value!r:.40}; it must be a text that is not empty."
        )
    if len(value) > MAX_PROMPT_CHARS:
        raise RoutingError(
            f"{path}, row {number}: '{column}' is longer than {MAX_PROMPT_CHARS:,} characters."
        )
    return value


def _label(path: Path, number: int, column: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word not in _RIGHT and word not in _WRONG:
        raise RoutingError(
            f"{path}, row {number}: '{column}' is {value!r:.40}; a label is 1 (correct) or 0 (not)."
        )
    return word in _RIGHT


def _costs(
    path: Path, rows: Sequence[Row], columns: Sequence[str], tiers: Sequence[str]
) -> NDArray[np.float64] | None:
    there = [tier + COST in columns for tier in tiers]
    if not any(there):
        return None
    if not all(there):
        missing = tiers[there.index(False)]
        raise RoutingError(
            f"{path} has costs for some tiers and no column '{missing}{COST}'; an unknown price is not "
            "nothing."
        )
    return np.array(
        [[_number(path, number, tier + COST, row.get(tier + COST)) for tier in tiers] for number, row in rows]
    )


def _number(path: Path, number: int, column: str, value: Any) -> float:
    try:
        found = float(value)
    except (TypeError, ValueError):
        found = math.nan
    if not 0 <= found < math.inf:
        raise RoutingError(
            f"{path}, row {number}: '{column}' is {value!r:.40}; it must be a number of 0 or more."
        )
    return found


def _times(path: Path, rows: Sequence[Row]) -> NDArray[np.float64]:
    found = []
    for number, row in rows:
        value = row.get("time")
        try:
            found.append(float(value))  # type: ignore[arg-type]
        except (TypeError, ValueError):
            try:
                found.append(datetime.fromisoformat(str(value)).timestamp())
            except ValueError:
                raise RoutingError(
                    f"{path}, row {number}: 'time' is {value!r:.40}; write seconds since 1970 or ISO 8601."
                ) from None
    times = np.array(found)
    if not np.isfinite(times).all():
        raise RoutingError(
            f"{path}, row {int(np.flatnonzero(~np.isfinite(times))[0]) + 1}: 'time' is not finite."
        )
    return times


def _list(names: Iterable[str]) -> str:
    every = [f"'{name}'" for name in names]
    return ", ".join(every[:12]) + (f" and {len(every) - 12} more" if len(every) > 12 else "")
