"""Server-sent events, cut out of a stream of bytes. Knows the framing (WHATWG HTML, "Server-sent events"), no JSON.

Lines end with CR, LF or both; `data:` may be followed by one blank; several of them make one event; lines that begin
with a colon are comments; other fields (`event`, `id`, `retry`) do not matter here. Unlike a browser it gives out a
last event that the stream ended before its blank line: some servers leave that line out.
"""

from __future__ import annotations

__all__ = ["EventParser"]

_BOM = b"\xef\xbb\xbf"


class EventParser:
    """Feed it what was read, as it was read: any split gives the same events."""

    __slots__ = ("_beginning", "_rest", "_skip_lf")

    def __init__(self) -> None:
        self._beginning: bytes | None = b""
        """The stream's first bytes, while they may be those of a byte order mark."""
        self._rest: list[bytes] = []
        """Pieces of an event whose end was not read."""
        self._skip_lf = False
        """The last byte was a CR; a LF after it is of the same line's end."""

    def feed(self, data: bytes) -> list[bytes]:
        """The data of each event that is whole now. Empty data are no event."""
        if self._beginning is not None:
            data = self._beginning + data
            if len(data) < len(_BOM) and _BOM.startswith(data):
                self._beginning = data
                return []
            self._beginning = None
            data = data.removeprefix(_BOM)
        if self._skip_lf or b"\r" in data:
            if not data:
                return []
            if self._skip_lf and data[0] == 10:
                data = data[1:]
            self._skip_lf = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if b"\n" not in data:
            if data:
                self._rest.append(data)
            return []
        if self._rest:
            self._rest.append(data)
            data = b"".join(self._rest)
            self._rest.clear()
        *blocks, rest = data.split(b"\n\n")
        if rest:
            self._rest.append(rest)
        return [found for block in blocks if (found := _data_of(block))]

    def close(self) -> list[bytes]:
        """The stream has ended: its last event, if no blank line came after it."""
        last = (self._beginning or b"") + b"".join(self._rest)
        self._beginning = None
        self._rest.clear()
        found = _data_of(last)
        return [found] if found else []


def _data_of(block: bytes) -> bytes:
    if block.startswith(b"data: ") and b"\n" not in block:
        return block[6:]
    lines = []
    for line in block.split(b"\n"):
        name, colon, value = line.partition(b":")
        if name == b"data":
            lines.append(value.removeprefix(b" ") if colon else b"")
    return b"\n".join(lines)
