"""What holds for every policy that estimates gains without the truth."""

from dataclasses import replace

import torch

from kscout.acquisition.episode import Simulator
from kscout.core import Policy
from kscout.data.slices import SliceSet
from kscout.physics.sampling import center_mask
from kscout.reconstruction.zero_filled import ZeroFilled


def assert_unmeasured_columns_change_no_score(
    policy: Policy, slices: SliceSet, n_initial: int
) -> None:
    batch, mask = slices.batch(torch.arange(2)), center_mask(slices.n_cols, n_initial)
    other = torch.where(mask, batch.kspace, -7 * batch.kspace.flip(0))
    changed = replace(batch, kspace=other, target=batch.target.flip(0))
    scores = []
    for one in (batch, changed):
        simulator = Simulator(one, ZeroFilled())
        scores.append(policy(simulator.observe(policy, simulator.start(n_initial))))
    assert torch.equal(*scores)
