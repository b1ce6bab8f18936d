"""Intervals and tests, against SciPy and brute force."""

import itertools

import numpy as np
import pytest
from scipy import stats

from kscout.evaluation.statistics import (
    CONFIDENCE,
    confidence_interval,
    confidence_intervals,
    holm,
    paired_permutation_test,
    std_over_seeds,
)


def _volumes(sizes: list[int]) -> list[str]:
    return [f"v{i}" for i, size in enumerate(sizes) for _ in range(size)]


@pytest.mark.parametrize("n_slices", [1, 11])
def test_the_interval_of_equal_volumes_is_that_of_scipy(n_slices: int) -> None:
    values = np.random.default_rng(1).gamma(2.0, size=7)
    expected = stats.ttest_1samp(values, 0).confidence_interval(CONFIDENCE)
    interval = confidence_interval(np.repeat(values, n_slices), _volumes([n_slices] * 7))
    assert interval == pytest.approx(tuple(expected))


def test_volumes_are_weighted_by_their_number_of_slices() -> None:
    sizes = np.array([1, 5, 2, 9])
    values, volumes = np.random.default_rng(2).normal(size=17), _volumes(sizes.tolist())
    means = [part.mean() for part in np.split(values, np.cumsum(sizes)[:-1])]
    # NumPy's variance with reliability weights, of a mean with these weights.
    variance = np.cov(means, aweights=sizes) * (sizes**2).sum() / sizes.sum() ** 2
    expected = stats.t(df=3, loc=values.mean(), scale=variance**0.5).interval(CONFIDENCE)
    assert confidence_interval(values, volumes) == pytest.approx(expected)


@pytest.mark.parametrize("largest", [1, 20])
@pytest.mark.parametrize("n_volumes", [3, 4, 7, 10, 30, 96])
def test_intervals_cover_what_they_state(n_volumes: int, largest: int) -> None:
    rng, n_repetitions = np.random.default_rng(n_volumes), 4_000
    sizes = np.linspace(1, largest, n_volumes).round().astype(int)

    def coverage(scores: np.ndarray) -> float:
        intervals = confidence_intervals(np.repeat(scores, sizes, axis=0), _volumes(sizes.tolist()))
        assert intervals is not None
        return float(((intervals[:, 0] < 0) & (0 < intervals[:, 1])).mean())

    assert 0.93 <= coverage(rng.normal(size=(n_volumes, n_repetitions))) <= 0.97
    if n_volumes >= 10:
        assert coverage(rng.exponential(size=(n_volumes, n_repetitions)) - 1) >= 0.88


def test_fewer_than_three_volumes_have_no_interval() -> None:
    assert confidence_interval(np.arange(6.0), _volumes([3, 3])) is None
    assert confidence_interval(np.arange(3.0), _volumes([1, 1, 1])) is not None


def test_exact_permutation_flips_whole_volumes() -> None:
    sizes = [2, 3, 1, 4]
    differences = np.random.default_rng(4).normal(size=10)
    index = np.repeat(np.arange(4), sizes)
    total = np.array([differences[index == i].sum() for i in range(4)])
    flipped = [abs(np.dot(signs, total)) for signs in itertools.product([1, -1], repeat=4)]
    expected = np.mean(np.array(flipped) >= abs(total.sum()) - 1e-12)
    found = paired_permutation_test(differences, _volumes(sizes))
    assert found.p_value == pytest.approx(expected)
    assert "exact" in found.method and found.note is not None
    assert "0.125" in found.note


def test_note_counts_the_comparisons() -> None:
    differences, volumes = np.arange(1.0, 8.0), _volumes([1] * 7)
    assert paired_permutation_test(differences, volumes).note is None
    note = paired_permutation_test(differences, volumes, n_comparisons=9).note
    # Two of 128 patterns are as large as the extreme one, times nine.
    assert note is not None
    assert "corrected for 9 comparisons cannot reach p = 0.05" in note
    assert f"its smallest possible p-value is {9 * 2 / 128:.4g}" in note
    few = paired_permutation_test(differences[:2], volumes[:2], n_comparisons=9).note
    assert few is not None and "p-value" not in few, "a bound of 1 says nothing"


def test_rounding_is_no_difference() -> None:
    volumes = [f"v{number}" for number in range(8)]
    rounding = np.full(8, 6e-8)
    assert paired_permutation_test(rounding, volumes).p_value == 1
    assert paired_permutation_test(np.zeros(8), volumes).p_value == 1
    assert paired_permutation_test(rounding + 1e-5, volumes).p_value == 2 / 2**8


def test_sampled_permutation_is_near_the_t_test_and_never_zero() -> None:
    differences = np.random.default_rng(5).normal(0.25, 1.0, size=60)
    found = paired_permutation_test(differences, _volumes([1] * 60), n_patterns=20_000)
    assert found.p_value == pytest.approx(stats.ttest_1samp(differences, 0).pvalue, abs=0.01)
    certain = paired_permutation_test(np.ones(60), _volumes([1] * 60), n_patterns=500)
    assert certain.p_value == pytest.approx(1 / 501)


def test_holm_equals_its_definition() -> None:
    p_values = [0.04, 0.01, 0.03, 0.01]
    # Sorted .01 .01 .03 .04 times 4 3 2 1, made monotone: .04 .04 .06 .06.
    assert holm(p_values) == pytest.approx([0.06, 0.04, 0.06, 0.04])
    assert holm([0.7, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_std_over_seeds_divides_by_one_less() -> None:
    assert std_over_seeds([1.0, 3.0]) == pytest.approx(2**0.5)
    assert std_over_seeds([1.0]) is None
