"""Prometheus' text format, as servers show their metrics in it: only the samples of wanted names, fast.

Knows the format (prometheus.io/docs/instrumenting/exposition_formats, and what OpenMetrics adds to it: exemplars,
`# EOF`), no server's names. A server may show some thousand lines of histograms, and a general parser takes a
microsecond for every character of them or so, which would disturb what is being measured: here a group of lines is
passed over as a whole (benchmarks/scrape.py has the figures).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

__all__ = ["Sample", "samples"]

_LABEL = re.compile(rb'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"[ \t]*(,?)')
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n", "\\": "\\", '"': '"'}
_LONG = 1024
"""Bytes of labels that are not kept."""
_NONE: Mapping[str, str] = {}
_TYPE = b"\n# TYPE "
_ENDS = (b"", b"_total", b"_sum", b"_count")
"""Of samples' names, where the type is that of the name without them."""


class Sample(NamedTuple):
    """One line: a finite value of a name with labels."""

    name: str
    labels: Mapping[str, str]
    value: float


def samples(text: bytes, wanted: frozenset[bytes]) -> Iterator[Sample]:
    """The samples whose names are in `wanted`, in the order of the text. What is no sample (comments, damaged lines,
    values that are no finite number) is passed over."""
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n")
    families = _families(wanted)
    first, *groups = (b"\n" + text).split(_TYPE)
    yield from _of_lines(first, wanted)
    for group in groups:
        name = group[: group.find(b" ")]
        # Lines of one name stand together, below its type; what follows without a type is of another name.
        if name in families or not _last_sample(group).startswith(name):
            yield from _of_lines(group, wanted)


def _last_sample(group: bytes) -> bytes:
    """The last line that is no comment; the first, where all others are."""
    end = len(group.rstrip(b"\n"))
    while (start := group.rfind(b"\n", 0, end) + 1) and group.startswith(b"#", start):
        end = start - 1
    return group[start:end]


@lru_cache(maxsize=8)
def _families(wanted: frozenset[bytes]) -> frozenset[bytes]:
    """By what names the types of wanted samples may be told."""
    return frozenset(name.removesuffix(end) for name in wanted for end in _ENDS)


def _of_lines(lines: bytes, wanted: frozenset[bytes]) -> Iterator[Sample]:
    for line in lines.split(b"\n"):
        words = line.partition(b"{")[0].split(None, 1)
        if words and (name := words[0]) in wanted:
            sample = _sample(name, line[line.index(name) + len(name) :])
            if sample is not None:
                yield sample


def _sample(name: bytes, rest: bytes) -> Sample | None:
    """`rest` follows the name: labels, a value, and perhaps a time or an exemplar."""
    labels: Mapping[str, str] = _NONE
    rest = rest.lstrip(b" \t")
    if rest.startswith(b"{"):
        end = rest.rfind(b"}") + 1
        found = _known_labels(rest[:end]) if end <= _LONG else None
        if found is None:  # they are very long, or the last brace is an exemplar's
            found, end = _labels(rest)
        if found is None:
            return None
        labels, rest = found, rest[end:]
    fields = rest.split(None, 1)
    try:
        value = float(fields[0])
    except (IndexError, ValueError):
        return None
    return Sample(name.decode(), labels, value) if math.isfinite(value) else None


@lru_cache(maxsize=4096)
def _known_labels(text: bytes) -> Mapping[str, str] | None:
    """They are the same in each reading. None where `text` is anything else than braces with labels."""
    labels, end = _labels(text)
    return labels if end == len(text) else None


def _labels(text: bytes) -> tuple[Mapping[str, str] | None, int]:
    """Those at its beginning, in braces, and where they end; None for damaged ones."""
    labels: dict[str, str] = {}
    place, more = 1, b","
    while match := _LABEL.match(text, place) if more else None:
        labels[match[1].decode()] = _unescaped(match[2].decode(errors="replace"))
        place, more = match.end(), match[3]
    while text[place : place + 1] in (b" ", b"\t"):
        place += 1
    return (labels, place + 1) if text.startswith(b"}", place) else (None, place)


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    return _ESCAPE.sub(lambda match: _ESCAPED.get(match[1], match[0]), text)
