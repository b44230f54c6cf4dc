"""A conversation that goes on → its ids, without tokenizing again what a model has read or written. Knows no storage.

Text and ids are not the same: a model may write a text in other tokens than a tokenizer would, and a prompt that is
tokenized anew then finds nothing in the prefix cache, and is not what the model itself wrote. So the new prompt is the
ids that are there, and the ids of what the chat template writes behind them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from octavo.errors import InvalidParameter
from octavo.text.chat import ChatTemplate
from octavo.text.conversation import guarded
from octavo.text.tokenizer import Tokenizer

__all__ = ["Earlier", "Prompt", "continued_prompt", "shown_ids"]


class Earlier(NamedTuple):
    """An answer that the conversation goes on from."""

    place: int
    """Of the assistant's message, the answer, in the messages."""
    ids: Sequence[int]
    """The prompt that was answered and what the model wrote, without the token that ended it."""
    digest: str
    """`Prompt.digest` of that prompt."""


class Prompt(NamedTuple):
    """What a model is to read."""

    ids: list[int]
    digest: str
    """Equal digests: the template made the same text of the messages."""
    continued: bool = False
    """It begins with the ids of the earlier answer, as they were."""


def continued_prompt(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    earlier: Earlier | None = None,
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    **kwargs: Any,
) -> Prompt:
    """The prompt for `messages`, with the assistant's turn opened behind them.

    It goes on from `earlier` where the template still writes the earlier part as it did then, the answer in it; all is
    tokenized anew where it does not: other instructions or tools, or a template that leaves out earlier reasoning.
    Raises InvalidParameter as `encode_conversation` does.
    """
    said, mark, end = guarded(tokenizer, {"messages": list(messages), "tools": tools, **kwargs})
    turns = said.pop("messages")

    def render(turns: Sequence[Mapping[str, Any]], *, opened: bool) -> str:
        return template.render(turns, add_generation_prompt=opened, **said)

    text = render(turns, opened=True)
    digest = _digest(text, mark)
    rest = None
    if earlier is not None:
        asked, place = turns[: earlier.place], earlier.place
        try:
            before = render(asked, opened=True)
            told = render(turns[: place + 1], opened=False)
            probe = render([*asked, {"role": "assistant", "content": end}], opened=False)
        except InvalidParameter:  # it takes no conversation that ends there
            before = told = probe = ""
        closing = probe.rpartition(end)[2]
        if (
            end in probe
            and _digest(before, mark) == earlier.digest
            and told.startswith(before)
            and told.endswith(closing)
            and text.startswith(told)
            and all(part in told[len(before) :] for part in _parts(turns[place]))
        ):
            rest = closing + text[len(told) :]
    if earlier is not None and rest is not None:
        ids = tokenizer.encode(rest, allow_special=True, add_bos=False, mark=mark)
        # Where a tokenizer puts a space before a text, only a control token shows that it put none here.
        if not tokenizer.drops_leading_space or (ids and ids[0] in tokenizer.vocabulary.special):
            return Prompt([*earlier.ids, *ids], digest, continued=True)
    return Prompt(tokenizer.encode(text, allow_special=True, mark=mark), digest)


def shown_ids(tokenizer: Tokenizer, tokens: Sequence[int], text: str) -> list[int] | None:
    """The ids of an answer that was cut off to be `text`, as by a stop string: its tokens as far as they are shown,
    and the ids of what is left. None where they cannot be told."""
    shown, ids, nbytes = text.encode(), list[int](), 0
    for token in tokens:
        piece = tokenizer.vocabulary.bytes_of(token, skip_special=True)
        if shown[nbytes : nbytes + len(piece)] != piece:
            break
        ids.append(token)
        nbytes += len(piece)
    left = shown[nbytes:]
    if not left:
        return ids
    if tokenizer.drops_leading_space:
        return None
    try:
        return ids + tokenizer.encode(left.decode(), add_bos=False)
    except UnicodeDecodeError:
        return None


def _parts(message: Mapping[str, Any]) -> list[str]:
    """What a template must write of an answer, or it has rewritten it."""
    calls = [call.get("function", call) for call in message.get("tool_calls") or ()]
    said = [message.get("content"), message.get("reasoning_content"), *(call["name"] for call in calls)]
    return [part.strip() for part in said if isinstance(part, str)]


def _digest(text: str, mark: str) -> str:
    return hashlib.sha256(text.replace(mark, "").encode(errors="surrogatepass")).hexdigest()
