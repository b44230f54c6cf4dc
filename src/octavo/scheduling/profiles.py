"""What a request needs to be good, by the kind of use: targets, not knobs. Knows no request."""

from __future__ import annotations

from typing import get_args

import msgspec

from octavo.config import ProfileName
from octavo.scheduling.inputs import Service

__all__ = ["PROFILES", "Targets", "targets_of"]


class Targets(msgspec.Struct, frozen=True):
    """Seconds. None: as long as it takes."""

    ttft_s: float | None = None
    """From arrival to the first token."""
    tbt_s: float | None = None
    """Between two tokens: no step that it decodes in takes longer."""
    sentence_tbt_s: float | None = None
    """Between two tokens of the first sentence, where that matters more than the rest."""
    e2e_s: float | None = None
    """From arrival to the last token; what its first token leaves of it is divided among the others."""
    slack_only: bool = False
    """It takes what all others leave."""

    def but(self, ttft_s: float | None, tbt_s: float | None) -> Targets:
        """The same with these instead, where they are given."""
        if ttft_s is None and tbt_s is None:
            return self
        given = {"ttft_s": ttft_s, "tbt_s": tbt_s}
        return msgspec.structs.replace(
            self, **{name: value for name, value in given.items() if value is not None}
        )

    def between_s(self, output_tokens: int | None, *, in_first_sentence: bool) -> float | None:
        """The step time that suits a request of `output_tokens` at most."""
        wanted = [self.tbt_s]
        if in_first_sentence:
            wanted.append(self.sentence_tbt_s)
        if self.e2e_s is not None and output_tokens:
            wanted.append((self.e2e_s - (self.ttft_s or 0.0)) / output_tokens)
        return min((one for one in wanted if one is not None), default=None)


PROFILES: dict[ProfileName, Targets] = {
    # A reader follows about ten tokens a second, and notices a pause of a tenth.
    "chat": Targets(ttft_s=0.5, tbt_s=0.1),
    # A suggestion that comes later than 200 ms has been typed over.
    "autocomplete": Targets(ttft_s=0.1, e2e_s=0.2),
    # Speech begins with a whole sentence, within 300 ms; a voice is slower than any engine from there on.
    "voice": Targets(ttft_s=0.1, tbt_s=0.15, sentence_tbt_s=0.015),
    "rag": Targets(ttft_s=1.0, tbt_s=0.1, e2e_s=5.0),
    "batch": Targets(slack_only=True),
}
"""By name: what each asks of a step too."""

assert set(PROFILES) == set(get_args(ProfileName))


def targets_of(service: Service, usual: Targets) -> Targets:
    """A request's targets: its own, its profile's, or the server's usual ones."""
    targets = PROFILES[service.profile] if service.profile else usual
    return targets.but(service.ttft_s, service.tbt_s)
