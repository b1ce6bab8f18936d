"""From the center outwards: a sampler that the package does not have."""

from kscout.policies import POLICIES
from kscout.training import Sampler


class Outwards(Sampler):
    looks = False

    @classmethod
    def make_policy(cls, config, slices):
        return POLICIES["center-out"](n_cols=slices.n_cols)

    def renew(self, epoch, *, is_first):
        pass
