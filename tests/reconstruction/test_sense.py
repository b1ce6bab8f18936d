"""Zero-filled images and least squares over all coils."""

from pathlib import Path

import pytest
import torch
from unrolled import Unrolled

import kscout
from coil_slices import coil_batch
from golden_numbers import Golden
from kscout.acquisition.episode import Simulator
from kscout.acquisition.loop import rollout
from kscout.acquisition.plan import Plan
from kscout.config import Component, ReconstructorConfig, ReconstructorTraining
from kscout.contracts import check_reconstructor
from kscout.core import Measurement, SliceBatch
from kscout.data import StoreWriter
from kscout.data.kinds import KSPACE
from kscout.errors import ConfigError
from kscout.evaluation.request import EvaluationSetting
from kscout.physics.fourier import fft2c
from kscout.physics.normalization import denormalize, magnitude, statistics
from kscout.physics.sampling import center_mask
from kscout.policies import POLICIES
from kscout.reconstruction import load
from kscout.reconstruction.sense import Sense
from kscout.reconstruction.zero_filled import ZeroFilled
from kscout.training.reconstructor import train_reconstructor, training_loss

N_INITIAL, COLUMNS = 9, torch.tensor([[2, 7], [30, 28]])


def test_an_acquisition_keeps_the_sensitivities_of_its_start() -> None:
    batch = coil_batch()
    simulator = Simulator(batch, Sense(), protocol="blind")
    start = simulator.start(N_INITIAL)
    assert start.maps is not None
    state = start
    for column in COLUMNS.T:
        state = simulator.acquire(state, column)
    measured = Measurement.of(batch.kspace, state.mask)
    expected = Sense().reconstruct(Measurement(measured.zero_filled, state.mask, maps=start.maps))
    torch.testing.assert_close(state.image, expected.image, atol=1e-4, rtol=0)
    together = simulator.branch(start, COLUMNS[:, None]).state
    torch.testing.assert_close(together.image, expected.image, atol=1e-4, rtol=0)
    torch.testing.assert_close(together.maps, start.maps, atol=0, rtol=0)
    branches = simulator.branch(start, COLUMNS)
    assert branches.follow(torch.tensor([1, 0])).maps is not None


def test_sense_beats_zero_filling() -> None:
    batch = coil_batch()
    mask = (torch.arange(batch.n_cols) % 2 == 0).expand(2, -1).clone()
    mask[:, 12:21] = True
    errors = []
    for reconstructor in (ZeroFilled(), Sense()):
        found = reconstructor(batch.kspace, mask)
        image = denormalize(found.image, found.mean, found.std)
        errors.append((image - batch.target).square().mean())
    assert errors[1] < 0.2 * errors[0]


@pytest.mark.parametrize("factor", [1e-6, 1e5])
def test_units_do_not_matter(factor: float) -> None:
    batch = coil_batch()
    mask = torch.arange(batch.n_cols) % 3 == 0
    mask[10:23] = True
    mask = mask.expand(2, -1)
    plain, scaled = Sense()(batch.kspace, mask), Sense()(batch.kspace * factor, mask)
    torch.testing.assert_close(scaled.image, plain.image, atol=1e-3, rtol=0)
    torch.testing.assert_close(scaled.std, plain.std * factor, atol=0, rtol=1e-4)


@pytest.mark.parametrize("regularization, n_iterations", [(0.0, 5), (-1.0, 5), (0.1, 0)])
def test_settings_without_a_solution_are_refused(regularization: float, n_iterations: int) -> None:
    with pytest.raises(ConfigError, match="both must be above zero"):
        Sense(regularization=regularization, n_iterations=n_iterations)


@pytest.mark.parametrize("size, n_center, key", [(128, 16, "a8"), (128, 4, "a32"), (64, 8, "a8")])
def test_it_is_the_references_input(golden: Golden, size: int, n_center: int, key: str) -> None:
    start = (128 - size) // 2
    image = golden("inputs", "images128")[:, start : start + size, start : start + size]
    mask = center_mask(size, n_center).expand(6, -1)
    found = ZeroFilled()(fft2c(image)[:, None], mask)
    expected = golden("inputs", f"zf_r{size}_{key}")
    torch.testing.assert_close(found.image, expected, atol=1e-4, rtol=0)


def test_coils_are_combined_by_root_sum_of_squares(generator: torch.Generator) -> None:
    kspace = torch.randn(2, 3, 9, 11, dtype=torch.complex64, generator=generator)
    found = ZeroFilled()(kspace, torch.ones(2, 11, dtype=torch.bool))
    shifted = torch.fft.ifftshift(kspace, dim=(-2, -1))
    images = torch.fft.fftshift(torch.fft.ifft2(shifted, norm="ortho"), dim=(-2, -1))
    expected = torch.linalg.vector_norm(images, dim=1)
    undone = found.image * found.std[:, None, None] + found.mean[:, None, None]
    torch.testing.assert_close(undone, expected, atol=1e-5, rtol=1e-5)


N_SLICES, N_COILS, N_ROWS, N_COLS, UNROLLED_N_INITIAL = 3, 2, 14, 11, 3
TRAINING = ReconstructorTraining(protocol="blind")


def unrolled_coil_batch(generator: torch.Generator) -> SliceBatch:
    image = torch.rand(N_SLICES, N_ROWS, N_COLS, generator=generator).cumsum(dim=-1)
    phase = torch.linspace(0, 2, N_ROWS)[:, None] * torch.linspace(0, 1, N_COLS)
    slope = torch.linspace(0.2, 1, N_COLS)
    maps = torch.polar(torch.stack([slope, slope.flip(0)])[:, None].expand(-1, N_ROWS, -1), -phase)
    kspace = fft2c(image[:, None] * maps.to(torch.complex64))
    target = magnitude(image[:, None] * maps)
    mean, std = statistics(target)
    peak, index = target.amax(dim=(-2, -1)), torch.arange(N_SLICES)
    selectable = torch.ones(N_SLICES, N_COLS, dtype=torch.bool)
    return SliceBatch(kspace, target, mean, std, peak, selectable, index)


def test_learned_steps_keep_the_contract() -> None:
    torch.manual_seed(0)
    check_reconstructor(Unrolled(), n_rows=N_ROWS, n_cols=N_COLS, n_coils=N_COILS)


def test_learned_steps_learn_from_several_coils_and_a_rectangle(generator: torch.Generator) -> None:
    torch.manual_seed(0)
    batch, model = unrolled_coil_batch(generator), Unrolled()
    mask = center_mask(N_COLS, 5).expand(N_SLICES, -1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = training_loss(model, batch, mask, TRAINING)
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    assert all(parameter.grad is not None for parameter in model.parameters())
    untrained = training_loss(ZeroFilled(), batch, mask, TRAINING).item()
    assert losses[-1] < 0.9 * losses[0] and losses[-1] < untrained


def test_the_simulator_reconstructs_from_what_was_measured(generator: torch.Generator) -> None:
    torch.manual_seed(0)
    batch = unrolled_coil_batch(generator)
    size = {"n_rows": N_ROWS, "n_cols": N_COLS}
    model = Unrolled().frozen(precision="auto", device="cpu", **size)
    simulator = Simulator(batch, model, protocol="blind")
    state = simulator.acquire(simulator.start(UNROLLED_N_INITIAL), torch.tensor([0, 9, 2]))
    measured = Measurement.of(batch.kspace, state.mask)
    torch.testing.assert_close(state.zero_filled, measured.zero_filled, atol=1e-4, rtol=0)
    torch.testing.assert_close(measured.kspace, batch.kspace * state.mask[:, None, None])
    with torch.no_grad():
        expected = model.reconstruct(measured)
    torch.testing.assert_close(state.image, expected.image, atol=1e-4, rtol=0)
    torch.testing.assert_close(state.std, expected.std)
    oracle = rollout(POLICIES["oracle"](), simulator, Plan(UNROLLED_N_INITIAL, 4))
    first = rollout(POLICIES["random"](), simulator, Plan(UNROLLED_N_INITIAL, 4))
    assert oracle.ssim[:, 0, 1].mean() >= first.ssim[:, 0, 1].mean()


def test_a_store_of_coils_is_trained_on_and_evaluated(
    generator: torch.Generator, tmp_path: Path
) -> None:
    with StoreWriter(tmp_path / "store", {"made by": "tests"}, kind=KSPACE) as writer:
        for split in ("train", "val"):
            writer.append(split, split, unrolled_coil_batch(generator).kspace.numpy())
        store = writer.finish()
    training = ReconstructorTraining(
        protocol="blind",
        n_epochs=12,
        batch_size=3,
        learning_rate=0.01,
        decay_epochs=(),
        accelerations=(2.0,),
        center_fractions=(0.4,),
    )
    config = ReconstructorConfig(Component("unrolled:Unrolled", {"n_steps": 2}), training)
    run = train_reconstructor(config, store, tmp_path / "run", device="cpu")
    losses = [record["train_loss"] for record in run.metrics]
    assert sum(losses[-3:]) < 0.9 * sum(losses[:3])
    assert isinstance(load(run.path), Unrolled)
    setting = EvaluationSetting(
        n_initial=UNROLLED_N_INITIAL,
        steps=3,
        trajectories=2,
        protocol="blind",
        split="val",
        device="cpu",
    )
    found = kscout.evaluate(["random", "fixed", "oracle"], store, run.path, setting)
    means = {row["policy"]: row["final"]["ssim"]["mean"] for row in found.summary["policies"]}
    assert means["oracle"] >= means["random"]
