"""The generator: pinned numbers, its functions against the C library's, its distributions against theory."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from octavo.workload.draws import Draws, exp, log, power, token_ids


def test_the_numbers_are_pinned() -> None:
    """These hold on every machine and Python version; whoever changes them changes everybody's workloads."""
    draws = Draws(7, "session", 3)
    assert [draws.uniform().hex() for _ in range(3)] == PINNED_UNIFORM
    draws = Draws(7, "session", 3)
    assert [draws.normal().hex(), draws.gamma(0.3).hex(), draws.exponential().hex()] == PINNED_SHAPED
    assert token_ids(7, "a", 0, 5, 32_000) == PINNED_TOKENS


PINNED_UNIFORM = ["0x1.d4ef8f02104e9p-1", "0x1.cf8919aafa796p-2", "0x1.265f891db50cep-2"]
PINNED_SHAPED = ["0x1.acf52a9a27b3ep-1", "0x1.64b09189c153bp-2", "0x1.1f0b9bf5dfb00p+0"]
PINNED_TOKENS = [18313, 30061, 20493, 11309, 26366]


def test_logarithm_and_exponential_are_the_c_librarys_within_rounding() -> None:
    source = random.Random(1)
    for _ in range(5000):
        x = math.exp(source.uniform(-700, 700))
        assert log(x) == pytest.approx(math.log(x), rel=1e-15, abs=1e-15)
        y = source.uniform(-700, 700)
        assert exp(y) == pytest.approx(math.exp(y), rel=4e-16)
    near = [1 + source.uniform(-1e-3, 1e-3) for _ in range(1000)]
    assert [log(x) for x in near] == pytest.approx([math.log(x) for x in near], rel=1e-15, abs=1e-17)
    assert log(1.0) == 0.0 and exp(0.0) == 1.0 and exp(-1e9) == 0.0 and math.isfinite(exp(1e9))
    assert power(2.0, 10.0) == pytest.approx(1024.0, rel=1e-14)


def test_paths_are_streams_of_their_own() -> None:
    seen = {
        Draws(seed, *path).uniform() for seed in (1, 2) for path in (("a",), ("a", 1), ("a", 11), ("b", 1))
    }
    assert len(seen) == 8
    one, two = Draws(1, "a"), Draws(1, "b")
    a, b = [one.uniform() for _ in range(4000)], [two.uniform() for _ in range(4000)]
    assert abs(statistics.correlation(a, b)) < 4 / math.sqrt(4000)


def test_numbers_are_uniform() -> None:
    draws = Draws(3, "u")
    values = sorted(draws.uniform() for _ in range(20_000))
    assert values[0] > 0.0 and values[-1] < 1.0
    # Kolmogorov-Smirnov; 1.95/√n is passed by chance once in 1,000 seeds, and the seed is fixed
    distance = max(max((i + 1) / 20_000 - v, v - i / 20_000) for i, v in enumerate(values))
    assert distance < 1.95 / math.sqrt(20_000)
    counts = [0] * 7
    for _ in range(7000):
        counts[draws.below(7)] += 1
    assert sum((count - 1000) ** 2 / 1000 for count in counts) < 22.5  # chi² with 6 degrees, p = 0.001


@pytest.mark.parametrize("shape", [0.25, 3.7])
def test_gamma_has_its_mean_and_variance(shape: float) -> None:
    draws, n = Draws(5, "gamma"), 15_000
    values = [draws.gamma(shape) for _ in range(n)]
    error = math.sqrt(shape / n)
    assert abs(statistics.fmean(values) - shape) < 4 * error
    spread = math.sqrt((6 / shape + 2) / n)  # of the sample variance, relative: excess kurtosis is 6/shape
    assert abs(statistics.pvariance(values) / shape - 1) < 4 * spread


def test_normal_is_normal() -> None:
    draws = Draws(5, "normal")
    values = sorted(draws.normal() for _ in range(20_000))
    normal = statistics.NormalDist()
    distance = max(abs((i + 0.5) / 20_000 - normal.cdf(v)) for i, v in enumerate(values))
    assert distance < 1.95 / math.sqrt(20_000)


def test_a_text_of_tokens_begins_alike_at_every_length() -> None:
    long = token_ids(1, "key", 0, 1000, 500)
    assert token_ids(1, "key", 0, 10, 500) == long[:10]
    assert token_ids(1, "key", 990, 1000, 500) == long[990:]
    assert set(long) <= set(range(500)) and len(set(long)) > 400
    assert token_ids(2, "key", 0, 10, 500) != long[:10]
