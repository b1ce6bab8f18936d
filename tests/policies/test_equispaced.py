"""Equispaced masks are the reference's, column by column."""

import pytest
import torch

from golden_numbers import Golden
from kscout.acquisition.choose import best_columns
from kscout.core import Observation, Policy
from kscout.errors import ConfigError
from kscout.physics.sampling import center_columns, center_mask
from kscout.policies import build
from kscout.policies.fixed import one_sided_columns, two_sided_columns

SETTINGS = [(64, 8, 8, 8), (128, 8, 16, 16), (128, 32, 4, 28), (256, 8, 32, 16), (256, 32, 8, 28)]


def acquired(policy: Policy, *, n_cols: int, n_initial: int, horizon: int) -> list[int]:
    mask, order = center_mask(n_cols, n_initial)[None], []
    for _ in range(horizon):
        scores = policy(Observation(image=torch.zeros(1, 3, n_cols), mask=mask))
        order.append(int(best_columns(scores, mask)))
        mask = mask.clone()
        mask[0, order[-1]] = True
    return order


@pytest.mark.parametrize("sides", ["one", "two"])
@pytest.mark.parametrize("n_cols, acceleration, n_initial, horizon", SETTINGS)
def test_columns_are_the_references_in_order(
    golden: Golden, sides: str, n_cols: int, acceleration: int, n_initial: int, horizon: int
) -> None:
    expected = golden("masks", f"{sides}sided_r{n_cols}_a{acceleration}_s{horizon}")
    start = golden("masks", f"center_r{n_cols}_a{acceleration}")
    assert start.tolist() == list(center_columns(n_cols, n_initial))
    policy = build(f"equispaced-{sides}", n_cols=n_cols, n_initial=n_initial, horizon=horizon)
    found = acquired(policy, n_cols=n_cols, n_initial=n_initial, horizon=horizon)
    assert found == expected.tolist()


@pytest.mark.parametrize("n_cols, n_initial", [(9, 1), (10, 3), (17, 4), (32, 5)])
def test_every_budget_that_fits_gives_different_free_columns(n_cols: int, n_initial: int) -> None:
    free = set(range(n_cols)) - set(center_columns(n_cols, n_initial))
    n_left = center_columns(n_cols, n_initial).start
    for horizon in range(len(free) + 1):
        sizes = {"n_cols": n_cols, "n_initial": n_initial, "horizon": horizon}
        both = two_sided_columns(**sizes)
        assert len(set(both)) == horizon and set(both) <= free
        if horizon <= n_left:
            one = one_sided_columns(**sizes)
            assert len(set(one)) == horizon and set(one) <= set(range(n_left))


@pytest.mark.parametrize("sides, horizon", [("one", 9), ("two", 17)])
def test_a_budget_that_does_not_fit_is_refused(sides: str, horizon: int) -> None:
    with pytest.raises(ConfigError, match=f"equispaced-{sides} cannot place"):
        build(f"equispaced-{sides}", n_cols=20, n_initial=4, horizon=horizon)
