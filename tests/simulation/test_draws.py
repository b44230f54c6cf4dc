"""What is drawn in place of a model's choice: of one place always the same, and with the entropy that is promised."""

from __future__ import annotations

import math

import pytest

from octavo.sampling.ranges import MAX_BEAMS, MAX_N
from octavo.simulation.draws import CHILDREN, candidates, number_of, uniform


def test_a_draw_is_a_function_of_its_place_alone() -> None:
    assert uniform(7, 3) == uniform(7, 3) != uniform(7, 4)
    assert uniform(8, 3) != uniform(7, 3)
    assert {token for token, _ in candidates(7, 3, 11, 8)}.isdisjoint(
        token for token, _ in candidates(7, 3, 12, 8)
    )


def test_uniform_draws_are_uniform() -> None:
    drawn = [uniform(5, position) for position in range(20_000)]
    assert min(drawn) > 0 and max(drawn) < 1
    # standard errors: 0.289 / √20,000 = 0.0020 of the mean
    assert sum(drawn) / len(drawn) == pytest.approx(0.5, abs=0.008)
    below = sum(one < 0.1 for one in drawn) / len(drawn)
    assert below == pytest.approx(0.1, abs=4 * math.sqrt(0.09 / 20_000))


def test_requests_have_seeds_with_room_for_their_children() -> None:
    assert max(MAX_N, MAX_BEAMS) < CHILDREN
    seeds = {number_of(1, index) for index in range(5_000)} | {number_of(2, index) for index in range(5_000)}
    assert len(seeds) == 10_000 and all(seed % CHILDREN == 0 and seed < 2**63 for seed in seeds)


def test_candidates_are_a_distribution_the_likeliest_first_with_an_entropy_of_one_nat() -> None:
    entropies, firsts = [], []
    for position in range(4_000):
        found = candidates(3, position, 17, 32)
        logprobs = [logprob for _, logprob in found]
        assert logprobs == sorted(logprobs, reverse=True) and len({token for token, _ in found}) == 32
        shares = [math.exp(one) for one in logprobs]
        assert 0.999 < sum(shares) <= 1 + 1e-12
        entropies.append(-sum(share * math.log(share) for share in shares))
        firsts.append(shares[0])
    # ψ(2) − ψ(1) = 1, and the mean of the largest piece is Golomb's and Dickman's constant
    assert sum(entropies) / len(entropies) == pytest.approx(1.0, abs=0.04)
    assert sum(firsts) / len(firsts) == pytest.approx(0.62433, abs=0.012)
