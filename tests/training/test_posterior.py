"""Posterior samples agree with the measurement, and columns are tried on them only."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from posterior_policies import SAMPLER, SHORT, config_of, estimator_of, some_mask, some_policy
from training_stores import CONV, Train, blob_store, small_config, train_whole_and_cut, weights

from coil_data import coil_store
from kscout import policies
from kscout.acquisition import Advisor, Scan, Session
from kscout.acquisition.episode import SimulatedContext, Simulator
from kscout.acquisition.plan import Plan
from kscout.apps.export.onnx import export_onnx
from kscout.core import SliceBatch
from kscout.data.store import Store
from kscout.data.store_writer import StoreWriter
from kscout.errors import ConfigError
from kscout.evaluation.running.trajectories import check_fits
from kscout.physics.fourier import conjugate_mirror, fft2c, opposite
from kscout.physics.sampling import apply_mask, center_mask
from kscout.policies.fixed import FixedOrder
from kscout.policies.posterior import PosteriorPolicy, moved_noises, noises
from kscout.reconstruction.zero_filled import ZeroFilled
from kscout.training.algorithms.posterior import Posterior, energy_score


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return blob_store(tmp_path_factory.mktemp("store") / "store", n_rows=16, n_cols=16)


@pytest.fixture
def batch(store: Store) -> SliceBatch:
    return store.split("train").batch(torch.arange(3))


def test_drawn_images_are_real_differ_and_agree_with_what_was_measured(batch: SliceBatch) -> None:
    policy, mask = some_policy(), some_mask(3)
    noise = noises(16, 16, torch.device("cpu"))[:2].expand(3, -1, -1, -1)
    drawn = policy.draw(batch.kspace * mask[:, None, None], mask, noise)
    found = fft2c(drawn)
    known = mask | mask[:, opposite(16, mask.device)]
    assert known.sum() == 3 * 5  # Columns 2 and 14 are opposites, as are 7 and 9.
    there = known[:, None, None].expand(found.shape)
    truth = batch.kspace.expand(found.shape)
    torch.testing.assert_close(found[there], truth[there], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found, conjugate_mirror(found), rtol=1e-4, atol=1e-5)
    assert ((drawn[:, 0] - drawn[:, 1]).abs().amax(dim=(1, 2)) > 1e-4).all()


def test_what_was_not_measured_changes_nothing(batch: SliceBatch) -> None:
    policy, mask = some_policy(), some_mask(3)
    other = replace(batch, kspace=torch.where(mask[:, None, None], batch.kspace, 7.0))
    other = replace(other, target=batch.target + 1, data_range=batch.data_range * 2)
    scores = []
    for one in (batch, other):
        simulator = Simulator(one, ZeroFilled(), protocol="blind")
        seen = simulator.observe(policy, simulator.start_from(mask), n_left=None)
        scores.append(policy.bind(simulator.context)(seen))
    torch.testing.assert_close(*scores)


def test_scores_are_mean_gains_on_the_drawn_images(batch: SliceBatch) -> None:
    policy, mask = some_policy(), some_mask(3)
    simulator = Simulator(batch, ZeroFilled(), protocol="paper")
    seen = simulator.observe(policy, simulator.start_from(mask), n_left=None)
    assert simulator.context == SimulatedContext(simulator.reconstructor, "paper", "ssim")
    found = policy.bind(simulator.context)(seen)
    noise = noises(16, 16, torch.device("cpu"))[:3].expand(3, -1, -1, -1)
    images = policy.draw(batch.kspace * mask[:, None, None], mask, noise).clamp(min=0)
    for column in (0, 5, 12):
        after = mask.clone()
        after[:, column] = True
        gains = []
        for image in images.unbind(dim=1):
            truth = policy.as_slices(image)
            torch.testing.assert_close(truth.data_range, 4 * image.std(dim=(1, 2)))
            own = Simulator(truth, ZeroFilled(), protocol="paper")
            gains.append(own.start_from(after).score - own.start_from(mask).score)
        mean = torch.stack(gains).mean(dim=0)
        torch.testing.assert_close(found[:, column], mean, rtol=1e-4, atol=1e-5)
    assert (found[mask] == 0).all()


def test_columns_that_gain_little_at_first_are_tried_on_few_draws(batch: SliceBatch) -> None:
    mask = some_mask(3)
    simulator = Simulator(batch, ZeroFilled())

    def scores(**how: int) -> torch.Tensor:
        policy = some_policy(**how).bind(simulator.context)
        return policy(simulator.observe(policy, simulator.start_from(mask), n_left=None))

    found, whole, first = scores(n_draws=5, n_best=4), scores(n_draws=5), scores(n_draws=2)
    best = first.masked_fill(mask, -torch.inf).topk(4, dim=-1).indices
    chosen = found.gather(-1, best)
    torch.testing.assert_close(chosen, whole.gather(-1, best), rtol=1e-4, atol=1e-6)
    rest = torch.ones_like(mask).scatter(-1, best, False) & ~mask
    least = chosen.amin(dim=-1, keepdim=True).expand(found.shape)
    wanted = torch.minimum(first, least)[rest]
    torch.testing.assert_close(found[rest], wanted, rtol=1e-4, atol=1e-6)
    # Where fewer columns are left than would be tried, measured ones do not come in.
    few = ~torch.zeros_like(mask)
    few[:, [1, 14]] = False
    policy = some_policy(n_draws=5, n_best=4).bind(simulator.context)
    last = policy(simulator.observe(policy, simulator.start_from(few), n_left=None))
    assert last.isfinite().all() and (last[few] == 0).all()
    assert (last[~few] != 0).all()
    none = policy(
        simulator.observe(policy, simulator.start_from(torch.ones_like(few)), n_left=None)
    )
    assert (none == 0).all()


def test_images_of_odd_and_unequal_sides_agree_with_what_was_measured() -> None:
    generator, policy = torch.Generator().manual_seed(0), some_policy()
    images = torch.rand(2, 14, 11, generator=generator)
    mask = torch.zeros(2, 11, dtype=torch.bool)
    mask[:, [1, 5, 6]] = True
    kspace = apply_mask(fft2c(images)[:, None], mask)
    noise = moved_noises(14, 11, torch.rand(2, 2, 3, generator=generator))
    found = fft2c(policy.draw(kspace, mask, noise))
    for column in (1, 9, 5, 4, 6):  # 9 and 4 are the opposites of 1 and 6.
        wanted = fft2c(images)[:, None, :, column].expand(-1, 2, -1)
        torch.testing.assert_close(found[..., column], wanted, rtol=1e-4, atol=1e-5)
    assert ((found[..., 2] - fft2c(images)[:, None, :, 2]).abs() > 1e-3).any()


def test_noises_that_are_moved_around_stay_noise() -> None:
    known = noises(8, 6, torch.device("cpu"))
    numbers = torch.tensor([[[0.0, 0.0, 0.0], [3.5 / 64, 0.5, 0.999]]])
    found = moved_noises(8, 6, numbers)
    torch.testing.assert_close(found[0, 0], known[0])
    torch.testing.assert_close(found[0, 1], known[3].roll((-4, -5), dims=(0, 1)))


def test_other_networks_methods_and_data_are_refused(
    store: Store, tmp_path: Path, train: Train
) -> None:
    slices, coils = store.split("train"), coil_store(tmp_path / "coils")
    plan, policy = Plan(start=2, horizon=2, protocol="blind"), some_policy()
    simulator = Simulator(slices.batch(torch.arange(1)), ZeroFilled())
    seen = simulator.observe(policy, simulator.start(4), n_left=None)
    bare, bound = replace(seen, zero_filled=None), policy.bind(simulator.context)
    by_gradients = [small_config(SAMPLER, {"method": name}) for name in ("dense", "greedy")]
    refused: list[tuple[Callable[[], object], str]] = [
        *((partial(train, one), r"train it with --method posterior") for one in by_gradients),
        (
            lambda: train(config_of(CONV)),
            r"ConvPolicy samples none; use policy\.name = 'posterior'",
        ),
        (lambda: PosteriorPolicy(n_draws=65), "n_draws at most 64"),
        (
            lambda: PosteriorPolicy(n_draws=2, n_first=3),
            "n_first is 3; use 1 to n_draws, which is 2",
        ),
        (
            lambda: train(config_of(protocol="blind"), on=coils),
            "posterior samples are real images, and the store holds kspace",
        ),
        (
            lambda: check_fits(policy, coils.split("train"), plan),
            "samples real images, and the slices are kspace",
        ),
        (
            lambda: export_onnx(tmp_path / "a.onnx", None, policy, n_rows=16, n_cols=16),
            "which ONNX cannot represent",
        ),
        (lambda: policy(seen), r"use policy\.bind\(simulator\.context\) and"),
        (lambda: bound(bare), r"use policy\.bind\(simulator\.context\) and"),
    ]
    for attempt, words in refused:
        with pytest.raises(ConfigError, match=words):
            attempt()
    scan = Scan(n_rows=16, n_cols=16, n_coils=3, budget=7, initial=4)
    words = "samples real images, and 3 coils are measured"
    with Advisor(ZeroFilled(), policy) as advisor, pytest.raises(ConfigError, match=words):
        Session(advisor, scan)


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
    estimator = estimator_of(config_of(), store)
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


def test_training_draws_better_images_and_is_the_same_again(store: Store, train: Train) -> None:
    config = config_of(n_epochs=6, learning_rate=5e-3)
    runs = [train(config, name) for name in ("one", "other")]
    first, second = (weights(run.path) for run in runs)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert runs[0].metrics[-1]["train_ssim"] > runs[0].metrics[0]["train_ssim"]
    policy = policies.load(runs[0].path)
    assert isinstance(policy, PosteriorPolicy) and not policy.is_stochastic


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


def test_a_start_brings_its_weights_but_not_its_range(train: Train, tmp_path: Path) -> None:
    start = some_policy()
    start.range_per_std.fill_(77.0)
    policies.save(tmp_path / "start.safetensors", start)
    config = small_config({"name": "posterior"}, {"method": "posterior", "n_epochs": 1, **SHORT})
    how = {"start": tmp_path / "start.safetensors", "device": "cpu"}
    run = train(config, **how)
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


@pytest.mark.cuda
@pytest.mark.parametrize("compiles", [False, True])
@pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex")
@pytest.mark.filterwarnings("ignore:.*script_method.* is deprecated:DeprecationWarning")
def test_on_cuda_it_learns_by_a_graph_and_scores_as_on_a_cpu(
    store: Store, train: Train, compiles: bool
) -> None:
    run = train(config_of(n_epochs=6, learning_rate=5e-3, compile=compiles), device="cuda")
    assert run.metrics[-1]["train_ssim"] > run.metrics[0]["train_ssim"]
    batch, scores = store.split("val").batch(torch.arange(5)), []
    for device in ("cpu", "cuda"):
        policy = policies.load(run.path, device=device)
        simulator = Simulator(batch.to(device), ZeroFilled())
        seen = simulator.observe(policy, simulator.start(4), n_left=None)
        scores.append(policy.bind(simulator.context)(seen)[~seen.mask].cpu())
    # Drawn in 16 bit on CUDA.
    assert float(torch.corrcoef(torch.stack(scores))[0, 1]) > 0.98
