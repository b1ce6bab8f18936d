"""Intervals and tests, against SciPy and brute force."""

import itertools

import numpy as np
import pytest

from kscout.evaluation import statistics
from kscout.evaluation.statistics import (
    bootstrap_interval,
    holm,
    paired_permutation_test,
    std_over_seeds,
)


def _volumes(sizes: list[int]) -> list[str]:
    return [f"v{i}" for i, size in enumerate(sizes) for _ in range(size)]


def test_bootstrap_of_single_slices_agrees_with_scipy() -> None:
    from scipy import stats

    values = np.random.default_rng(1).gamma(2.0, size=41)
    found = bootstrap_interval(values, _volumes([1] * 41), n_resamples=20_000)
    expected = stats.bootstrap(
        (values,), np.mean, n_resamples=20_000, method="percentile", rng=np.random.default_rng(9)
    ).confidence_interval
    assert found is not None
    assert found == pytest.approx(tuple(expected), abs=0.03)


def test_draws_that_are_made_in_parts_are_those_that_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values, volumes = np.random.default_rng(2).normal(size=12), _volumes([4, 1, 2, 5])
    kept = bootstrap_interval(values, volumes, n_resamples=50, seed=7)
    monkeypatch.setattr(statistics, "_CHUNK", 30)
    assert bootstrap_interval(values, volumes, n_resamples=50, seed=7) == kept


def test_bootstrap_resamples_volumes_and_weighs_slices() -> None:
    sizes = [1, 5, 2]
    values = np.array([0.0] + [1.0] * 5 + [3.0] * 2)
    found = bootstrap_interval(values, _volumes(sizes), n_resamples=40_000)
    total, count = np.array([0.0, 5.0, 6.0]), np.array(sizes)
    means = [
        total[list(draw)].sum() / count[list(draw)].sum()
        for draw in itertools.product(range(3), repeat=3)
    ]
    # The most extreme of 27 equally likely draws weigh 1/27 > 2.5 %, so they are the bounds.
    assert found == pytest.approx((min(means), max(means)))


def test_slices_that_repeat_within_volumes_do_not_narrow_the_interval() -> None:
    values = np.random.default_rng(2).normal(size=7)
    alone = bootstrap_interval(values, _volumes([1] * 7))
    repeated = bootstrap_interval(np.repeat(values, 11), _volumes([11] * 7))
    assert repeated == pytest.approx(alone)


def test_one_volume_has_no_interval() -> None:
    assert bootstrap_interval(np.ones(3), _volumes([3])) is None


def test_exact_permutation_agrees_with_scipy() -> None:
    from scipy import stats

    differences = np.random.default_rng(3).normal(0.4, 1.0, size=9)
    found = paired_permutation_test(differences, _volumes([1] * 9))
    expected = stats.permutation_test(
        (differences,), np.sum, permutation_type="samples", n_resamples=np.inf
    )
    assert found.p_value == pytest.approx(expected.pvalue, abs=1e-12)
    assert "exact" in found.method
    assert found.note is None


def test_exact_permutation_flips_whole_volumes() -> None:
    sizes = [2, 3, 1, 4]
    differences = np.random.default_rng(4).normal(size=10)
    index = np.repeat(np.arange(4), sizes)
    total = np.array([differences[index == i].sum() for i in range(4)])
    flipped = [abs(np.dot(signs, total)) for signs in itertools.product([1, -1], repeat=4)]
    expected = np.mean(np.array(flipped) >= abs(total.sum()) - 1e-12)
    found = paired_permutation_test(differences, _volumes(sizes))
    assert found.p_value == pytest.approx(expected)
    assert found.note is not None
    assert "0.125" in found.note


def test_note_counts_the_comparisons() -> None:
    differences, volumes = np.arange(1.0, 8.0), _volumes([1] * 7)
    assert paired_permutation_test(differences, volumes).note is None
    note = paired_permutation_test(differences, volumes, n_comparisons=9).note
    # Two of 128 patterns are as large as the extreme one, times nine.
    assert note is not None
    assert "corrected for 9 comparisons cannot reach p = 0.05" in note
    assert f"its least p-value being {9 * 2 / 128:.4g}," in note
    few = paired_permutation_test(differences[:2], volumes[:2], n_comparisons=9).note
    assert few is not None and "p-value" not in few, "a bound of 1 says nothing"


def test_rounding_is_no_difference() -> None:
    volumes = [f"v{number}" for number in range(8)]
    rounding = np.full(8, 6e-8)
    assert paired_permutation_test(rounding, volumes).p_value == 1
    assert paired_permutation_test(rounding + 1e-5, volumes).p_value == 2 / 2**8


def test_sampled_permutation_is_near_the_t_test_and_never_zero() -> None:
    from scipy import stats

    differences = np.random.default_rng(5).normal(0.25, 1.0, size=60)
    found = paired_permutation_test(differences, _volumes([1] * 60), n_resamples=20_000)
    assert found.p_value == pytest.approx(stats.ttest_1samp(differences, 0).pvalue, abs=0.01)
    certain = paired_permutation_test(np.ones(60), _volumes([1] * 60), n_resamples=500)
    assert certain.p_value == pytest.approx(1 / 501)


def test_no_difference_has_p_value_one() -> None:
    assert paired_permutation_test(np.zeros(5), _volumes([1] * 5)).p_value == 1.0


def test_holm_equals_its_definition() -> None:
    p_values = [0.04, 0.01, 0.03, 0.01]
    # Sorted .01 .01 .03 .04 times 4 3 2 1, made monotone: .04 .04 .06 .06.
    assert holm(p_values) == pytest.approx([0.06, 0.04, 0.06, 0.04])
    assert holm([0.7, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_std_over_seeds_divides_by_one_less() -> None:
    assert std_over_seeds([1.0, 3.0]) == pytest.approx(2**0.5)
    assert std_over_seeds([1.0]) is None
