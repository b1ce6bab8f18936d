"""Dense gains: what is tried, what is learned, and that a training is repeatable and resumes."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor
from training_stores import COLUMN, CONV, Train, blob_store, dense_config, stopping_at

from coil_data import coil_store
from kscout import policies, reconstruction
from kscout.acquisition.episode import Simulator
from kscout.acquisition.loop import rollout
from kscout.acquisition.plan import Plan
from kscout.config import DenseTraining, PolicyConfig
from kscout.core import Observation
from kscout.data.store import Store
from kscout.errors import RunError, WeightsError
from kscout.policies import views
from kscout.reconstruction.varnet import VarNet
from kscout.reconstruction.zero_filled import ZeroFilled
from kscout.training.algorithms import dense
from kscout.training.algorithms.dense import add_gradients, columns_to_try, dense_loss
from kscout.training.augmentation import mirrored
from kscout.training.fixed_order import filled_gains, fit_fixed_order
from kscout.training.policy import train_policy
from kscout.training.states import Memory, Rows, joined

VARNET = {
    **{"n_cascades": 1, "n_channels": 2, "n_pools": 1},
    **{"sensitivity_channels": 2, "sensitivity_pools": 1},
}


def test_a_repeated_step_has_no_more_states_than_its_batch() -> None:
    training = PolicyConfig.of("dense").training
    assert isinstance(training, DenseTraining)
    # A batch of 48 slices, or of all.
    assert [training.n_seen_again(*x) for x in ((999, 16), (999, 4), (7, 4))] == [256, 192, 28]
    assert replace(training, n_repeated=300).n_seen_again(7, 4) == 300


def test_the_loss_is_the_squared_error_less_the_expected_gain() -> None:
    scores = torch.tensor([[1.0, 3.0, 9.0]], requires_grad=True)
    gains = torch.tensor([[2.0, 1.0, torch.nan]])
    is_valid = torch.tensor([[True, True, False]])
    chances = torch.softmax(torch.tensor([1.0, 3.0]), dim=0)
    wanted = (1.0 + 4.0) / 2 - float(chances @ torch.tensor([2.0, 1.0]))
    found = dense_loss(scores, gains, is_valid)
    torch.testing.assert_close(found, torch.tensor([wanted]))
    (slopes,) = torch.autograd.grad(found.sum(), scores)
    assert slopes.isfinite().all() and slopes[0, 2] == 0


def test_the_best_columns_are_tried_first_and_others_at_random() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(40, 13, generator=generator)
    blocked = torch.rand(40, 13, generator=generator) < 0.3
    columns = columns_to_try(scores, blocked, torch.rand(40, 5, generator=generator), 3)
    assert columns.shape == (40, 8)
    assert not blocked.gather(-1, columns).any()
    ranked = scores.masked_fill(blocked, -torch.inf).argsort(dim=-1, descending=True)
    assert torch.equal(columns[:, :3], ranked[:, :3])
    assert not (columns[:, 3:, None] == columns[:, None, :3]).any()


def test_blocked_columns_stand_in_where_too_few_are_left() -> None:
    blocked = torch.tensor([[True, False, True, True]])
    columns = columns_to_try(torch.zeros(1, 4), blocked, torch.tensor([[0.3, 0.9]]), 2)
    assert columns.shape == (1, 4)
    assert columns[0, 0] == 1
    assert blocked[0, columns[0, 1]]


@pytest.mark.slow
@pytest.mark.parametrize("policy", [COLUMN, CONV], ids=["column", "conv"])
def test_a_trained_policy_takes_its_best_column(
    store: Store, train: Train, policy: dict[str, object]
) -> None:
    run = train(dense_config(policy))
    assert len(run.metrics) == 2
    trained = policies.load(run.path)
    assert not trained.is_stochastic
    # What a score of 1 stands for: the spread of gains along a fixed order, at each step.
    slices = store.split("train")
    gains = fit_fixed_order(slices, ZeroFilled(), Plan(2, 3), n_slices_per_step=4).gains
    spread = [float(np.nanstd(row)) for row in gains.numpy()]
    np.testing.assert_allclose(trained.gain_units, spread, rtol=1e-5)


def test_gains_of_another_metric_are_no_promise_of_ssim(train: Train) -> None:
    run = train(dense_config(CONV, metric="psnr", n_epochs=1))
    assert policies.load(run.path).gain_units == ()


def test_what_an_estimator_set_goes_with_the_policy_into_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy, view = (policies.POLICIES["conv"](n_cols=16) for _ in range(2))
    policy.is_stochastic, policy.gain_units = False, (0.1, 0.2)
    kernels = SimpleNamespace(chooser=view)
    monkeypatch.setattr(type(policy), "view", lambda *_: kernels)
    found = views.in_precision(policy, "fp16")
    assert found is view and not found.is_stochastic and found.gain_units == (0.1, 0.2)


@pytest.mark.parametrize("units", ["much", [1.0, "x"], [float("nan")], {"a": 1}])
def test_units_that_are_no_numbers_are_refused(tmp_path: Path, units: object) -> None:
    path, policy = tmp_path / "a.safetensors", policies.POLICIES["conv"](n_cols=16)
    policies.save(path, policy, extra={"gain_units": units})
    with pytest.raises(WeightsError, match="units of gain that are not numbers"):
        policies.load(path)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_what_is_learned_again_is_what_the_columns_gain(
    store: Store, train: Train, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    added, drawn = [], []
    add, draw = Memory.add, Memory.draw
    config = dense_config(n_repeats=2, n_repeated=5, precision="fp32")

    def adding(own: Memory, new: Rows) -> None:
        added.append({name: value.clone() for name, value in new.items()})
        add(own, new)

    monkeypatch.setattr(Memory, "add", adding)
    monkeypatch.setattr(Memory, "draw", lambda own, u: (drawn.append(len(u)), draw(own, u))[1])
    run = train(config, device=device)
    slices = store.split("train")
    assert run.metrics[0]["n_decisions"] == 3 * len(slices)
    assert run.metrics[0]["n_reconstructions"] == len(slices) * (1 + 3 * 5)
    n_batches = 2 * -(-len(slices) // 4)
    assert len(added) == n_batches and drawn == [5] * 2 * n_batches
    rows = {name: torch.cat([new[name] for new in added]).cpu() for name in added[0]}
    # In each epoch each slice comes at each of its three steps.
    assert rows["index"].bincount().tolist() == [2 * 3] * len(slices)
    assert len(rows["step"].unique()) == 3
    batch = slices.batch(rows["index"])
    simulator = Simulator(mirrored(batch, rows["is_mirrored"]), ZeroFilled())
    state, columns = simulator.start_from(rows["mask"]), rows["columns"].long()
    gains = simulator.score_columns(state, columns) - state.score[:, None]
    assert torch.equal(rows["mask"].sum(dim=-1), rows["step"] + 2)
    units = torch.tensor(policies.load(run.path).gain_units)[rows["step"].long()]
    is_measured = rows["mask"].gather(-1, columns)
    error = (rows["gains"] - gains / units[:, None]).masked_fill(is_measured, 0)
    assert error.abs().amax() < 1e-2 and rows["gains"].std() > 0.3


@pytest.mark.parametrize("kind", ["images", "coils"])
def test_a_state_that_is_seen_again_is_what_was_seen(
    store: Store, tmp_path: Path, kind: str
) -> None:
    changes = {"n_repeats": 1, "n_repeated": 40, "buffer_size": 100, "n_epochs": 1}
    reconstructor, seen = "zero-filled", []
    if kind == "coils":
        store = coil_store(tmp_path / "store", n_coils=3, noise=0.01)
        reconstructor = str(tmp_path / "varnet.safetensors")
        reconstruction.save(reconstructor, VarNet(**VARNET))
        changes |= {"protocol": "blind", "n_baseline_slices": 1, "n_best": 1, "n_random": 1}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dense, "add_gradients", lambda _, steps, *__: seen.extend(joined(steps, 99)))
        # Some at a time, as where a few fill the memory.
        patch.setattr(dense, "how_many_at_once", lambda *_: 7)
        config = dense_config(**changes)
        train_policy(config, store, reconstructor, tmp_path / "run", device="cpu")
    batches = seen[::2]
    known = {name: torch.cat([rows[name] for rows in batches]) for name in batches[0]}
    again = seen[-1]
    assert torch.equal(known["n_left"], 3 - known["step"])
    # Gains tell which of the states it is.
    apart = (known["gains"][None] - again["gains"][:, None]).abs().amax(dim=-1)
    which = apart.argmin(dim=-1)
    assert len(again["mask"]) == 40 and len(which.unique()) > 8
    assert again.keys() == known.keys()
    for name, value in known.items():
        torch.testing.assert_close(again[name], value[which], atol=1e-4, rtol=1e-4, msg=name)


@pytest.mark.slow
def test_before_it_learns_the_column_network_takes_the_fixed_order(
    store: Store, train: Train
) -> None:
    run = train(dense_config(learning_rate=1e-12, n_baseline_slices=11))
    policy = policies.load(run.path)
    gains = fit_fixed_order(store.split("train"), ZeroFilled(), Plan(2, 3)).gains
    expected = filled_gains(gains / torch.tensor(policy.gain_units)[:, None])
    torch.testing.assert_close(policy.prior, expected)


def test_a_column_that_only_the_order_has_measured_keeps_its_gain() -> None:
    nan = torch.nan
    gains = torch.tensor([[nan, 3.0, 2.0], [nan, nan, 1.0], [nan, nan, nan]])
    wanted = torch.tensor([[3.0, 3.0, 2.0], [3.0, 3.0, 1.0], [3.0, 3.0, 1.0]])
    assert torch.equal(filled_gains(gains), wanted)
    # No less than the best that is left, where units make a later gain the larger number.
    gains = torch.tensor([[3.0, 2.0, 1.0], [nan, 4.0, 2.0], [nan, nan, 2.0]])
    wanted = torch.tensor([[3.0, 2.0, 1.0], [4.0, 4.0, 2.0], [4.0, 4.0, 2.0]])
    assert torch.equal(filled_gains(gains), wanted)


def test_a_checkpoint_of_an_older_version_is_rejected(train: Train, tmp_path: Path) -> None:
    config, run = dense_config(), tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(config, on_step=stopping_at(2, 1))
    checkpoint = torch.load(run / "checkpoint.pt", weights_only=True)
    checkpoint["facts"]["carried"]["buffers"] = {16: {}}
    torch.save(checkpoint, run / "checkpoint.pt")
    with pytest.raises(RunError, match=r"written by an older version.* name another --out"):
        train(config)


@pytest.mark.cuda
def test_batches_are_graphs_that_learn_as_on_a_cpu(train: Train) -> None:
    config = dense_config(n_repeats=2, n_repeated=5, precision="fp32")
    runs = [train(config, device, device=device) for device in ("cpu", "cuda")]
    for name in ("train_ssim", "val_ssim"):
        before, after = ([epoch[name] for epoch in run.metrics] for run in runs)
        assert after == pytest.approx(before, abs=2e-3), name
    cpu, cuda = (policies.load(run.path) for run in runs)
    torch.testing.assert_close(cuda.prior, cpu.prior, atol=1e-2, rtol=1e-2)


@pytest.mark.slow
def test_a_network_of_32_columns_serves_48_no_worse_than_from_the_center_out(
    tmp_path: Path,
) -> None:
    small, large = (
        blob_store(tmp_path / str(n), n_rows=16, n_cols=n, n_train=16) for n in (32, 48)
    )
    config = dense_config(batch_size=8)
    run = train_policy(config, small, "zero-filled", tmp_path / "run", device="cpu")
    batch = large.split("val").batch(torch.arange(5))
    simulator, ends = Simulator(batch, ZeroFilled()), []
    center_out = policies.build("center-out", n_cols=48, n_initial=3, horizon=5)
    for policy in (policies.load(run.path), center_out):
        ends.append(rollout(policy, simulator, Plan(3, 5)).ssim[:, 0, -1].mean())
    assert ends[0] >= ends[1] - 1e-6


@pytest.mark.parametrize(("n_pixels", "expected"), [(16 * 24, [8]), (100, [2] * 4), (1, [1] * 8)])
def test_the_larger_images_are_the_fewer_are_looked_at_together(
    monkeypatch: pytest.MonkeyPatch, n_pixels: int, expected: list[int]
) -> None:
    monkeypatch.setattr(dense, "N_AT_ONCE", {"cpu": 8})
    policy = policies.POLICIES["conv"](n_rows=16, n_cols=24, n_channels=2, n_hidden=8)
    generator, found, counts = torch.Generator().manual_seed(0), [], []
    rows = {
        **{"image": torch.rand(8, 16, 24, generator=generator), "step": torch.arange(8) % 3},
        **{"mask": torch.rand(8, 24, generator=generator) < 0.3, "gains": torch.rand(8, 5)},
        **{"columns": torch.arange(5).expand(8, 5), "is_valid": torch.arange(5).expand(8, 5) < 4},
    }
    recall = views.Recomputed.recall

    def counted(view: views.Recomputed, seen: Observation, begin: int) -> Tensor:
        assert begin == sum(counts)
        counts.append(len(seen.mask))
        return recall(view, seen, begin)

    monkeypatch.setattr(views.Recomputed, "recall", counted)
    parts = [{name: rows[name][part] for name in rows} for part in (slice(3), slice(3, None))]
    for size in (16 * 24, n_pixels):
        monkeypatch.setattr(dense, "_N_PIXELS", size)
        policy.zero_grad()
        counts.clear()
        add_gradients(views.Recomputed(policy), parts)
        found.append([p.grad.clone() for p in policy.parameters() if p.grad is not None])
    assert counts == expected
    torch.testing.assert_close(found[1], found[0])
    assert any(float(gradient.abs().sum()) > 0 for gradient in found[0])
