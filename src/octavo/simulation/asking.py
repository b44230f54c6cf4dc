"""How the requests of a workload are asked: with how many answers each, or with beams. Knows no engine."""

from __future__ import annotations

import msgspec

from octavo.sampling.params import SamplingParams
from octavo.simulation.draws import number_of
from octavo.workload.request import Request

__all__ = ["Asking"]


class Asking(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The same for all of them. Raises InvalidParameter when built out of the API's ranges."""

    n: int = 1
    """Answers to each prompt, drawn by chance where there are several."""
    beam_width: int = 0
    """Beam search with so many, of which the n best are told; 0: none."""

    def __post_init__(self) -> None:
        self._params(1, 0)

    def params(self, request: Request) -> SamplingParams:
        """Answers have just the tokens that the workload says."""
        return self._params(request.output_tokens, number_of(request.seed, request.index))

    def _params(self, tokens: int, seed: int) -> SamplingParams:
        return SamplingParams(
            n=self.n,
            beam_width=self.beam_width,
            max_tokens=tokens,
            temperature=0.0 if self.beam_width or self.n == 1 else 1.0,
            seed=seed,
            ignore_eos=True,
        )
