"""People who ask one machine: how long it is busy, who waits, how many fit in its memory. Knows seconds and bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import msgspec

from octavo.errors import InvalidParameter
from octavo.planning.queueing import wait_mmc_s
from octavo.planning.sheet import Sheet, figure
from octavo.planning.traffic import Traffic

__all__ = ["Convention", "Load", "Room", "e2e_s", "load", "room"]

Convention = Literal["gaps", "tokens"]
"""How the time of an answer is reckoned from the time between two tokens: N tokens have N − 1 gaps, and the first token
comes with the prompt; or each token costs one TPOT, the first too."""


def e2e_s(ttft_s: float, tpot_s: float, tokens: float, convention: Convention = "gaps") -> float:
    """Seconds from a request to its last token."""
    return ttft_s + max(tokens - (convention == "gaps"), 0) * tpot_s


class Load(msgspec.Struct, kw_only=True):
    """Of one machine that a team asks."""

    service_s: float
    """Of one answer."""
    busy_hours: float
    """A day, one at a time."""
    of_day: float
    of_hours: float
    """The same as shares of 24 h, and of the hours in which people ask."""
    peak_load: float
    """At the peak, in machines that answer one at a time: from 1 on the queue grows for ever."""
    waits: dict[int, float] = {}
    """By how many answers at once: the mean wait at the peak, seconds; inf where it never ends."""


def load(
    traffic: Traffic, service_s: float, slots: tuple[int, ...], sheet: Sheet, how: str = "as given"
) -> Load:
    """`service_s`: of one answer, whoever else is answered (decoding few at once is bound by memory, and costs the
    same); `slots`: of how many at once the waits are wanted."""
    sheet.section("How busy one machine is")
    service_s = sheet.line("an answer", how, service_s, "s")
    busy = traffic.turns_per_day * service_s / 3600
    text = f"{figure(traffic.turns_per_day)} turns × {figure(service_s)} s ÷ 3600"
    sheet.line("busy, one at a time", text, busy, "hours a day")
    of_day = sheet.line("of the day", f"{figure(busy)} ÷ 24 h × 100", 100 * busy / 24, "%") / 100
    of_hours = of_day
    if traffic.hours != 24:
        text = f"{figure(busy)} ÷ {figure(traffic.hours)} h × 100"
        of_hours = sheet.line("of the hours in use", text, 100 * busy / traffic.hours, "%") / 100
    text = f"{figure(of_hours)} × {figure(traffic.peak)}"
    peak = sheet.line("load at the peak", text, of_hours * traffic.peak, "machines that answer one at a time")
    result = Load(
        service_s=service_s, busy_hours=busy, of_day=of_day, of_hours=of_hours, peak_load=peak, waits={}
    )
    for count in slots:
        wait = wait_mmc_s(traffic.rate * traffic.peak, service_s, count)
        result.waits[count] = wait
        if math.isinf(wait):
            sheet.note(f"{count} at once: {figure(peak)} is {count} or more, so the queue grows for ever.")
            continue
        text = f"M/M/{count} with {figure(peak)} (Erlang C), mean"
        sheet.line(f"wait, {count} at once", text, wait, "s")
    return result


@dataclass(frozen=True, kw_only=True)
class Room:
    """What fits in a memory. Bytes."""

    memory: float
    utilization: float = 0.9
    reserved: float = 0.0
    """Of the memory in use: for activations and whatever else."""
    weights: float
    kv_per_token: float
    tokens: float
    """Of one request, prompt and answer."""


def room(room: Room, sheet: Sheet, name: str = "") -> int:
    """How many requests fit beside the weights, at their full length; 0 where the weights do not.

    Raises InvalidParameter for what is no size.
    """
    for field in ("memory", "weights", "kv_per_token", "tokens"):
        value = getattr(room, field)
        if not (math.isfinite(value) and value > 0):
            raise InvalidParameter(f"{field} is {value:g}; it is above 0.", field)
    mib, gb = 1 << 20, 1e9
    each = room.kv_per_token * room.tokens
    text = f"{figure(room.kv_per_token / 1024)} KiB a token × {figure(room.tokens)} tokens ÷ 1024"
    sheet.line(f"{name}K and V of a request", text, each / mib, "MiB")
    usable = room.memory * room.utilization - room.reserved
    left = usable - room.weights
    text = (
        f"{figure(room.utilization)} × {figure(room.memory / gb)} GB − {figure(room.reserved / gb)} GB "
        f"− {figure(room.weights / gb)} GB of weights"
    )
    sheet.line(f"{name}left", text, left / gb, "GB")
    if left < 0:
        sheet.note(f"{name or 'The model: '}the weights do not fit.")
        return 0
    text = f"{figure(left / mib)} MiB ÷ {figure(each / mib)} MiB, rounded down"
    return int(sheet.line(f"{name}requests at once", text, int(left / each), "requests"))
