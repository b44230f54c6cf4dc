"""The drafters there are, by the names that options use. Knows nothing of them but how to make one."""

from __future__ import annotations

from collections.abc import Callable

from octavo.errors import SettingsError
from octavo.models.store import StoredModel
from octavo.speculation.drafter import Drafter, Several
from octavo.speculation.forced import GrammarDrafter
from octavo.speculation.ngram import NgramDrafter
from octavo.speculation.prediction import PredictionDrafter
from octavo.speculation.suffix import SuffixDrafter

__all__ = ["DRAFTERS", "draft_model_of", "with_draft_folder"]

DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "ngram": lambda: Several(GrammarDrafter(), PredictionDrafter(), NgramDrafter()),
    "suffix": lambda: Several(GrammarDrafter(), PredictionDrafter(), SuffixDrafter()),
    "auto": lambda: Several(GrammarDrafter(), PredictionDrafter(), NgramDrafter(), SuffixDrafter()),
}
"""By what `speculation` may be, beside `off` and a draft model. What a grammar forces and
what a client predicts is always looked at."""
_PREFIX = "draft:"


def draft_model_of(speculation: str) -> str | None:
    """The model that `speculation` names; None where it is another one of its values. Raises SettingsError for none of
    them."""
    if speculation == "off" or speculation in DRAFTERS:
        return None
    model = speculation.removeprefix(_PREFIX)
    if model and model != speculation:
        return model
    raise SettingsError(
        f"speculation is {speculation!r}; it is off, {', '.join(DRAFTERS)}, or draft: and a model, such as "
        "draft:smollm2."
    )


def with_draft_folder(
    speculation: str, opened: Callable[[str], StoredModel]
) -> tuple[str, StoredModel | None]:
    """The same with the folder of its draft model instead of the model's name, and that model, to be kept while it is
    needed; `opened` finds it. Raises SettingsError, and what `opened` raises."""
    name = draft_model_of(speculation)
    if name is None:
        return speculation, None
    model = opened(name)
    return f"{_PREFIX}{model.dir.absolute()}", model
