"""A server's URL, taken apart. Knows no network."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from octavo.errors import BenchError

__all__ = ["Address"]


@dataclass(frozen=True)
class Address:
    """Where a server is."""

    scheme: str
    host: str
    port: int
    path: str
    """What is before /v1, without a slash at its end."""

    @classmethod
    def parse(cls, url: str) -> Address:
        """Of a URL with or without /v1 at its end. Raises BenchError."""
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            port = parts.port
        except ValueError as error:
            raise BenchError(f"{url!r} is no URL ({error}); one looks like http://127.0.0.1:8000.") from None
        if parts.scheme not in ("http", "https"):
            raise BenchError(
                f"{url!r} begins with {parts.scheme}://; only http:// and https:// are measured."
            )
        if not parts.hostname or parts.query or parts.fragment:
            raise BenchError(f"{url!r} is no server's URL; one looks like http://127.0.0.1:8000.")
        if parts.username or parts.password:
            raise BenchError("The URL has a user or a password in it; give a key in an environment variable.")
        path = parts.path.rstrip("/")
        for end in ("/chat/completions", "/completions", "/models", "/v1"):
            path = path.removesuffix(end)
        return cls(parts.scheme, parts.hostname, port or (443 if parts.scheme == "https" else 80), path)

    @property
    def authority(self) -> str:
        """Host and port as the Host header has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = self.port == (443 if self.scheme == "https" else 80)
        return host if usual else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """Without /v1."""
        return f"{self.scheme}://{self.authority}{self.path}"
