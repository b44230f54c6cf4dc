"""One engine process as its parent sees it: its start, its end, what it was doing. Knows no message but the first."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from octavo.config import EngineConfig
from octavo.engine.heartbeat import Heartbeat, shared_memory
from octavo.engine.messages import Init
from octavo.engine.wire import frame

__all__ = ["SPARE_S", "Child", "Children", "Death"]

SPARE_S = 5.0
"""After an engine has loaded, until a spare process is started: it would be in the way of the first requests."""

# Pools of other libraries would fight the engine's own threads for its cores.
_ONE_THREAD = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")

_FROM_OUTSIDE = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGQUIT, signal.SIGTERM})
"""Signals that no process sends itself by a fault: a person's, a service manager's, the kernel's when memory is out."""


class Death(NamedTuple):
    """How a process ended."""

    words: str
    outside: bool
    """By no doing of its own, as far as can be told."""


class Child:
    """One engine process and the parent's end of its socket. It imports what any engine needs, and loads a model when
    it is told to begin."""

    def __init__(self, command: Sequence[str]) -> None:
        self.began_s = time.monotonic()
        """When it was told to begin."""
        memory = shared_memory()
        self.heartbeat = Heartbeat(memory)
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._verdict: Death | None = None
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [
                        *command,
                        *("--fd", str(theirs.fileno())),
                        *("--heartbeat", str(memory)),
                        *("--parent", str(os.getpid())),
                    ],
                    stdin=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(), memory),
                    env={**os.environ, **dict.fromkeys(_ONE_THREAD, "1")},
                )
        finally:
            os.close(memory)

    def begin(self, config: EngineConfig) -> bool:
        """Load this. False: the process has died, which its connection and its `end` tell too."""
        self.began_s = time.monotonic()
        try:
            # The first message to a fresh socket: it fits the buffer, and cannot block.
            self.socket.sendall(frame(Init(config)))
        except OSError:
            return False
        return True

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def stopped(self) -> bool:
        """A signal or a debugger holds it: it will go on when that lets it."""
        with contextlib.suppress(OSError):  # gone, or a system without /proc
            state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
            return state in ("T", "t")
        return False

    def condemn(self, why: str, *, outside: bool = False) -> None:
        """Kill it, for a reason that its end does not tell."""
        self._verdict = Death(why, outside)
        self._process.kill()

    async def end(self, patience_s: float) -> Death:
        """Wait for the exit, kill after `patience_s`; how it ended."""
        self.socket.close()  # harmless where a transport has taken it over and closed it
        deadline = time.monotonic() + patience_s
        while self._process.poll() is None:
            if time.monotonic() > deadline:
                self._process.kill()
            await asyncio.sleep(0.002)
        code = self._process.returncode
        if self._verdict is not None:
            return self._verdict
        return Death(f"signal {-code}" if code < 0 else f"exit code {code}", -code in _FROM_OUTSIDE)

    def kill(self) -> None:
        """End it and wait for that, where no event loop has it: a spare one, or one whose client never got a loop."""
        self.socket.close()
        self._process.kill()
        self._process.wait()


class Children:
    """Starts one process after the other with one configuration, and keeps a spare one: an interpreter that has
    imported everything saves a third of a second when the other dies."""

    def __init__(self, config: EngineConfig, command: Sequence[str]) -> None:
        self._config = config
        self._command = command
        self._spare: Child | None = None
        self._closed = False

    def begin(self) -> Child:
        """One that loads: the spare one, or a new one."""
        child, self._spare = self._spare, None
        if child is not None:
            if child.begin(self._config):
                return child
            child.kill()  # nobody looks after a spare one: it was gone
        child = Child(self._command)
        child.begin(self._config)
        return child

    def prepare(self) -> None:
        """Have a spare one."""
        if self._spare is None and not self._closed:
            self._spare = Child(self._command)

    def close(self) -> None:
        """There is no spare one any more."""
        self._closed = True
        if self._spare is not None:
            self._spare.kill()
            self._spare = None
