"""The acceptance profile: written, read again, and refused where it is something else."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from octavo.errors import SettingsError
from octavo.speculation.profile import Acceptance, Profile

EDIT = Acceptance(
    work="edit",
    streams=1,
    tokens=110,
    drafts=20,
    draft_tokens=75,
    reached_at=(20, 16, 8, 2, 0),
    accepted_at=(18, 9, 4, 1, 0),
    times_as_fast=1.8,
)
PROFILE = Profile(model="m", drafter="auto", temperature=0.0, works=(EDIT,))


def test_what_it_says() -> None:
    assert EDIT.right == 32 / 75
    assert EDIT.drafting == 20 / (110 - 32)
    assert [EDIT.chance(place) for place in range(6)] == [0.9, 9 / 16, 0.5, 0.5, 0.0, 0.0]
    nothing = msgspec.structs.replace(EDIT, drafts=0, draft_tokens=0, reached_at=(), accepted_at=())
    assert nothing.right == nothing.drafting == nothing.chance(0) == 0.0


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    PROFILE.write(path)
    assert Profile.read(path) == PROFILE
    assert path.read_text().count("\n") > 10  # for people, too


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: "", "no acceptance profile"),
        (lambda text: text.replace('"format": 1', '"format": 2'), "format"),
        (lambda text: text.replace('"drafts"', '"draughts"'), "draughts"),
        (lambda text: text.replace('"tokens": 110,', ""), "tokens"),
    ],
)
def test_what_is_none(tmp_path: Path, change: object, words: str) -> None:
    path = tmp_path / "profile.json"
    PROFILE.write(path)
    path.write_text(change(path.read_text()))  # type: ignore[operator]
    with pytest.raises(SettingsError, match=words):
        Profile.read(path)
    with pytest.raises(SettingsError, match=r"absent\.json cannot be read: No such file"):
        Profile.read(tmp_path / "absent.json")
