"""A policy learns through the fastest view that its network, device and precision allow."""

import pytest
import torch

from kscout.core import Policy
from kscout.kernels.registry import compiled_kernels
from kscout.policies import POLICIES
from kscout.policies.conv import ConvPolicy
from kscout.policies.conv_cpu import KeptConvPolicy
from kscout.policies.views import Recomputed, View, view_of
from kscout.training.convolution import can_compile

CPU = torch.device("cpu")


def view(policy: Policy, precision: str = "auto") -> View:
    return view_of(policy, device=CPU, precision=precision, compiles=False)


@pytest.mark.parametrize("precision", ["auto", "fp32"])
def test_kernels_cache_the_features_of_networks_that_they_support(precision: str) -> None:
    if not can_compile():
        pytest.skip("this machine has no C compiler that knows it")
    small = ConvPolicy(n_cols=16, n_channels=16, n_blocks=1)
    assert isinstance(view(small, precision), KeptConvPolicy)


def test_other_networks_are_looked_at_again() -> None:
    assert type(view(ConvPolicy(n_cols=16, n_channels=24, n_blocks=1))) is Recomputed
    assert type(view(POLICIES["center-out"](n_cols=16))) is Recomputed
    with compiled_kernels(enabled=False):
        assert type(view(ConvPolicy(n_cols=16, n_channels=16, n_blocks=1))) is Recomputed
