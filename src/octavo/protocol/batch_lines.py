"""The lines of a batch's files: requests in, results out, a JSON object each. Knows no file and no server."""

from __future__ import annotations

import hashlib
import uuid
from typing import Any, NamedTuple

import msgspec

from octavo.errors import InvalidParameter
from octavo.protocol.batches import BatchError, BatchUsage
from octavo.protocol.body import decode_body

__all__ = [
    "MAX_LINES",
    "MAX_LINE_BYTES",
    "InputCheck",
    "RequestLine",
    "add_usage",
    "answered",
    "read_line",
    "unanswered",
    "with_seed",
]

MAX_LINES = 50_000
MAX_LINE_BYTES = 32 << 20
"""As of a body that comes by HTTP."""
_ENDS_OF_LINES = "\x85\u2028\u2029"
"""Beside the control characters, which JSON escapes anyway."""
_MAX_ERRORS = 100
"""That are told; a file of another kind would have one in every line."""
_MAX_ID = 512
"""Characters of a custom_id."""


class RequestLine(msgspec.Struct, kw_only=True):
    """One request of a batch."""

    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


class _WholeLine(msgspec.Struct, kw_only=True):
    """The same, looked at more closely."""

    custom_id: str
    method: str
    url: str
    body: dict[str, Any]


_lines = msgspec.json.Decoder(RequestLine)
_body = msgspec.json.Decoder(dict[str, msgspec.Raw])


class _Details(msgspec.Struct):
    cached_tokens: int = 0
    reasoning_tokens: int = 0


class _Usage(msgspec.Struct):
    """In the words of either API: chat's and completions', or that of responses."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None
    input_tokens_details: _Details | None = None
    output_tokens_details: _Details | None = None


class _UsedBody(msgspec.Struct):
    usage: _Usage | None = None


class _UsedResponse(msgspec.Struct):
    body: _UsedBody


class _UsedLine(msgspec.Struct):
    response: _UsedResponse


_used = msgspec.json.Decoder(_UsedLine)


class _Refused(NamedTuple):
    code: str
    message: str
    param: str | None


def read_line(text: bytes) -> RequestLine:
    """A line that `InputCheck` has found good."""
    return _lines.decode(text)


class InputCheck:
    """Looks at each line of a file before the first runs: what is wrong, and how many there are."""

    def __init__(self, endpoint: str) -> None:
        self.total = 0
        self.errors: list[BatchError] = []
        self._endpoint = endpoint
        self._seen = set[str]()
        self._found = 0

    @property
    def over(self) -> bool:
        """There are too many lines; no more need be looked at."""
        return self.total > MAX_LINES

    def look(self, number: int, text: bytes) -> None:
        """The line `number`, from 1, which is not blank."""
        self.total += 1
        if self.over:
            self._note(None, _Refused("too_many_tasks", f"The file has more than {MAX_LINES} lines.", None))
        elif refused := self._refusal(text):
            self._note(number, refused)

    def finish(self) -> list[BatchError]:
        """All that is wrong, at most a hundred errors and one that says how many more there are."""
        if not self.total:
            self._note(
                None, _Refused("empty_file", "The file has no line; send one JSON object in each.", None)
            )
        if self._found > len(self.errors):
            more = self._found - len(self.errors)
            self.errors.append(
                BatchError(
                    code="more_errors", line=None, message=f"{more} more lines have errors.", param=None
                )
            )
        return self.errors

    def _note(self, number: int | None, refused: _Refused) -> None:
        self._found += 1
        if len(self.errors) < _MAX_ERRORS:
            self.errors.append(
                BatchError(code=refused.code, line=number, message=refused.message, param=refused.param)
            )

    def _refusal(self, text: bytes) -> _Refused | None:
        if len(text) > MAX_LINE_BYTES:
            return _Refused("line_too_long", f"The line has more than {MAX_LINE_BYTES} bytes.", None)
        try:
            line, _ = decode_body(text, _WholeLine)
        except InvalidParameter as error:
            code = "invalid_json_line" if error.param is None else "invalid_request"
            return _Refused(code, str(error).replace("The body", "The line"), error.param)
        if not 0 < len(line.custom_id) <= _MAX_ID:
            return _Refused("invalid_request", f"custom_id must have 1 to {_MAX_ID} characters.", "custom_id")
        if line.custom_id in self._seen:
            message = (
                f"custom_id is {line.custom_id[:60]!r}, which an earlier line has; each line needs its own."
            )
            return _Refused("duplicate_custom_id", message, "custom_id")
        self._seen.add(line.custom_id)
        if line.method != "POST":
            return _Refused("invalid_method", f"method is {line.method[:20]!r}; it must be 'POST'.", "method")
        if line.url != self._endpoint:
            message = f"url is {line.url[:60]!r}, and the batch is for {self._endpoint}; they must be equal."
            return _Refused("mismatched_endpoint", message, "url")
        for name in ("stream", "background"):
            if line.body.get(name) not in (None, False):
                return _Refused(
                    "invalid_request",
                    f"body.{name} is set, and a batch has whole answers; leave it out.",
                    f"body.{name}",
                )
        return None


def with_seed(body: bytes, seed: int, number: int) -> bytes:
    """`body` with a seed of its own, where it names none: the line answers the same whenever it runs. `seed` is the
    batch's, `number` the line's."""
    fields = _body.decode(body)
    if bytes(fields.get("seed", b"null")) != b"null":
        return body
    digest = hashlib.sha256(f"{seed} {number}".encode()).digest()
    fields["seed"] = msgspec.Raw(
        str(int.from_bytes(digest[:8], "big") >> 11).encode()
    )  # exact in every JSON reader
    return msgspec.json.encode(fields)


def answered(custom_id: str, status: int, body: bytes, request_id: str | None) -> bytes:
    """The result of a request that was answered with `body`, which is JSON and stays as it is, but for characters at
    which readers of lines may split it (Python's do): those are escaped, which JSON takes for the same."""
    if b"\n" in body or b"\r" in body:
        body = msgspec.json.format(body, indent=-1)
    for character in _ENDS_OF_LINES:
        body = body.replace(character.encode(), f"\\u{ord(character):04x}".encode())
    start = msgspec.json.encode({"id": _new_id(), "custom_id": custom_id})[:-1]
    response = msgspec.json.encode(
        {"status_code": status, "request_id": request_id or f"req_{uuid.uuid4().hex}"}
    )[:-1]
    return b"".join((start, b',"response":', response, b',"body":', body, b'},"error":null}\n'))


def add_usage(total: BatchUsage, result: bytes) -> None:
    """Add the tokens of a result that `answered` made of a good answer; none where it does not tell them."""
    usage = _used.decode(result).response.body.usage
    if usage is None:
        return
    taken, made = usage.prompt_tokens or usage.input_tokens, usage.completion_tokens or usage.output_tokens
    total.input_tokens += taken
    total.output_tokens += made
    total.total_tokens += taken + made
    if read := usage.prompt_tokens_details or usage.input_tokens_details:
        total.input_tokens_details.cached_tokens += read.cached_tokens
    if written := usage.completion_tokens_details or usage.output_tokens_details:
        total.output_tokens_details.reasoning_tokens += written.reasoning_tokens


def unanswered(custom_id: str, code: str, message: str) -> bytes:
    """The result of a request that was not made."""
    error = {"code": code, "message": message}
    line = {"id": _new_id(), "custom_id": custom_id, "response": None, "error": error}
    return msgspec.json.encode(line) + b"\n"


def _new_id() -> str:
    return f"batch_req_{uuid.uuid4().hex}"
