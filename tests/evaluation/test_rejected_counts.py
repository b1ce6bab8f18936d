"""Counts that an evaluation or an analysis could not run with are refused by name."""

from collections.abc import Callable

import pytest

from kscout.acquisition.plan import Plan
from kscout.config.options import with_options
from kscout.errors import ConfigError
from kscout.evaluation.analyses.snr import Snr
from kscout.evaluation.request import EvaluationSetting
from kscout.names import ANALYSES

ASKED = {"data": "store", "reconstructor": "zero-filled", "policies": ["random"]}


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: with_options(ANALYSES.resolve("snr"), {"passes": 0}), "passes is 0"),
        (lambda: with_options(ANALYSES.resolve("entropy"), {"batch_size": -1}), "size is -1"),
        (lambda: with_options(EvaluationSetting, {**ASKED, "trajectories": 0}), "ies is 0"),
        (lambda: Plan(3, 4, n_trajectories=0), "n_trajectories is 0"),
        (lambda: Snr(batch_size=0), "batch_size is 0"),
        (lambda: EvaluationSetting(fixed_slices=0), "fixed_slices is 0"),
    ],
)
def test_a_count_of_nothing_is_rejected(make: Callable[[], object], told: str) -> None:
    with pytest.raises(ConfigError, match=f"{told}; it must be [12] or more"):
        make()
