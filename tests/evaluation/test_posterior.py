"""The estimate of Bayes-greedy: against an enumeration by hand, and blind to what is unmeasured."""

import numpy as np
import pytest
import torch
from blind_policies import assert_unmeasured_columns_change_no_score
from torch import Tensor

from coil_data import coil_kspace
from kscout.acquisition.episode import Simulator
from kscout.contracts import check_policy
from kscout.core import Observation
from kscout.data.slices import SliceSet
from kscout.errors import ConfigError
from kscout.evaluation.posterior import (
    Kernel,
    Pool,
    PosteriorPolicy,
    average_effective,
    evenly_drawn,
    fit_kernels,
)
from kscout.metrics import ssim
from kscout.physics.fourier import ifft2c
from kscout.physics.sampling import center_mask
from kscout.reconstruction.zero_filled import ZeroFilled

N_INITIAL = 3


def posterior(pool: SliceSet, kernel: Kernel) -> PosteriorPolicy:
    return PosteriorPolicy(Pool(pool), ZeroFilled(), [kernel], n_candidates=200)


def observe(policy: PosteriorPolicy, slices: SliceSet, row: int) -> Observation:
    simulator = Simulator(slices.batch(torch.tensor([row])), ZeroFilled())
    return simulator.observe(policy, simulator.start(N_INITIAL))


def score_by_hand(slices: SliceSet, row: int, mask: Tensor) -> float:
    """Reconstruct and score one slice by a transform of its own."""
    whole = slices.batch(torch.tensor([row]))
    image = ifft2c(whole.kspace[0, 0] * mask).abs()
    image = ((image - image.mean()) / (image.std() + 1e-11)).clamp(-6, 6)
    image = image * whole.target_std[0] + whole.target_mean[0]
    return float(ssim(image[None], whole.target, data_range=whole.data_range)[0])


def test_the_expected_gain_is_the_weighted_mean_over_training_slices(
    test_slices: SliceSet, train_slices: SliceSet
) -> None:
    kernel = Kernel(power=0.5, width=0.2)
    policy = posterior(train_slices, kernel)
    found = policy(observe(policy, test_slices, 2))[0]
    mask = center_mask(13, N_INITIAL)
    own = test_slices.batch(torch.tensor([2])).kspace[0, 0][:, mask].numpy()
    others = train_slices.batch(torch.arange(5)).kspace[:, 0].numpy()
    shares = others / np.sqrt((np.abs(others) ** 2).sum(axis=(1, 2), keepdims=True))
    variance = (np.abs(shares - shares.mean(axis=0)) ** 2).mean(axis=0)
    entries = ((variance / variance.mean()) ** -0.5)[:, mask]
    distances = np.array(
        [
            (entries * np.abs(own / np.linalg.norm(own) - x / np.linalg.norm(x)) ** 2).sum()
            for x in others[:, :, mask]
        ]
    )
    weights = np.exp(-distances / 0.2) / np.exp(-distances / 0.2).sum()
    counts = evenly_drawn(torch.tensor(weights), 200).numpy()
    assert np.abs(counts - 200 * weights).max() < 1
    for column in (~mask).nonzero()[:, 0].tolist():
        after = mask.clone()
        after[column] = True
        gains = [
            score_by_hand(train_slices, j, after) - score_by_hand(train_slices, j, mask)
            for j in range(5)
        ]
        assert float(found[column]) == pytest.approx(float(counts @ gains) / 200, abs=2e-6)
    effective = average_effective(policy)[0]
    assert effective == pytest.approx(1 / float((weights**2).sum()), rel=1e-3)


def test_unmeasured_columns_change_no_choice(test_slices: SliceSet, train_slices: SliceSet) -> None:
    policy = posterior(train_slices, Kernel(0.0, 0.1))
    assert_unmeasured_columns_change_no_score(policy, test_slices, N_INITIAL)


def test_it_keeps_the_contract_of_policies(train_slices: SliceSet) -> None:
    check_policy(posterior(train_slices, Kernel(1.0, 0.3)), n_rows=18, n_cols=13)


def test_a_slice_that_is_in_the_pool_is_acquired_as_by_the_oracle(test_slices: SliceSet) -> None:
    """With narrow weights the posterior is the slice itself."""
    policy = posterior(test_slices, Kernel(0.0, 1e-6))
    batch = test_slices.batch(torch.arange(len(test_slices)))
    simulator = Simulator(batch, ZeroFilled())
    state = simulator.start(N_INITIAL)
    gains = simulator.score_every_column(state) - state.score[:, None]
    scores = policy(simulator.observe(policy, state))
    left = ~state.mask
    torch.testing.assert_close(scores[left], gains[left], atol=2e-5, rtol=0)
    assert max(policy.effective[0]) < 1.01


def test_agreement_has_no_weight_where_it_tells_nothing(train_slices: SliceSet) -> None:
    """Slices of one volume leave nobody to learn from: all slices count alike."""
    alone = train_slices.of_volumes("e")
    found = fit_kernels(alone, ZeroFilled(), initial=N_INITIAL, horizon=2)
    assert found == [Kernel(), Kernel()]


def test_agreement_counts_where_slices_come_in_kinds() -> None:
    """Two kinds of images need different columns, and the center tells them apart."""
    generator = torch.Generator().manual_seed(0)
    cols = torch.arange(16.0)
    waves = [1 + torch.cos(2 * torch.pi * n * cols / 16) * 0.5 for n in (5, 7)]
    slopes = [torch.cos(2 * torch.pi * cols / 16), -torch.cos(2 * torch.pi * cols / 16)]
    images = [
        (3 + slopes[n % 2] + waves[n % 2] + 0.05 * torch.rand(18, 16, generator=generator))
        for n in range(12)
    ]
    slices = SliceSet.from_images(torch.stack(images), [str(n) for n in range(12)])
    (kernel,) = fit_kernels(slices, ZeroFilled(), initial=N_INITIAL, horizon=1, batch_size=5)
    assert kernel.width < 10
    policy = posterior(slices, kernel)
    chosen = [int(policy(observe(policy, slices, row))[0].argmax()) for row in range(4)]
    assert [abs(column - 8) for column in chosen] == [5, 7, 5, 7]


def test_a_pool_that_no_memory_holds_is_refused(
    train_slices: SliceSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kscout.device.free_memory", lambda _: 1000)
    with pytest.raises(ConfigError, match=r"comparing with 5 training slices.*lower --pool"):
        Pool(train_slices)


def test_coils_are_compared_one_by_one() -> None:
    kspace = coil_kspace(6, 3, 16, 18)
    slices = SliceSet.from_kspace(kspace, [str(n) for n in range(6)])
    policy = posterior(slices, Kernel(power=0.0, width=1e-3))
    simulator = Simulator(slices.batch(torch.arange(6)), ZeroFilled(), protocol="blind")
    policy(simulator.observe(policy, simulator.start(4)))
    # Every slice agrees with itself, and with no other.
    assert policy.effective[0] == pytest.approx([1.0] * 6, abs=1e-3)
