"""A policy learns through the fastest view that its network, device and precision allow."""

import pytest
import torch

from kscout.core import Policy
from kscout.kernels.registry import compiled_kernels
from kscout.policies import POLICIES
from kscout.policies.conv import ConvPolicy
from kscout.policies.conv_kept import KeptConvPolicy
from kscout.policies.views import Recomputed, views_of
from kscout.training.convolution import can_compile

CPU = torch.device("cpu")


def kinds(*policies: Policy) -> list[type]:
    views = views_of(policies, device=CPU, precision="auto", compiles=False)
    return [type(view) for view in views]


@pytest.mark.parametrize("precision", ["auto", "fp32"])
def test_kernels_keep_the_features_of_networks_that_they_serve(precision: str) -> None:
    policies = [ConvPolicy(n_cols=16, n_channels=16, n_blocks=1) for _ in range(2)]
    first, second = views_of(policies, device=CPU, precision=precision, compiles=False)
    if not can_compile():
        pytest.skip("this machine has no C compiler that knows it")
    assert isinstance(first, KeptConvPolicy) and isinstance(second, KeptConvPolicy)
    assert first.room is second.room, "they learn one after the other"


def test_other_networks_are_looked_at_again() -> None:
    assert kinds(ConvPolicy(n_cols=16, n_channels=24, n_blocks=1)) == [Recomputed]
    assert kinds(POLICIES["center-out"](n_cols=16)) == [Recomputed]
    with compiled_kernels(enabled=False):
        assert kinds(ConvPolicy(n_cols=16, n_channels=16, n_blocks=1)) == [Recomputed]
