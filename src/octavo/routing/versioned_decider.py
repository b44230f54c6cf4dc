"""A folder of policies as a gateway's decider: a new version decides from the next request on. Knows no HTTP."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.errors import OctavoError
from octavo.routing.decider import Verdict
from octavo.routing.policy_decider import PolicyDecider
from octavo.routing.versions import Version, load, stamp

if TYPE_CHECKING:
    from octavo.routing.tiers import Tiers

__all__ = ["VersionedDecider"]

_logger = logging.getLogger(__name__)


class VersionedDecider:
    """Decides by the folder's current version, and says which that was."""

    def __init__(self, tiers: Tiers, folder: Path) -> None:
        """Raises RoutingError and SettingsError."""
        self.folder = folder
        self._tiers = tiers
        self._stamp = stamp(folder)
        self.version, self._decider = self._load(None)
        self._changing = asyncio.Lock()

    def scores(self) -> Sequence[float]:
        """Of held-out rows that the policy was trained on."""
        return self._decider.scores()

    def names(self) -> tuple[str, ...]:
        """Our tiers, in the order of the policy's."""
        return self._decider.names()

    async def decide(self, prompt: str) -> Verdict:
        """The current version's tier. One that cannot be read leaves the one before in its place."""
        if (now := stamp(self.folder)) != self._stamp:
            async with self._changing:
                if now != self._stamp:
                    await self._change(now)
        version, decider = self.version, self._decider
        verdict = await decider.decide(prompt)
        return replace(verdict, policy=str(version.number))

    async def _change(self, now: tuple[int, int, int]) -> None:
        try:
            version, decider = await asyncio.to_thread(self._load, self._decider)
        except OctavoError as error:
            _logger.error("version %d goes on deciding: %s", self.version.number, error)
        else:
            if version != self.version:
                _logger.info("version %d of the policy decides now: %s", version.number, version.target)
            self.version, self._decider = version, decider
        self._stamp = now

    def _load(self, before: PolicyDecider | None) -> tuple[Version, PolicyDecider]:
        version, policy = load(self.folder)
        return version, PolicyDecider.by(policy, self._tiers, before)
