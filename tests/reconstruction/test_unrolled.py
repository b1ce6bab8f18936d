"""A network in k-space learns and is scored through the noun alone: coils and a rectangle."""

from pathlib import Path

import torch
from unrolled import Unrolled

import kscout
from kscout.acquisition.episode import Simulator
from kscout.acquisition.loop import rollout
from kscout.acquisition.plan import Plan
from kscout.config import Component, ReconstructorConfig, ReconstructorTraining
from kscout.contracts import check_reconstructor
from kscout.core import Measurement, SliceBatch
from kscout.data import StoreWriter
from kscout.data.kinds import KSPACE
from kscout.evaluation.request import EvaluationSetting
from kscout.physics.fourier import fft2c
from kscout.physics.normalization import magnitude, statistics
from kscout.physics.sampling import center_mask
from kscout.policies import POLICIES
from kscout.reconstruction import load
from kscout.reconstruction.zero_filled import ZeroFilled
from kscout.training.reconstructor import train_reconstructor, training_loss

N_SLICES, N_COILS, N_ROWS, N_COLS, N_INITIAL = 3, 2, 14, 11, 3
TRAINING = ReconstructorTraining(protocol="blind")


def coil_batch(generator: torch.Generator) -> SliceBatch:
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
    batch, model = coil_batch(generator), Unrolled()
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
    batch = coil_batch(generator)
    size = {"n_rows": N_ROWS, "n_cols": N_COLS}
    model = Unrolled().frozen(precision="auto", device="cpu", **size)
    simulator = Simulator(batch, model, protocol="blind")
    state = simulator.acquire(simulator.start(N_INITIAL), torch.tensor([0, 9, 2]))
    measured = Measurement.of(batch.kspace, state.mask)
    torch.testing.assert_close(state.zero_filled, measured.zero_filled, atol=1e-4, rtol=0)
    torch.testing.assert_close(measured.kspace, batch.kspace * state.mask[:, None, None])
    with torch.no_grad():
        expected = model.reconstruct(measured)
    torch.testing.assert_close(state.image, expected.image, atol=1e-4, rtol=0)
    torch.testing.assert_close(state.std, expected.std)
    oracle = rollout(POLICIES["oracle"](), simulator, Plan(N_INITIAL, 4))
    first = rollout(POLICIES["random"](), simulator, Plan(N_INITIAL, 4))
    assert oracle.ssim[:, 0, 1].mean() >= first.ssim[:, 0, 1].mean()


def test_a_store_of_coils_is_trained_on_and_evaluated(
    generator: torch.Generator, tmp_path: Path
) -> None:
    with StoreWriter(tmp_path / "store", {"made by": "tests"}, kind=KSPACE) as writer:
        for split in ("train", "val"):
            writer.append(split, split, coil_batch(generator).kspace.numpy())
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
        n_initial=N_INITIAL, steps=3, trajectories=2, protocol="blind", split="val", device="cpu"
    )
    found = kscout.evaluate(["random", "fixed", "oracle"], store, run.path, setting)
    means = {row["policy"]: row["final"]["ssim"]["mean"] for row in found.summary["policies"]}
    assert means["oracle"] >= means["random"]
