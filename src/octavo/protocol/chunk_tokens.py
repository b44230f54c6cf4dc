"""The tokens of each event of a stream, as vLLM words them: their ids, and the usage so far. Knows no text.

The fields are those of vLLM's `return_token_ids` (`token_ids` in a choice; `prompt_token_ids` in the first event, in
a completion's choice, or beside a chat's choices) and `stream_options.continuous_usage_stats`.
"""

from __future__ import annotations

import orjson

from octavo.protocol.reply import Choice

__all__ = ["ChunkTokens"]


class ChunkTokens:
    """One stream's. Each token of a choice is told once, with the first event after it was made."""

    def __init__(self, *, ids: bool, usage: bool, prompt_in_choice: bool) -> None:
        self._ids = ids
        self._usage = usage
        self._prompt_in_choice = prompt_in_choice
        self._told: dict[int, int] = {}
        """By the choice's index, how many of its tokens."""

    def of_choice(self, choice: Choice) -> bytes:
        """The next fields of a choice: its tokens that were not told."""
        told = self._told.get(choice.index)
        self._told[choice.index] = len(choice.tokens)
        if not self._ids:
            return b""
        prompt = b""
        if told is None and self._prompt_in_choice:
            prompt = _prompt(choice)
        return b',"token_ids":' + orjson.dumps(choice.tokens[told or 0 :]) + prompt

    def of_event(self, choice: Choice, *, first: bool = False) -> bytes:
        """The fields beside the choices. The usage is that of this choice: with several, each has its own count."""
        prompt = _prompt(choice) if first and self._ids and not self._prompt_in_choice else b""
        if not self._usage:
            return prompt
        asked, said = len(choice.prompt_tokens), self._told.get(choice.index, 0)
        return prompt + b',"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}' % (
            asked,
            said,
            asked + said,
        )


def _prompt(choice: Choice) -> bytes:
    return b',"prompt_token_ids":' + orjson.dumps(list(choice.prompt_tokens))
