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
    from octavo.sampling.params import SamplingParams

    params = SamplingParams(max_tokens=max_tokens, temperature=temperature, top_p=top_p, seed=seed)
    if message is None and not sys.stdin.isatty():
        message = sys.stdin.buffer.read().decode(errors="replace")
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


def _talk(conversation: Conversation) -> None:
    """Read and answer lines until the end."""
    from octavo.errors import ClientError

    with suppress(ImportError):
        import readline  # noqa: F401 gives input() its editing and history

    print("Type a message; /help lists the commands.")
    while True:
        try:
            line = input("> ").strip()
        except EOFError:
            print()
            return
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
