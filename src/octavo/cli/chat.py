"""`octavo chat`: a conversation in the terminal. Knows lines and keys; the model runs in this process."""

from __future__ import annotations

import sys
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.cli.local import local_model
from octavo.cli.options import engine_options
from octavo.cli.pull import MODEL_HELP

if TYPE_CHECKING:
    from octavo.llm import LLM
    from octavo.sampling.params import SamplingParams

__all__ = ["chat"]

_HELP = """\
/reset   forget the conversation
/exit    leave (so does Ctrl-D)
/help    this list
Ctrl-C stops an answer."""

_MAX_PIPED_BYTES = 64 << 20

# What a model says may not steer the terminal: control characters but tab and line end become U+FFFD.
_VISIBLE = {code: "\ufffd" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n"}


@engine_options
def chat(
    message: Annotated[
        str | None, typer.Argument(help="One question; without it, a conversation, or what is piped in.")
    ] = None,
    *,
    model: Annotated[str, typer.Option(help=MODEL_HELP)] = "smollm2",
    system: Annotated[str | None, typer.Option(help="A system message before the conversation.")] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="Tokens of an answer; the default is the rest of the context.")
    ] = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.7,
    top_p: Annotated[float, typer.Option(help="Of likely tokens, the share to choose from.")] = 0.95,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same answer.")] = None,
    settings: dict[str, Any],
) -> None:
    """Talk to MODEL here, without a server."""
    from octavo.errors import InvalidParameter
    from octavo.sampling.params import SamplingParams

    params = SamplingParams(max_tokens=max_tokens, temperature=temperature, top_p=top_p, seed=seed)
    if message is None and not sys.stdin.isatty():
        message = _piped()
    for text in (system, message):
        _check_utf8(text or "")
    if message is not None and not message.strip():
        raise InvalidParameter("No message was given; write one, or pipe one in.", "message")
    with local_model(model, settings) as llm:
        conversation = Conversation(llm, params, system)
        if message is not None:
            if not conversation.answer(message):
                raise typer.Exit(130)
        else:
            _talk(conversation)


class Conversation:
    """The messages so far, and answers written to stdout as they come."""

    def __init__(self, llm: LLM, params: SamplingParams, system: str | None) -> None:
        self._llm = llm
        self._params = params
        self._first = [] if system is None else [{"role": "system", "content": system}]
        self.messages = list(self._first)

    def reset(self) -> None:
        """Forget all but the system message."""
        self.messages = list(self._first)

    def answer(self, message: str) -> bool:
        """Ask, and show the answer; False when Ctrl-C ended it. What was said until then is remembered.

        Raises ClientError, and then the message is forgotten.
        """
        asked = [*self.messages, {"role": "user", "content": message}]
        text, whole = "", True
        try:
            with closing(self._llm.stream_chat(asked, self._params)) as pieces:
                for piece in pieces:
                    text += piece
                    sys.stdout.write(piece.translate(_VISIBLE) if sys.stdout.isatty() else piece)
                    sys.stdout.flush()
        except KeyboardInterrupt:
            whole = False
        print(flush=True)
        self.messages = [*asked, {"role": "assistant", "content": text}]
        return whole


def _piped() -> str:
    """What standard input holds; bytes that are no UTF-8 are marked as Python marks them in arguments."""
    from octavo.errors import InvalidParameter

    data = sys.stdin.buffer.read(_MAX_PIPED_BYTES + 1)
    if len(data) > _MAX_PIPED_BYTES:
        raise InvalidParameter(
            f"The input has more than {_MAX_PIPED_BYTES >> 20} MiB; is it a message?", "message"
        )
    return data.decode(errors="surrogateescape")


def _check_utf8(text: str) -> None:
    """Raise InvalidParameter for text from a terminal, a pipe or an argument that had other bytes in it."""
    from octavo.errors import InvalidParameter

    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidParameter(
            f"The input is not UTF-8 (at character {error.start + 1}); set the terminal to UTF-8, or convert the text."
        ) from None


def _talk(conversation: Conversation) -> None:
    """Read and answer lines until the end."""
    from octavo.errors import ClientError, InvalidParameter

    with suppress(ImportError):
        import readline  # noqa: F401 gives input() its editing and history

    print("Type a message; /help lists the commands.")
    while True:
        try:
            line = input("> ").strip()
            _check_utf8(line)
        except EOFError:
            print()
            return
        except UnicodeDecodeError as error:  # where Python does not mark such bytes
            print(f"The input is not UTF-8 ({error.reason}); set the terminal to UTF-8.", file=sys.stderr)
            continue
        except InvalidParameter as error:
            print(error, file=sys.stderr)
            continue
        except KeyboardInterrupt:
            print("\n/exit leaves.")
            continue
        if line == "/exit":
            return
        if line == "/reset":
            conversation.reset()
            print("The conversation is forgotten.")
        elif line.startswith("/"):
            print(_HELP)
        elif line:
            try:
                conversation.answer(line)
            except ClientError as error:
                print(f"{error} (/reset starts again)", file=sys.stderr)
