"""Closed forms for waiting in line. Knows rates and seconds; nothing of models."""

from __future__ import annotations

import math

__all__ = ["erlang_b", "erlang_c", "wait_md1_s", "wait_mmc_s"]


def erlang_b(servers: int, load: float) -> float:
    """The chance that all servers are busy and nobody waits (Erlang 1917). `load`: arrivals times service, in servers'
    worth. By the recursion that does not overflow."""
    blocked = 1.0
    for count in range(1, servers + 1):
        blocked = load * blocked / (count + load * blocked)
    return blocked


def erlang_c(servers: int, load: float) -> float:
    """The chance to wait, where those who find all servers busy do. 1 where the load is too much for them."""
    if load >= servers:
        return 1.0
    blocked = erlang_b(servers, load)
    return blocked / (1.0 - load / servers * (1.0 - blocked))


def wait_mmc_s(rate: float, service_s: float, servers: int) -> float:
    """The mean wait in M/M/c, seconds: random arrivals, exponential service. inf where the queue grows for ever."""
    load = rate * service_s
    if load >= servers:
        return math.inf
    return erlang_c(servers, load) * service_s / (servers - load)


def wait_md1_s(rate: float, service_s: float) -> float:
    """The mean wait in M/D/1, seconds: random arrivals, one server that takes as long for each (Pollaczek 1930,
    Khinchine 1932)."""
    load = rate * service_s
    return math.inf if load >= 1.0 else load * service_s / (2.0 * (1.0 - load))
