"""Baselines and oracles give the reference's columns and scores on its trained U-Net."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from golden_numbers import Golden
from kscout.acquisition.choose import best_columns
from kscout.acquisition.episode import Simulator
from kscout.acquisition.loop import Trajectory, rollout
from kscout.acquisition.plan import Plan
from kscout.acquisition.state import State
from kscout.core import Policy, Reconstructor
from kscout.data.slices import SliceSet
from kscout.policies import POLICIES, build
from kscout.policies.fixed import NaOracle
from kscout.policies.oracle import TIE
from kscout.reconstruction.unet import UNet
from kscout.training.fixed_order import fit_fixed_order

pytestmark = pytest.mark.slow

SSIM, PSNR = 2e-5, 2e-3
N_INITIAL = {64: 8, 128: 16}
"""Columns at the start by the size of images; as many are acquired."""


def golden_slices(golden: Golden, size: int, tag: str) -> SliceSet:
    chosen = golden(f"baselines_r{size}", f"{tag}/slices")
    margin = (128 - size) // 2
    images = golden("inputs", "images128")[:, margin : margin + size, margin : margin + size]
    every = SliceSet.from_images(images.contiguous(), ["a"] * 3 + ["b"] * 3)
    data_range = golden(f"baselines_r{size}", f"{tag}/data_range")
    return replace(every.subset(chosen), data_range=data_range)


@pytest.fixture(scope="module")
def unet(golden: Golden) -> UNet:
    unet = UNet()
    unet.network.load_state_dict(golden.state("unet_trained", "trained_state"))
    return unet.eval()


def frozen(unet: UNet, size: int) -> Reconstructor:
    """Return the view that evaluations take: oracles ask for thousands of reconstructions."""
    return unet.frozen(precision="fp32", n_rows=size, n_cols=size, device="cpu")


def run(
    golden: Golden, unet: Reconstructor, policy: Policy, tag: str, replay: Tensor | None = None
) -> Trajectory:
    size = int(tag.removeprefix("r"))
    slices = golden_slices(golden, size, tag)
    # The larger images go through the faster view, as in evaluations.
    network = frozen(unet, size) if size == 128 and isinstance(unet, UNet) else unet
    simulator = Simulator(slices.batch(torch.arange(len(slices))), network)
    return rollout(policy, simulator, Plan(N_INITIAL[size], N_INITIAL[size]), replay=replay)


def check(golden: Golden, found: Trajectory, tag: str, method: str) -> None:
    file = f"baselines_{tag}"
    expected = golden(file, f"{tag}/{method}/ssim_per_slice")
    torch.testing.assert_close(found.ssim[:, 0], expected, atol=SSIM, rtol=0)
    psnr = golden(file, f"{tag}/{method}/psnr_mean")
    torch.testing.assert_close(found.psnr[:, 0].double().mean(dim=0), psnr, atol=PSNR, rtol=0)


@pytest.mark.parametrize("size", N_INITIAL)
def test_ranges_are_the_volumes_maxima(golden: Golden, size: int) -> None:
    slices = golden_slices(golden, size, f"r{size}")
    own = SliceSet.from_images(slices.magnitudes(), slices.volumes).data_range
    torch.testing.assert_close(own, slices.data_range, rtol=1e-5, atol=0)


@pytest.mark.parametrize("sides", ["one", "two"])
@pytest.mark.parametrize("size", N_INITIAL)
def test_equispaced(golden: Golden, unet: UNet, size: int, sides: str) -> None:
    policy = build(
        f"equispaced-{sides}", n_cols=size, n_initial=N_INITIAL[size], horizon=N_INITIAL[size]
    )
    found = run(golden, unet, policy, f"r{size}")
    expected = golden(f"baselines_r{size}", f"r{size}/equispace_{sides}sided/actions")
    assert torch.equal(found.columns[:, 0], expected)
    check(golden, found, f"r{size}", f"equispace_{sides}sided")


@pytest.mark.parametrize("size", N_INITIAL)
def test_random_with_the_references_draws(golden: Golden, unet: UNet, size: int) -> None:
    policy = build("random", n_cols=size, n_initial=N_INITIAL[size], horizon=N_INITIAL[size])
    actions = golden(f"baselines_r{size}", f"r{size}/random/actions")
    found = run(golden, unet, policy, f"r{size}", replay=actions[:, None])
    assert torch.equal(found.columns[:, 0], actions)
    check(golden, found, f"r{size}", "random")


def check_choice(
    simulator: Simulator, state: State, action: Tensor, expected: Tensor | None
) -> None:
    """Check that the reference's column is the oracle's."""
    truth = simulator.observe(POLICIES["oracle"](), state, n_left=None).truth
    assert truth is not None and truth.candidate_scores is not None
    scores = truth.candidate_scores
    assert torch.equal(scores.isinf(), state.mask)
    if expected is not None:
        found = scores.masked_fill(state.mask, 0.0)
        torch.testing.assert_close(found, expected, atol=SSIM, rtol=0)
    # Columns mirrored at DC are equal where the mask is symmetric: there the reference's choice is
    # one of the best, elsewhere it is ours.
    chosen = best_columns(scores, state.mask)
    top = scores.topk(2, dim=-1).values
    is_clear = top[:, 0] - top[:, 1] > TIE
    assert torch.equal(chosen[is_clear], action[is_clear])
    given = scores.gather(-1, action[:, None])[:, 0]
    torch.testing.assert_close(given, top[:, 0], atol=TIE, rtol=0)


def test_oracle(golden: Golden, unet: UNet) -> None:
    slices = golden_slices(golden, 64, "r64")
    simulator = Simulator(slices.batch(torch.arange(len(slices))), frozen(unet, 64))
    actions = golden("baselines_r64", "r64/oracle/actions")
    expected = golden("baselines_r64", "r64/oracle/ssim_per_slice")
    first = golden("baselines_r64", "r64/oracle/all_scores_step0")
    state = simulator.start(N_INITIAL[64])
    for step in range(actions.shape[1]):
        torch.testing.assert_close(state.score, expected[:, step], atol=SSIM, rtol=0)
        if step in (0, actions.shape[1] - 1):
            check_choice(simulator, state, actions[:, step], first if step == 0 else None)
        state = simulator.acquire(state, actions[:, step])
    torch.testing.assert_close(state.score, expected[:, -1], atol=SSIM, rtol=0)


def test_na_oracle(golden: Golden, unet: UNet) -> None:
    slices = golden_slices(golden, 64, "r64")
    order = golden("baselines_r64", "r64/average_oracle/columns").tolist()
    fitted = fit_fixed_order(slices, frozen(unet, 64), Plan(8, 4, batch_size=4))
    assert fitted.order == order[:4]
    means = golden("baselines_r64", "r64/average_oracle/ssim_mean")
    assert fitted.mean_scores == pytest.approx(means[:5].tolist(), abs=SSIM)
    first = golden("baselines_r64", "r64/average_oracle/scores_step0").mean(dim=0)
    tried = ~fitted.gains[0].isnan()
    gains = (first - means[0]).float()
    torch.testing.assert_close(fitted.gains[0, tried], gains[tried], atol=2 * SSIM, rtol=0)
    found = run(golden, unet, NaOracle(n_cols=64, order=order), "r64")
    check(golden, found, "r64", "average_oracle")
