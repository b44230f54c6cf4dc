"""An HTTP server on the loopback interface that serves bytes from a table, and fails as told."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import NamedTuple, Self

__all__ = ["Answer", "Server"]


class Answer(NamedTuple):
    """What a path answers."""

    body: bytes
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    ranges: bool = True
    """Whether `Range: bytes=N-` is honoured."""


class Server:
    """`url` is its address; `answers` maps paths to answers and may change at any time.

    `cuts`: for successive GETs, after how many bytes of the body the connection breaks.
    `requests`: (method, path, Range or None), in order. `tokens`: the Authorization headers.
    """

    def __init__(self, answers: dict[str, Answer] | None = None) -> None:
        self.answers = answers or {}
        self.cuts: list[int] = []
        self.requests: list[tuple[str, str, str | None]] = []
        self.tokens: set[str | None] = set()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                owner._answer(self, send_body=True)

            def do_HEAD(self) -> None:
                owner._answer(self, send_body=False)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _answer(self, handler: BaseHTTPRequestHandler, *, send_body: bool) -> None:
        wanted = handler.headers.get("Range")
        path = handler.path.partition("?")[0]
        self.requests.append((handler.command, path, wanted))
        self.tokens.add(handler.headers.get("Authorization"))
        answer = self.answers.get(path, Answer(b"not found", 404))
        status, body, extra = answer.status, answer.body, list(answer.headers)
        if wanted and answer.ranges and status == 200:
            start = int(wanted.removeprefix("bytes=").partition("-")[0])
            if start >= len(body):
                status, body, extra = 416, b"", [("Content-Range", f"bytes */{len(body)}")]
            else:
                span = f"bytes {start}-{len(body) - 1}/{len(body)}"
                status, body = 206, body[start:]
                extra.append(("Content-Range", span))
        handler.send_response(status)
        for name, value in extra:
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        if not send_body:
            return
        if self.cuts and status in (200, 206):
            body = body[: self.cuts.pop(0)]
            handler.close_connection = True
        handler.wfile.write(body)
