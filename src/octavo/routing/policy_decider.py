"""A policy as a gateway's decider: which tier a prompt goes to, by probabilities and a threshold. Knows no HTTP.

A policy with an embedding computes for some milliseconds; that happens in a thread, one prompt at a time, so that
streams of other requests go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.errors import OctavoError, SettingsError
from octavo.routing.decider import Verdict
from octavo.routing.policy import Decision, Policy
from octavo.routing.starting import NAMES, begin, load, read

if TYPE_CHECKING:
    from octavo.routing.embedding import Embedder
    from octavo.routing.tiers import Deciding, Tiers

__all__ = ["PolicyDecider"]

_logger = logging.getLogger(__name__)

STARTING = "starting"


class PolicyDecider:
    """Decides by a policy."""

    def __init__(
        self,
        decide: Callable[[str], Decision],
        tiers: Mapping[str, str],
        default: str,
        *,
        apart: bool = False,
        scores: Sequence[float] = (),
    ) -> None:
        """`tiers`: by the policy's name, ours. `default`: who answers where there is no text to look at. `apart`: in a
        thread of its own. `scores`: of held-out rows that were learnt from."""
        self._decide = decide
        self._tiers = tiers
        self._default = default
        self._scores = scores
        self.embedder: Embedder | None = None
        """The model that looks at prompts, where there is one."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="octavo-decider") if apart else None

    @classmethod
    def of(cls, tiers: Tiers, folder: Path) -> PolicyDecider:
        """As the tiers' file says; a policy's path begins at `folder`. Raises SettingsError, RoutingError and, for an
        embedding, ModelError."""
        deciding = tiers.deciding
        assert deciding is not None
        name, threshold = deciding.policy, deciding.threshold
        if name == STARTING:
            for one in NAMES:
                load(one)  # now, and not with the first request
            names = _ours(load(NAMES[0]).file.tiers, deciding, tiers)
            return cls(lambda prompt: begin(prompt, threshold), names, tiers.general.default)
        if name in NAMES or name.endswith(".json"):
            starting = load(name) if name in NAMES else read(folder / name)
            names = _ours(starting.file.tiers, deciding, tiers)
            return cls(lambda prompt: starting.decide(prompt, threshold), names, tiers.general.default)
        path = folder / name
        if path.is_dir():
            raise SettingsError(f"[decider] policy {name!r} is a folder, and a file is asked for.")
        if not path.exists():
            known = ", ".join((STARTING, *NAMES))
            raise SettingsError(f"[decider] policy is {name!r}, which is no file and none of {known}.")
        return cls.by(Policy.load(path), tiers)

    @classmethod
    def by(cls, policy: Policy, tiers: Tiers, before: PolicyDecider | None = None) -> PolicyDecider:
        """A policy that was read. `before`: who decided until now; its model is kept where it is the same. Raises
        SettingsError and, for an embedding, ModelError."""
        deciding = tiers.deciding
        assert deciding is not None
        threshold = deciding.threshold
        names = _ours(policy.header.tiers, deciding, tiers)
        if policy.header.embedding is None:
            policy.decide("warm", None, threshold)
            return cls(
                lambda prompt: policy.decide(prompt, None, threshold),
                names,
                tiers.general.default,
                scores=policy.header.scores,
            )
        from octavo.routing.embedding import Embedder  # a model and the kernels

        kept = None if before is None else before.embedder
        if kept is not None and kept.spec != policy.header.embedding:
            kept = None
        embedder = kept or Embedder.of(policy.header.embedding)
        if kept is None:
            policy.decide("warm", embedder, threshold)
        made = cls(
            lambda prompt: policy.decide(prompt, embedder, threshold),
            names,
            tiers.general.default,
            apart=True,
            scores=policy.header.scores,
        )
        made.embedder = embedder
        if kept is not None and before is not None:  # one prompt at a time, whoever decides
            made._thread = before._thread
        return made

    def scores(self) -> Sequence[float]:
        """Of held-out rows that the policy was trained on; none where it does not say."""
        return self._scores

    def names(self) -> tuple[str, ...]:
        """Our tiers, in the order of the policy's."""
        return tuple(self._tiers.values())

    async def decide(self, prompt: str) -> Verdict:
        """The policy's tier; the default one where the prompt is no text, or the policy fails."""
        if not prompt.strip():
            return Verdict(self._default, None, "default tier: no text to decide by")
        try:
            if self._thread is None:
                found = self._decide(prompt)
            else:
                loop = asyncio.get_running_loop()
                found = await loop.run_in_executor(self._thread, self._decide, prompt)
        except OctavoError as error:
            _logger.warning("the decider failed, and the default tier answers: %s", error)
            return Verdict(self._default, None, "default tier: the decider failed")
        score = found.score if found.probabilities else None  # else it was not looked at
        return Verdict(self._tiers[found.tier], score, found.reason, found.abstained)


def _ours(names: tuple[str, ...], deciding: Deciding, tiers: Tiers) -> dict[str, str]:
    """Our tier for each of the policy's. Raises SettingsError."""
    if unknown := [name for name in deciding.tiers if name not in names]:
        raise SettingsError(
            f"[decider] tiers has {unknown[0]!r}, which the policy {deciding.policy} does not know; it has "
            f"{', '.join(names)}."
        )
    found = {name: deciding.tiers.get(name, name) for name in names}
    for name, ours in found.items():
        if ours not in tiers.by_name:
            raise SettingsError(
                f"The policy {deciding.policy} decides for {name!r}, which is no tier here; say which is meant: "
                f"[decider] tiers = {{ {name} = {tiers.names[0]!r} }}."
            )
    return found
