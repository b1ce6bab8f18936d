"""The plain implementation of `lab/bench.py` agrees with the authors' numbers and with kscout."""

import pytest
import torch
from bench import PlainPolicy, PlainUNet, compare_with_plain, plain_greedy_gradients

from golden_numbers import Golden, assert_gradients, with_formula_weights
from kscout.data.slices import SliceSet

pytestmark = pytest.mark.slow


def trained_unet(golden: Golden) -> PlainUNet:
    unet = PlainUNet()
    unet.load_state_dict(golden.state("unet_trained", "trained_state"))
    return unet.requires_grad_(False)


def policy_of(method: str, golden: Golden) -> PlainPolicy:
    if method == "greedy":
        policy = PlainPolicy(n_cols=64, n_channels=4, n_blocks=4, n_hidden=32)
        policy.load_state_dict(golden.state("policy", "small_state"))
        return policy
    return with_formula_weights(PlainPolicy(n_cols=128, n_channels=16, n_blocks=4), seed=321)


# At 128 pixels the stored advantages are so small that float32's share of the stored rewards moves
# gradients by 4e-3 (tests/training/test_policy_gradient.py).
@pytest.mark.parametrize(
    ("method", "size", "tolerance"), [("greedy", 64, 1e-3), ("greedy128", 128, 4e-3)]
)
def test_plain_estimator_is_golden(
    method: str, size: int, tolerance: float, golden: Golden
) -> None:
    actions = golden("loss", f"{method}/actions")
    n_slices = actions.shape[1]
    edge = (128 - size) // 2
    images = golden("inputs", "images128")[:, edge : edge + size, edge : edge + size].contiguous()
    slices = SliceSet.from_images(images, ("a",) * 3 + ("b",) * 3)
    policy = policy_of(method, golden)
    found = plain_greedy_gradients(
        policy,
        trained_unet(golden),
        images[:n_slices],
        slices.data_range[:n_slices],
        n_initial=size // 8,
        uniforms=torch.zeros(n_slices, actions.shape[0], actions.shape[2]),
        followed=golden("loss", f"{method}/idx"),
        replay=actions,
    )
    for values, key, atol in (
        (found.log_probs, "logprobs", 1e-4),
        (found.rewards, "rewards", 3e-6),
    ):
        torch.testing.assert_close(values, golden("loss", f"{method}/{key}"), atol=atol, rtol=0)
    losses = golden("loss", f"{method}/losses").float()
    torch.testing.assert_close(found.losses, losses, atol=1e-7, rtol=1e-3)
    assert_gradients(policy, method, golden, tolerance)


# In 16 bit at the size that the U-Net was trained for: at 64 pixels gains are five times as large,
# and so is what rounding changes in them.
@pytest.mark.parametrize(
    ("device", "size", "n_steps", "least"),
    [("cpu", 64, 2, 0.9999), pytest.param("cuda", 128, 3, 0.9, marks=pytest.mark.cuda)],
)
def test_kscout_has_the_gradients_of_the_plain_implementation(
    device: str, size: int, n_steps: int, least: float
) -> None:
    found = compare_with_plain(size, 4, n_steps, torch.device(device))
    assert found.cosine > least
    assert len(found.ratios) == 3 and min(found.ratios) > 0
