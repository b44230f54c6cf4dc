"""How often guesses were right, by kind of work and by place: what a simulation needs to know of it. A JSON file.

`python -m benchmarks.speculation --json FILE` measures one. docs/speculation-profile.md says what its fields mean.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from octavo.errors import SettingsError

__all__ = ["Acceptance", "Profile"]


class Acceptance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was guessed for one kind of work."""

    work: str
    streams: int
    """That decoded at once."""
    tokens: int
    """Of all answers."""
    drafts: int
    """Steps of a stream in which something was guessed."""
    draft_tokens: int
    """That were guessed and computed."""
    reached_at: tuple[int, ...]
    """By place in the guess, from its first token on: how often one was tried there with all before it right."""
    accepted_at: tuple[int, ...]
    """How often that token was right too."""
    times_as_fast: float
    """As without guesses, on the machine that measured it."""

    @property
    def right(self) -> float:
        """Share of the guessed tokens that were right."""
        return sum(self.accepted_at) / max(self.draft_tokens, 1)

    @property
    def drafting(self) -> float:
        """Share of a stream's steps in which something was guessed."""
        return self.drafts / max(self.tokens - sum(self.accepted_at), 1)

    def chance(self, place: int) -> float:
        """That a token at `place` is right, if those before it are; 0 where none was tried."""
        reached = self.reached_at[place] if place < len(self.reached_at) else 0
        return self.accepted_at[place] / reached if reached else 0.0


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model's, with one drafter."""

    format: Literal[1] = 1
    model: str
    drafter: str
    """What `--speculation` was."""
    draft_model: str | None = None
    temperature: float
    works: tuple[Acceptance, ...]

    def write(self, path: Path) -> None:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")

    @classmethod
    def read(cls, path: Path) -> Profile:
        """Raises SettingsError for a file that is not there or is no profile."""
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except OSError as error:
            raise SettingsError(f"The acceptance profile {path} cannot be read: {error.strerror}.") from None
        except msgspec.DecodeError as error:
            raise SettingsError(f"{path} is no acceptance profile: {error}.") from None
