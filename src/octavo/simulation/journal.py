"""What a gateway must know of a request to go on with it elsewhere: what was asked, and what was delivered.

Knows tokens, no replica and no time.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from octavo.scheduling.inputs import Add
from octavo.scheduling.outputs import SequenceOutput

__all__ = ["Journal"]


class _Entry:
    def __init__(self, add: Add) -> None:
        self.add = add
        begun = add.outputs or ((),) * add.params.n
        self.outputs = [list(tokens) for tokens in begun]
        self.finished = set(add.finished)


class Journal:
    """The requests of one replica that have answers to come, as `EngineClient` keeps them for a server's engine."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def enter(self, add: Add) -> None:
        self._entries[add.request_id] = _Entry(add)

    def note(self, items: Iterable[SequenceOutput]) -> None:
        """This was delivered."""
        for item in items:
            entry = self._entries[item.request_id]
            entry.outputs[item.child] += [sample.token for sample in item.samples]
            if item.finish_reason is not None:
                entry.finished.add(item.child)
                if len(entry.finished) == entry.add.params.n:
                    del self._entries[item.request_id]

    def take(self) -> list[Add]:
        """Messages that go on with all of them, in the order in which they came; then there are none."""
        entries, self._entries = self._entries, {}
        return [
            msgspec.structs.replace(
                one.add,
                outputs=tuple(map(tuple, one.outputs)) if any(one.outputs) else (),
                finished=tuple(sorted(one.finished)),
            )
            for one in entries.values()
        ]
