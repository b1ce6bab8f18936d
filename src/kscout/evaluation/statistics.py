"""Confidence intervals and paired tests with volumes as the unit: slices of one volume correlate.

For volumes v with n_v slices and mean score x_v, the weights are w_v = n_v / sum n, so that the
weighted mean m = sum w_v x_v is the mean over slices. Student's t interval of m over V volumes is

    m +- t(0.975, V - 1) sqrt(sum w_v^2) s,  s^2 = sum w_v (x_v - m)^2 / (1 - sum w_v^2),

which for volumes of equal size is the usual m +- t s / sqrt(V). s^2 is unbiased for the variance
between volumes. The permutation test flips the sign of the differences of whole volumes, which the
hypothesis of no difference allows: p = (number of sign patterns whose |sum| reaches the observed
one) / (number of patterns).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float64

from kscout.exports import lazily

with lazily():
    from scipy.special import stdtrit

CONFIDENCE = 0.95
LEAST_VOLUMES = 3
"""Volumes below which there is no interval."""
IN_BRACKETS = "Brackets: 95 % intervals with volumes as the unit."
TOO_FEW_VOLUMES = f"an interval needs at least {LEAST_VOLUMES} volumes"
NO_INTERVALS = f"No intervals are shown: {TOO_FEW_VOLUMES}."
_RESOLUTION = 1e-6
"""Scores around one that differ by less are the same."""
_EXACT_UP_TO = 16
"""Volumes up to which all sign patterns are enumerated: 65,536 of them."""
_CHUNK = 2**22
"""Numbers that the permutation test holds at once."""


@final
@dataclass(frozen=True)
class PairedTest:
    """A p-value and its method."""

    p_value: float
    method: str
    note: str | None = None
    """A limit of the test, if there is one."""


def _sums_by_volume(
    values: Float64[np.ndarray, "slice quantity"], volumes: Sequence[str]
) -> tuple[Float64[np.ndarray, "volume quantity"], Float64[np.ndarray, " volume"]]:
    """Return sums over the slices of each volume, and numbers of slices."""
    _, index = np.unique(np.asarray(volumes, dtype=str), return_inverse=True)
    n_slices = np.bincount(index).astype(np.float64)
    total = np.zeros((len(n_slices), values.shape[1]))
    np.add.at(total, index, values)
    return total, n_slices


def confidence_intervals(
    values: Float64[np.ndarray, "slice quantity"], volumes: Sequence[str]
) -> Float64[np.ndarray, "quantity 2"] | None:
    """Return the 95 % interval of the mean over slices of several quantities.

    Volumes are weighted by their number of slices. None with fewer than three volumes.
    """
    total, n_slices = _sums_by_volume(values, volumes)
    n_volumes = len(n_slices)
    if n_volumes < LEAST_VOLUMES:
        return None
    weights, scores = n_slices / n_slices.sum(), total / n_slices[:, None]
    mean, squares = weights @ scores, weights @ weights
    variance = weights @ (scores - mean) ** 2 / (1 - squares)
    half = stdtrit(n_volumes - 1, (1 + CONFIDENCE) / 2) * np.sqrt(squares * variance)
    return np.stack([mean - half, mean + half], axis=1)


def confidence_interval(
    values: Float64[np.ndarray, " slice"], volumes: Sequence[str]
) -> tuple[float, float] | None:
    """Return the 95 % interval of the mean over slices of one quantity."""
    intervals = confidence_intervals(values[:, None], volumes)
    return None if intervals is None else (float(intervals[0, 0]), float(intervals[0, 1]))


def paired_permutation_test(
    differences: Float64[np.ndarray, " slice"],
    volumes: Sequence[str],
    *,
    n_comparisons: int = 1,
    n_patterns: int = 10_000,
) -> PairedTest:
    """Test whether a mean difference is zero by flipping the signs of whole volumes (two-sided).

    Up to 16 volumes every pattern of signs is tried, and the p-value is exact. Differences that are
    rounding of single precision, as between columns that mirror each other, count as none. The
    p-value is not corrected for `n_comparisons`; only the note depends on it.
    """
    rounded = np.where(np.abs(differences) < _RESOLUTION, 0.0, differences)
    total = _sums_by_volume(rounded[:, None], volumes)[0][:, 0]
    n_volumes = len(total)
    if n_volumes <= _EXACT_UP_TO:
        patterns = np.arange(2**n_volumes)[:, None] >> np.arange(n_volumes) & 1
        n_as_large, n_tried = _n_as_large(total, 1.0 - 2.0 * patterns), 2**n_volumes
        method = "sign-flip permutation over volumes, exact"
    else:
        generator = np.random.default_rng(0)
        n_as_large, n_tried = 1, n_patterns + 1
        n_at_once = max(1, _CHUNK // n_volumes)
        for at in range(0, n_patterns, n_at_once):
            shape = (min(n_at_once, n_patterns - at), n_volumes)
            n_as_large += _n_as_large(total, generator.choice([-1.0, 1.0], size=shape))
        method = f"sign-flip permutation over volumes, {n_patterns} draws"
    return PairedTest(n_as_large / n_tried, method, _limits(n_volumes, n_comparisons))


def _limits(n_volumes: int, n_comparisons: int) -> str | None:
    """Return a note if the test has too few volumes for any small p-value."""
    least = 2.0 ** (1 - n_volumes)
    if n_comparisons * least <= 1 - CONFIDENCE:
        return None
    tests = (
        "the test" if n_comparisons == 1 else f"a test corrected for {n_comparisons} comparisons"
    )
    least *= n_comparisons
    bound = f"; its smallest possible p-value is {least:.4g}" if least < 1 else ""
    return (
        f"too few volumes: with {n_volumes}, {tests} cannot reach p = {1 - CONFIDENCE:.2g}"
        f"{bound}{'; use the intervals' if n_volumes >= LEAST_VOLUMES else ''}"
    )


def _n_as_large(
    total: Float64[np.ndarray, " volume"], signs: Float64[np.ndarray, "pattern volume"]
) -> int:
    observed = np.abs(total.sum())
    # Equal sums in another order differ by rounding, and must count as equal.
    slack = 1e-12 * np.abs(total).sum()
    return int((np.abs(signs @ total) >= observed - slack).sum())


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for the number of tests (Holm 1979), in their order.

    The k-th smallest of m p-values becomes max over j <= k of min(1, (m - j + 1) p_j).
    """
    order = np.argsort(p_values, kind="stable")
    scaled = np.asarray(p_values)[order] * np.arange(len(order), 0, -1)
    corrected = np.empty(len(order))
    corrected[order] = np.minimum(np.maximum.accumulate(scaled), 1.0)
    return corrected.tolist()


def std_over_seeds(values: Sequence[float]) -> float | None:
    """Return the standard deviation (ddof 1); None for one seed."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else None
