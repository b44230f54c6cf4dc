"""The choice of a token: the NumPy truth of `ChoiceRule`. Knows one row of logits and one history, no model.

Every other implementation is tested against this one. Randomness is a counter, so a choice is a function of
the logits, the history and the rule: there is no state to keep, to lose or to restore.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from octavo.backends.base import ChoiceRule, TokenSample

__all__ = ["adjust", "choose", "gumbel", "kept", "largest", "log_probabilities", "philox", "score"]

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]

PHILOX_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
PHILOX_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
WORD = 0xFFFFFFFF
SMALLEST_NORMAL = 2.0**-126  # of float32


def philox(counter: Sequence[NDArray[np.uint64] | int], key: tuple[int, int]) -> NDArray[np.uint32]:
    """Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3").

    `counter`: four 32-bit words, each a number or an array [n]; `key`: two 32-bit words. Returns [n, 4].
    """
    c0, c1, c2, c3 = np.broadcast_arrays(*(np.atleast_1d(np.asarray(word, np.uint64)) for word in counter))
    k0, k1 = key
    word, half = np.uint64(WORD), np.uint64(32)
    for _ in range(10):
        p0, p1 = np.uint64(PHILOX_MULTIPLIERS[0]) * c0, np.uint64(PHILOX_MULTIPLIERS[1]) * c2
        c0, c1, c2, c3 = (
            (p1 >> half) ^ c1 ^ np.uint64(k0),
            p1 & word,
            (p0 >> half) ^ c3 ^ np.uint64(k1),
            p0 & word,
        )
        k0, k1 = (k0 + PHILOX_KEY_STEPS[0]) & WORD, (k1 + PHILOX_KEY_STEPS[1]) & WORD
    return np.stack([c0, c1, c2, c3], axis=-1).astype(np.uint32)


def gumbel(seed: int, index: int, ids: Ids) -> NDArray[np.float64]:
    """Standard Gumbel noise of output `index` for each token id, [len(ids)]: step 5 of `ChoiceRule`.

    The argmax of logits plus this noise is a draw from their softmax (Gumbel 1954; Maddison et al. 2014,
    arXiv:1411.0030).
    """
    words = philox((index, (ids // 4).astype(np.uint64), 0, 0), (seed & WORD, seed >> 32 & WORD))
    uniform = (words[np.arange(len(ids)), ids % 4] + 0.5) / 2.0**32
    noise: NDArray[np.float64] = -np.log(-np.log(uniform))
    return noise


def largest(values: Floats, k: int) -> Ids:
    """The places of the `k` largest values, descending; ties in ascending order of place."""
    k = min(k, len(values))
    if k == 0:
        return np.empty(0, np.int64)
    edge = np.partition(values, len(values) - k)[len(values) - k]
    candidates = np.flatnonzero(values >= edge)
    return candidates[np.argsort(-values[candidates], kind="stable")[:k]]


def adjust(
    logits: Floats, history: Sequence[int], rule: ChoiceRule, mask: NDArray[np.int32] | None = None
) -> Floats:
    """Steps 1–3 of `ChoiceRule`: penalties, bias, mask. `logits` [vocab] is left as it is."""
    row = logits.copy()
    output = history[rule.prompt_tokens :]

    seen = np.unique(np.asarray(history, np.int64))
    r = np.float32(rule.repetition)
    row[seen] = np.where(row[seen] > 0, row[seen] / r, row[seen] * r)

    seen, counts = np.unique(np.asarray(output, np.int64), return_counts=True)
    row[seen] -= np.float32(rule.frequency) * counts.astype(np.float32) + np.float32(rule.presence)

    for token, bias in rule.bias:
        row[token] += np.float32(bias)
    if mask is not None:
        allowed = np.unpackbits(mask.view(np.uint8), count=len(row), bitorder="little")
        row[allowed == 0] = -np.inf
    if len(output) < rule.min_tokens:
        row[list(rule.banned_early)] = -np.inf
    return row


def kept(t: Floats, rule: ChoiceRule) -> Ids:
    """The ids that survive top_k, top_p and min_p (step 4 of `ChoiceRule`), the largest t first.

    `t` [vocab]: adjusted logits over temperature. top_p works on exp(t − max t) and its sums in float64.
    Without any filter the order does not matter, and the ids come ascending.
    """
    if rule.top_k <= 0 and rule.top_p >= 1.0 and rule.min_p <= 0.0:
        return np.flatnonzero(t > -np.inf)
    ids = largest(t, rule.top_k if rule.top_k > 0 else len(t))
    ids = ids[t[ids] > -np.inf]
    if rule.top_p < 1.0 and len(ids):
        running = np.cumsum(np.exp((t[ids] - t[ids[0]]).astype(np.float64)))
        ids = ids[: np.searchsorted(running, rule.top_p * running[-1]) + 1]
    if rule.min_p > 0.0 and len(ids):
        ids = ids[t[ids] >= t[ids[0]] + np.float32(np.log(rule.min_p))]
    return ids


def choose(
    logits: Floats, history: Sequence[int], rule: ChoiceRule, mask: NDArray[np.int32] | None = None
) -> int:
    """The token after `history`: the whole of `ChoiceRule`. `logits` float32 [vocab]; `mask` as in `Backend`."""
    if np.isnan(logits).any():
        return -1
    adjusted = adjust(logits, history, rule, mask)
    best = int(np.argmax(adjusted))  # of equals the first, here and below
    if adjusted[best] == -np.inf:
        return -1
    if rule.temperature < SMALLEST_NORMAL:
        return best
    with np.errstate(over="ignore"):
        t = adjusted / np.float32(rule.temperature)
    if t.max() == np.inf:
        return int(np.argmax(t))
    ids = np.sort(kept(t, rule))
    noise = gumbel(rule.seed, len(history[rule.prompt_tokens :]), ids)
    return int(ids[np.argmax(t[ids].astype(np.float64) + noise)])


def log_probabilities(logits: Floats) -> Floats:
    """Natural logarithms of softmax(`logits`) [vocab], computed in float64 and rounded once."""
    wide = logits.astype(np.float64)
    wide -= wide.max()
    logprobs: Floats = (wide - np.log(np.exp(wide).sum())).astype(np.float32)
    return logprobs


def score(logits: Floats, token: int, top: int) -> TokenSample:
    """`token` with its log-probability under the raw `logits` [vocab], and the `top` most likely ids."""
    logprobs = log_probabilities(logits)
    best = tuple((int(i), float(logprobs[i])) for i in largest(logits, top))
    return TokenSample(token, float(logprobs[token]), best)
