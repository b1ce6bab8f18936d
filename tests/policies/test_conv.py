"""The policy network is the reference's: names, sizes, outputs."""

from typing import Any

import pytest
import torch
from torch import Tensor

from golden_numbers import Golden, with_formula_weights
from kscout.acquisition.choose import column_log_probabilities
from kscout.core import Observation, Policy
from kscout.errors import ConfigError
from kscout.policies import POLICIES
from kscout.policies.conv import ConvPolicy
from kscout.reconstruction.unet import UNet

TOLERANCE = 1e-4


def small(golden: Golden) -> ConvPolicy:
    policy = ConvPolicy(n_cols=64, n_channels=4, n_blocks=4, n_hidden=32)
    policy.load_state_dict(golden.state("policy", "small_state"))
    return policy


def probabilities(policy: Policy, image: Tensor, mask: Tensor) -> Tensor:
    with torch.no_grad():
        scores = policy(Observation(image=image, mask=mask))
    return column_log_probabilities(scores, mask).exp()


@pytest.mark.parametrize("n_cols, key", [(128, "knee"), (256, "brain")])
def test_the_defaults_are_the_papers_networks(golden: Golden, n_cols: int, key: str) -> None:
    count = sum(p.numel() for p in POLICIES["conv"](n_cols=n_cols).parameters())
    assert count == {128: 4_685_568, 256: 4_719_552}[n_cols]
    assert count == int(golden("unet", f"params_policy_{key}"))


def test_the_same_seed_initializes_the_reference_weights(golden: Golden) -> None:
    torch.manual_seed(0)
    state = ConvPolicy(n_cols=64, n_channels=4, n_blocks=4, n_hidden=32).state_dict()
    expected = golden.state("policy", "small_state")
    assert list(state) == list(expected)
    assert all(torch.equal(state[name], expected[name]) for name in expected)


def test_small_network_gives_the_reference_scores(golden: Golden) -> None:
    image, mask = golden("policy", "recon0"), golden("policy", "mask0").bool()
    with torch.no_grad():
        scores = small(golden)(Observation(image=image, mask=mask))
    torch.testing.assert_close(scores, golden("policy", "logits0"), atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(
        probabilities(small(golden), image, mask),
        golden("policy", "probs0")[:, 0],
        atol=TOLERANCE,
        rtol=0,
    )


def test_parallel_acquisitions_give_the_reference_probabilities(golden: Golden) -> None:
    image, mask = golden("policy", "recon3").flatten(0, 1), golden("policy", "mask3").bool()
    found = probabilities(small(golden), image, mask[:2].flatten(0, 1))
    expected = golden("policy", "probs3")[:2].flatten(0, 1)
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)


def test_knee_network_gives_the_reference_probabilities(golden: Golden) -> None:
    policy = with_formula_weights(POLICIES["conv"](n_cols=128), seed=321)
    mask = golden("inputs", "mask_r128_a8")[:2].bool()
    found = probabilities(policy, golden("policy", "recon128"), mask)
    expected = golden("policy", "probs128_formula_seed321")[:, 0]
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)


def test_brain_network_gives_the_reference_probabilities(golden: Golden) -> None:
    unet = UNet().network
    unet.load_state_dict(golden.state("unet_trained", "trained_state"))
    with torch.no_grad():
        image = unet(golden("policy", "zf256")[:, None])[:, 0]
    policy = with_formula_weights(POLICIES["conv"](n_cols=256), seed=322)
    mask = torch.zeros(1, 256, dtype=torch.bool)
    mask[:, golden("masks", "center_r256_a8")] = True
    found = probabilities(policy, image, mask)
    expected = golden("policy", "probs256_formula_seed322")[:, 0]
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(
    "n_cols, n_blocks, n_channels",
    [(8, 0, 256), (16, 1, 128), (45, 2, 64), (64, 3, 32), (96, 4, 16), (320, 5, 8), (512, 6, 4)],
)
def test_other_sizes_follow_the_rule(n_cols: int, n_blocks: int, n_channels: int) -> None:
    with torch.device("meta"):
        policy = ConvPolicy(n_cols=n_cols)
    assert (policy.n_blocks, policy.n_channels) == (n_blocks, n_channels)


def test_odd_oblong_images_get_one_score_per_column() -> None:
    policy = ConvPolicy(n_cols=21, n_rows=13, n_channels=2, n_hidden=5)
    mask = torch.zeros(3, 21, dtype=torch.bool)
    assert policy(Observation(image=torch.randn(3, 13, 21), mask=mask)).shape == (3, 21)


@pytest.mark.slow
def test_the_network_is_one_graph_without_breaks() -> None:
    policy = ConvPolicy(n_cols=16, n_rows=12, n_channels=2, n_hidden=5).eval()

    class Plain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.policy = policy

        def forward(self, image: Tensor, mask: Tensor) -> Tensor:
            return self.policy(Observation(image=image, mask=mask))

    image, mask = torch.randn(3, 12, 16), torch.zeros(3, 16, dtype=torch.bool)
    exported = torch.export.export(Plain(), (image, mask)).module()
    torch.testing.assert_close(exported(image, mask), Plain()(image, mask))


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        ({"n_cols": 16, "n_blocks": -1}, "n_blocks = -1"),
        ({"n_cols": 16, "n_blocks": 5}, "16x16 cannot be halved 5 times"),
        ({"n_cols": 64, "n_rows": 7}, "7x64 cannot be halved 3 times"),
    ],
)
def test_impossible_networks_are_refused(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        ConvPolicy(**arguments)


def test_images_of_another_size_are_refused_with_both_sizes() -> None:
    policy = ConvPolicy(n_cols=16, n_channels=2)
    seen = Observation(image=torch.zeros(1, 17, 16), mask=torch.zeros(1, 16, dtype=torch.bool))
    with pytest.raises(ConfigError, match=r"16x16 was given images of 17x16"):
        policy(seen)
