"""The exception tree. Knows whose fault an error is, and nothing about HTTP.

    OctavoError
    ├── ClientError            the caller can mend it (HTTP 4xx, exit code 2)
    │   ├── InvalidParameter   a value out of range, of the wrong type, unknown
    │   ├── CapacityError      a request that can never fit, with the numbers
    │   ├── ModelError         a model file that is missing, damaged or not supported
    │   ├── SettingsError      a setting of the server that cannot work
    │   ├── WorkloadError      a description of a workload, or a trace, that cannot be used
    │   ├── RoutingError       labels, a policy or a target that cannot be used for routing
    │   └── BenchError         a measurement that cannot be made, or a record that cannot be read
    └── ServerError            ours (HTTP 5xx, exit code 1)
        ├── EngineDied         the engine process ended and could not be brought back
        ├── Quarantined        a request that ended the engine, and is not tried again
        ├── DeadlineExceeded   the time that a request may take was over before its answer was complete
        ├── Overloaded         a limit of the server is reached; try again later
        ├── TierFailed         the servers behind a gateway could not answer
        └── StorageError       a disk that is full, or a folder that cannot be used; what needs neither goes on

Every message is one sentence: the name, the value, the reason, a hint.
"""

from __future__ import annotations

__all__ = [
    "BenchError",
    "CapacityError",
    "ClientError",
    "DeadlineExceeded",
    "EngineDied",
    "InvalidParameter",
    "ModelError",
    "OctavoError",
    "Overloaded",
    "Quarantined",
    "RoutingError",
    "ServerError",
    "SettingsError",
    "StorageError",
    "TierFailed",
    "WorkloadError",
]


class OctavoError(Exception):
    """The root of every error that Octavo raises on purpose."""


class ClientError(OctavoError):
    """The caller's fault: the same call will fail again until it is changed."""


class InvalidParameter(ClientError):
    """A request parameter is out of range, of the wrong type, or unknown.

    ``param`` is the name as the caller wrote it (``"top_p"``, ``"messages[2].role"``), or None.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class CapacityError(ClientError):
    """A request that could never be served with this server's memory or limits."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ModelError(ClientError):
    """A model that cannot be found, read, verified, or run."""


class SettingsError(ClientError):
    """Settings that cannot work together or on this machine."""


class WorkloadError(ClientError):
    """A description of a workload, or a trace, that cannot be used."""


class RoutingError(ClientError):
    """Labels, a policy or a target that cannot be used for routing."""


class BenchError(ClientError):
    """A measurement that cannot be made, or a record of one that cannot be read."""


class ServerError(OctavoError):
    """Our fault, or the machine's."""


class EngineDied(ServerError):
    """The engine process ended and could not be brought back."""


class Quarantined(ServerError):
    """A request that ended the engine process again and again: it is not tried again."""


class DeadlineExceeded(ServerError):
    """The time that a request may take, by its own word or the server's, was over before its answer was complete."""


class Overloaded(ServerError):
    """A limit of the server is reached. ``retry_after_s`` is a fair time to wait, in seconds."""

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class TierFailed(ServerError):
    """The servers that a gateway asks could not answer, or one broke off in the middle of its answer."""


class StorageError(ServerError):
    """The disk does not let something be stored or read. ``full``: there is no room left on it."""

    def __init__(self, message: str, *, full: bool = False) -> None:
        super().__init__(message)
        self.full = full
