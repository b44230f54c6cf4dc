"""Blocks: order of reuse, sharing, and that a leak is found."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from octavo.memory.pool import BlockPool, OutOfBlocks
from octavo.memory.table import BlockTable


def test_a_freed_tail_is_reused_before_its_head() -> None:
    pool = BlockPool(4)
    pool.release(pool.allocate(4))
    assert pool.allocate(4) == [3, 2, 1, 0]


def test_short_of_blocks_takes_nothing() -> None:
    pool = BlockPool(3)
    pool.allocate(2)
    with pytest.raises(OutOfBlocks):
        pool.allocate(2)
    assert pool.free == 1 and pool.used == 2


def test_a_block_is_free_only_after_its_last_holder() -> None:
    pool = BlockPool(1)
    block = pool.allocate(1)
    pool.share(block)
    assert pool.shared(0)
    pool.release(block)
    assert pool.used == 1 and not pool.shared(0)
    pool.release(block)
    assert pool.free == 1
    with pytest.raises(ValueError, match="free already"):
        pool.release(block)
    with pytest.raises(ValueError, match="cannot be shared"):
        pool.share(block)


def test_check_finds_a_leak_and_a_double_use() -> None:
    pool = BlockPool(4)
    block = pool.allocate(1)
    pool.check([block])
    with pytest.raises(AssertionError):
        pool.check([])
    with pytest.raises(AssertionError):
        pool.check([block, block])


class Tables(RuleBasedStateMachine):
    """Tables that grow, fork and go, against a model that keeps every sequence's contents apart."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(12)
        self.kv: dict[int, list[int]] = {}
        self.tables: list[tuple[BlockTable, list[int]]] = []
        self.written = 0

    @rule()
    def new(self) -> None:
        self.tables.append((BlockTable(self.pool, 4), []))

    @precondition(lambda self: self.tables)
    @rule(which=st.integers(0, 99), count=st.integers(1, 9))
    def grow(self, which: int, count: int) -> None:
        table, content = self.tables[which % len(self.tables)]
        start, end = len(content), len(content) + count
        needed, before = table.needed(start, end), list(table.blocks)
        if needed > self.pool.free:
            with pytest.raises(OutOfBlocks):
                table.grow(start, end)
            assert table.blocks == before
            return
        free = self.pool.free
        growth = table.grow(start, end)
        assert free - self.pool.free == needed and (growth is None) == (needed == 0)
        if growth is not None:
            assert before[: growth.at] + list(growth.blocks) == table.blocks
            if growth.copy is not None:
                self.kv[growth.copy[1]] = list(self.kv[growth.copy[0]])
        for position in range(start, end):
            self.written += 1
            content.append(self.written)
            block = self.kv.setdefault(table.blocks[position // 4], [0] * 4)
            block[position % 4] = self.written

    @precondition(lambda self: self.tables)
    @rule(which=st.integers(0, 99))
    def fork(self, which: int) -> None:
        table, content = self.tables[which % len(self.tables)]
        free = self.pool.free
        self.tables.append((table.fork(), list(content)))
        assert self.pool.free == free

    @precondition(lambda self: self.tables)
    @rule(which=st.integers(0, 99))
    def release(self, which: int) -> None:
        table, _ = self.tables.pop(which % len(self.tables))
        table.release()

    @invariant()
    def nothing_is_lost_or_mixed(self) -> None:
        self.pool.check(table.blocks for table, _ in self.tables)
        for table, content in self.tables:
            assert [self.kv[table.blocks[p // 4]][p % 4] for p in range(len(content))] == content


TestTables = Tables.TestCase
TestTables.settings = settings(max_examples=60, stateful_step_count=40)
