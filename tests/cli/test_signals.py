"""Signals that end a measurement."""

from __future__ import annotations

import asyncio
import signal

import pytest

from octavo.cli.signals import Signals


def test_the_first_signal_stops_gently_and_the_second_cancels() -> None:
    told: list[str] = []

    async def work(signals: Signals) -> None:
        stop = asyncio.Event()
        signals.gently(stop.set)
        signal.raise_signal(signal.SIGTERM)
        await stop.wait()
        told.append("stopped")
        signal.raise_signal(signal.SIGINT)
        await asyncio.Event().wait()

    with Signals() as signals, pytest.raises(asyncio.CancelledError):
        asyncio.run(work(signals))
    assert told == ["stopped"] and signals.code == 143


def test_within_a_loop_a_signal_cancels_the_task_wherever_it_comes() -> None:
    """In a callback of the loop's own an exception would be told and forgotten."""

    async def work(signals: Signals) -> None:
        signals.cancels()
        asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGTERM)
        await asyncio.Event().wait()

    with Signals() as signals, pytest.raises(asyncio.CancelledError):
        asyncio.run(work(signals))
    assert signals.code == 143


def test_before_there_is_anything_to_keep_a_signal_ends_at_once() -> None:
    with Signals() as signals, pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)
    assert signals.code == 143


def test_while_results_are_written_the_first_signal_is_noted_and_the_second_ends() -> None:
    async def work(signals: Signals) -> None:
        signals.gently(lambda: None)
        signals.over()

    with Signals() as signals:
        asyncio.run(work(signals))
        signal.raise_signal(signal.SIGHUP)
        assert signals.code == 129 and signals.hung_up
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_the_usual_handlers_are_back_afterwards_and_an_ignored_hang_up_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    interrupt = signal.getsignal(signal.SIGINT)
    try:
        with Signals() as signals:
            signal.raise_signal(signal.SIGHUP)
            assert signals.number is None and signal.getsignal(signal.SIGINT) is not interrupt
        assert signal.getsignal(signal.SIGINT) is interrupt
    finally:
        signal.signal(signal.SIGHUP, before)
