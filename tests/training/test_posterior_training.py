"""Training of posterior samplers: masks, what is learned, and that it resumes exactly."""

from pathlib import Path

import numpy as np
import pytest
import torch
from posterior_policies import SHORT, config_of, estimator_of, some_policy
from training_stores import small_config, train_whole_and_cut, weights

from kscout import policies
from kscout.acquisition.episode import Simulator
from kscout.data.store import Store
from kscout.data.store_writer import StoreWriter
from kscout.errors import ConfigError
from kscout.physics.sampling import center_mask
from kscout.policies.fixed import FixedOrder
from kscout.policies.posterior import PosteriorPolicy
from kscout.reconstruction.zero_filled import ZeroFilled
from kscout.training.algorithms.posterior import Posterior, energy_score
from kscout.training.policy import train_policy


def test_the_energy_score_is_least_for_draws_like_the_truth() -> None:
    generator = torch.Generator().manual_seed(0)
    truth, first, second = torch.randn(3, 4000, 2, 2, generator=generator)
    unit = torch.full((4000,), 1.0)

    def score(factor: float, shift: float = 0.0) -> float:
        drawn = torch.stack([first, second], dim=1) * factor + shift
        return float(energy_score(drawn, truth, unit))

    right = score(1.0)
    assert right < min(score(0.0), score(0.5), score(2.0), score(1.0, 0.5)) - 0.01
    one = torch.tensor([[[[1.0]], [[3.0]]]])
    # Of one pixel k-space is the same: (1 + 1 - 2) / 2 twice for the truth in the middle.
    assert float(energy_score(one, torch.tensor([[[2.0]]]), unit[:1])) == pytest.approx(0, abs=1e-6)
    assert float(energy_score(one, torch.tensor([[[5.0]]]), unit[:1])) == pytest.approx(4.0)


def test_the_energy_score_does_not_depend_on_the_units_of_images() -> None:
    generator = torch.Generator().manual_seed(0)
    drawn, truth = torch.randn(8, 2, 6, 5, generator=generator), torch.randn(8, 6, 5)
    unit = torch.ones(8)
    wanted = energy_score(drawn, truth, unit)
    for scale in (1e-6, 1e4):
        found = energy_score(scale * drawn, scale * truth, scale * unit)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=0)


def drawn_masks(estimator: Posterior, index: torch.Tensor, *, is_mirrored: bool) -> torch.Tensor:
    batch, generator = estimator.slices.batch(index), torch.Generator().manual_seed(0)
    columns, counts = (torch.rand(len(index), n, generator=generator) for n in (16, 4))
    mirrored = torch.full((len(index),), is_mirrored)
    return estimator._masks(batch, columns, counts, mirrored)


def test_masks_hold_a_start_and_fewer_columns_than_the_budget(store: Store) -> None:
    estimator = estimator_of(config_of(starts=(2, 4)), store)
    mask = drawn_masks(estimator, torch.zeros(400, dtype=torch.int64), is_mirrored=False)
    setting = estimator.config.acquisition
    assert setting.n_initial + setting.horizon == 5
    assert set(mask.sum(dim=-1).tolist()) == {2, 3, 4} and mask[:, 7:9].all()


def test_columns_that_gain_more_on_average_are_measured_more_often(store: Store) -> None:
    estimator = estimator_of(config_of(), store)
    n_steps = estimator.config.acquisition.horizon
    torch.testing.assert_close(estimator.gains.std(dim=-1), torch.ones(n_steps))
    mask = drawn_masks(estimator, torch.zeros(9000, dtype=torch.int64), is_mirrored=False)
    is_open, alone = ~center_mask(16, 2), mask[mask.sum(dim=-1) == 3]
    often = alone.float().mean(dim=0)[is_open]
    # One column is drawn by the softmax of gains, more or less sharp, as they are before the next.
    sharpness = torch.linspace(0.5, 2.5, 201)[:, None]
    wanted = torch.softmax(sharpness * estimator.gains[1][is_open], dim=-1).mean(dim=0)
    torch.testing.assert_close(often, wanted, rtol=0, atol=0.03)
    assert wanted.max() > 3 * wanted.min() and len(alone) > 2500


def test_masks_follow_another_policy_on_mirrored_slices_too(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "other.safetensors"
    policies.save(path, FixedOrder(n_cols=16, order=[3, 12, 5]))
    estimator = estimator_of(config_of(follows=str(path)), store)
    assert estimator.followed is not None and estimator.followed.tolist() == [[3, 12, 5]] * 11
    index = torch.arange(11).repeat(60)
    for is_mirrored, wanted in ((False, [3, 12]), (True, [13, 4])):
        mask = drawn_masks(estimator, index, is_mirrored=is_mirrored)
        n_more = mask.sum(dim=-1) - 2
        for n, least, most in ((1, 0.7, 0.9), (2, 0.57, 0.8)):
            expected = center_mask(16, 2)
            expected[wanted[:n]] = True
            share = (mask[n_more == n] == expected).all(dim=-1).float().mean()
            # All are kept of one half; of the other each is with a probability that is drawn:
            # 3/4 and 2/3 in all, and some chance.
            assert least < float(share) < most
    with pytest.raises(ConfigError, match=r"leave out training\.starts"):
        config_of(follows="a", starts=(2,))


def test_training_draws_better_images_and_is_the_same_again(store: Store, tmp_path: Path) -> None:
    config = config_of(n_epochs=6, learning_rate=5e-3)
    runs = [
        train_policy(config, store, "zero-filled", tmp_path / name, device="cpu")
        for name in ("one", "other")
    ]
    first, second = (weights(run.path) for run in runs)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert runs[0].metrics[-1]["train_ssim"] > runs[0].metrics[0]["train_ssim"]
    policy = policies.load(runs[0].path)
    assert isinstance(policy, PosteriorPolicy) and not policy.is_stochastic
    slices = store.split("train")
    every = slices.batch(torch.arange(len(slices)))
    wanted = float(every.data_range.sum() / every.target_std.sum())
    assert float(policy.range_per_std) == pytest.approx(wanted, rel=1e-5)


def test_a_dark_slice_of_a_bright_volume_does_not_change_the_range(tmp_path: Path) -> None:
    bright = np.random.default_rng(0).random((6, 16, 16), dtype=np.float32)
    with StoreWriter(tmp_path / "store", {"made by": "tests"}) as writer:
        writer.append("train", "a", np.concatenate([bright, np.zeros_like(bright[:1])]))
        writer.append("val", "b", bright)
        store = writer.finish()
    estimator = estimator_of(config_of(), store)
    policy = estimator.sampler
    batch = store.split("train").batch(torch.arange(7))
    wanted = float(batch.data_range.sum() / batch.target_std.sum())
    assert float(policy.range_per_std) == pytest.approx(wanted, rel=1e-5) and wanted < 6


def test_a_start_brings_its_weights_but_not_its_range(store: Store, tmp_path: Path) -> None:
    start = some_policy()
    start.range_per_std.fill_(77.0)
    policies.save(tmp_path / "start.safetensors", start)
    config = small_config({"name": "posterior"}, {"method": "posterior", "n_epochs": 1, **SHORT})
    how = {"start": tmp_path / "start.safetensors", "device": "cpu"}
    run = train_policy(config, store, "zero-filled", tmp_path / "run", **how)
    policy = policies.load(run.path)
    assert isinstance(policy, PosteriorPolicy)
    assert float(policy.range_per_std) < 20 and policy.n_channels == 4
    assert run.provenance.inputs["start"]


def test_a_training_that_follows_another_policy_resumes_alike(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "other.safetensors"
    policies.save(path, FixedOrder(n_cols=16, order=[3, 12, 5]))
    train_whole_and_cut(config_of(follows=str(path)), store, tmp_path, epoch=2)
    policies.save(path, FixedOrder(n_cols=32, order=[3, 12, 5]))
    with pytest.raises(ConfigError, match="for 32 columns, the slices have 16"):
        estimator_of(config_of(follows=str(path)), store)
    with pytest.raises(ConfigError, match="9 columns leave nothing to choose of a budget of 5"):
        estimator_of(config_of(starts=(2, 9)), store)


def test_interrupted_training_ends_with_the_same_weights(store: Store, tmp_path: Path) -> None:
    train_whole_and_cut(config_of(), store, tmp_path, epoch=2)


@pytest.mark.cuda
@pytest.mark.parametrize("compiles", [False, True])
@pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex")
@pytest.mark.filterwarnings("ignore:.*script_method.* is deprecated:DeprecationWarning")
def test_on_cuda_it_learns_by_a_graph_and_scores_as_on_a_cpu(
    store: Store, tmp_path: Path, compiles: bool
) -> None:
    config = config_of(n_epochs=6, learning_rate=5e-3, compile=compiles)
    run = train_policy(config, store, "zero-filled", tmp_path / "run", device="cuda")
    assert run.metrics[-1]["train_ssim"] > run.metrics[0]["train_ssim"]
    batch, scores = store.split("val").batch(torch.arange(5)), []
    for device in ("cpu", "cuda"):
        policy = policies.load(run.path, device=device)
        simulator = Simulator(batch.to(device), ZeroFilled())
        seen = simulator.observe(policy, simulator.start(4), n_left=None)
        scores.append(policy.bind(simulator.context)(seen)[~seen.mask].cpu())
    # Drawn in 16 bit on CUDA.
    assert float(torch.corrcoef(torch.stack(scores))[0, 1]) > 0.98
