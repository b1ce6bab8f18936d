"""Intervals and paired tests with volumes as the unit: slices of one volume are not independent.

A mean is over slices. A bootstrap sample draws volumes with replacement and takes the mean over
all slices that came along; intervals are percentiles of such means (Efron 1979). The permutation
test flips the sign of whole volumes' differences, which the hypothesis of no difference allows:
p = (number of sign patterns whose |sum| reaches the observed one) / (number of patterns).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import final

import numpy as np
from jaxtyping import Float64

CONFIDENCE = 0.95
N_RESAMPLES = 10_000
_RESOLUTION = 1e-6
"""Scores around one that differ by less are the same."""
_EXACT_UP_TO = 16
"""Volumes up to which all sign patterns are enumerated: 65,536 of them."""
_CHUNK = 2**22
"""Numbers that resampling holds at once."""


@final
@dataclass(frozen=True)
class PairedTest:
    """A p-value and how it was found."""

    p_value: float
    method: str
    note: str | None = None
    """What limits the test, where something does."""


def _sums_by_volume(
    values: Float64[np.ndarray, "slice quantity"], volumes: Sequence[str]
) -> tuple[Float64[np.ndarray, "volume quantity"], Float64[np.ndarray, " volume"]]:
    """Return sums over the slices of each volume, and how many there are."""
    _, index = np.unique(np.asarray(volumes, dtype=str), return_inverse=True)
    n_slices = np.bincount(index).astype(np.float64)
    total = np.zeros((len(n_slices), values.shape[1]))
    np.add.at(total, index, values)
    return total, n_slices


def bootstrap_intervals(
    values: Float64[np.ndarray, "slice quantity"],
    volumes: Sequence[str],
    *,
    n_resamples: int = N_RESAMPLES,
    seed: int = 0,
) -> Float64[np.ndarray, "quantity 2"] | None:
    """Return the percentile interval of the mean over slices of several quantities.

    All quantities see the same draws of volumes. None with fewer than two volumes.
    """
    total, n_slices = _sums_by_volume(values, volumes)
    n_volumes = len(n_slices)
    if n_volumes < 2:
        return None
    # How often each volume is drawn is all that matters: resampling is a matrix product.
    means = [
        counts @ total / (counts @ n_slices)[:, None]
        for counts in _resampled(n_volumes, n_resamples, seed)
    ]
    tail = (1 - CONFIDENCE) / 2
    return np.quantile(np.concatenate(means), [tail, 1 - tail], axis=0).T


def _resampled(n_volumes: int, n_resamples: int, seed: int) -> Iterator[np.ndarray]:
    """Yield how often each volume is drawn, part after part of the resamples."""
    if n_volumes * n_resamples <= _CHUNK:
        yield _kept(n_volumes, n_resamples, seed)
        return
    generator, n_at_once = np.random.default_rng(seed), max(1, _CHUNK // n_volumes)
    for at in range(0, n_resamples, n_at_once):
        yield _drawn(generator, n_volumes, min(n_at_once, n_resamples - at))


@lru_cache(maxsize=2)
def _kept(n_volumes: int, n_resamples: int, seed: int) -> np.ndarray:
    """Return draws that the next interval over as many volumes takes again."""
    return _drawn(np.random.default_rng(seed), n_volumes, n_resamples)


def _drawn(generator: np.random.Generator, n_volumes: int, n_draws: int) -> np.ndarray:
    return generator.multinomial(n_volumes, np.full(n_volumes, 1 / n_volumes), n_draws)


def bootstrap_interval(
    values: Float64[np.ndarray, " slice"],
    volumes: Sequence[str],
    *,
    n_resamples: int = N_RESAMPLES,
    seed: int = 0,
) -> tuple[float, float] | None:
    """Return the percentile interval of the mean over slices of one quantity."""
    found = bootstrap_intervals(values[:, None], volumes, n_resamples=n_resamples, seed=seed)
    return None if found is None else (float(found[0, 0]), float(found[0, 1]))


def paired_permutation_test(
    differences: Float64[np.ndarray, " slice"],
    volumes: Sequence[str],
    *,
    n_comparisons: int = 1,
    n_resamples: int = N_RESAMPLES,
    seed: int = 0,
) -> PairedTest:
    """Test whether a mean difference is zero by flipping the signs of whole volumes (two-sided).

    Up to 16 volumes every pattern of signs is tried, and the p-value is exact. Differences that are
    rounding of single precision, as between columns that mirror each other, count as none.

    Args:
        differences: of each slice.
        volumes: the volume of each slice.
        n_comparisons: how many tests the p-value will be corrected for; only the note depends
            on it.
        n_resamples: patterns drawn where there are more volumes.
        seed: keys that draw.
    """
    told = np.where(np.abs(differences) < _RESOLUTION, 0.0, differences)
    total = _sums_by_volume(told[:, None], volumes)[0][:, 0]
    n_volumes = len(total)
    if n_volumes <= _EXACT_UP_TO:
        patterns = np.arange(2**n_volumes)[:, None] >> np.arange(n_volumes) & 1
        n_as_large, n_tried = _n_as_large(total, 1.0 - 2.0 * patterns), 2**n_volumes
        method = "sign-flip permutation over volumes, exact"
    else:
        generator = np.random.default_rng(seed)
        n_as_large, n_tried = 1, n_resamples + 1
        n_at_once = max(1, _CHUNK // n_volumes)
        for at in range(0, n_resamples, n_at_once):
            shape = (min(n_at_once, n_resamples - at), n_volumes)
            n_as_large += _n_as_large(total, generator.choice([-1.0, 1.0], size=shape))
        method = f"sign-flip permutation over volumes, {n_resamples} draws"
    return PairedTest(n_as_large / n_tried, method, _limits(n_volumes, n_comparisons))


def _limits(n_volumes: int, n_comparisons: int) -> str | None:
    """Say what keeps a test from ever finding anything, where something does."""
    least = 2.0 ** (1 - n_volumes)
    if n_comparisons * least <= 1 - CONFIDENCE:
        return None
    tests = (
        "the test" if n_comparisons == 1 else f"a test corrected for {n_comparisons} comparisons"
    )
    least *= n_comparisons
    bound = f", its least p-value being {least:.4g}," if least < 1 else ""
    return (
        f"too few volumes: with {n_volumes}, {tests} cannot reach p = {1 - CONFIDENCE:.2g}{bound} "
        f"whatever the scores are{'; read the intervals' if n_volumes > 1 else ''}"
    )


def _n_as_large(
    total: Float64[np.ndarray, " volume"], signs: Float64[np.ndarray, "pattern volume"]
) -> int:
    found = np.abs(total.sum())
    # Equal sums in another order differ by rounding, and must count as equal.
    slack = 1e-12 * np.abs(total).sum()
    return int((np.abs(signs @ total) >= found - slack).sum())


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for the number of tests (Holm 1979), in the order given.

    The k-th smallest of m p-values becomes max over j <= k of min(1, (m - j + 1) p_j).
    """
    order = np.argsort(p_values, kind="stable")
    n_tests = len(order)
    scaled = [(n_tests - rank) * p_values[test] for rank, test in enumerate(order)]
    corrected = np.minimum(np.maximum.accumulate(scaled), 1.0) if scaled else np.empty(0)
    result = [0.0] * n_tests
    for rank, test in enumerate(order):
        result[test] = float(corrected[rank])
    return result


def std_over_seeds(values: Sequence[float]) -> float | None:
    """Return the standard deviation (ddof 1), None where there is one seed."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else None
