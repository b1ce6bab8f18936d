"""Mean gains of columns that the order has measured, and a policy may not have."""

import torch

from kscout.training.fixed_order import filled_gains


def test_a_column_that_only_the_order_has_measured_keeps_its_gain() -> None:
    nan = torch.nan
    gains = torch.tensor([[nan, 3.0, 2.0], [nan, nan, 1.0], [nan, nan, nan]])
    wanted = torch.tensor([[3.0, 3.0, 2.0], [3.0, 3.0, 1.0], [3.0, 3.0, 1.0]])
    assert torch.equal(filled_gains(gains), wanted)
    # No less than the best that is left, where units make a later gain the larger number.
    gains = torch.tensor([[3.0, 2.0, 1.0], [nan, 4.0, 2.0], [nan, nan, 2.0]])
    wanted = torch.tensor([[3.0, 2.0, 1.0], [4.0, 4.0, 2.0], [4.0, 4.0, 2.0]])
    assert torch.equal(filled_gains(gains), wanted)
