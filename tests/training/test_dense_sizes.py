"""Dense gains on several matrix sizes at a time."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from training_stores import COLUMN, CONV, blob_store, dense_config

from kscout import policies
from kscout.acquisition.plan import Plan
from kscout.core import Observation
from kscout.data.slices import SliceSet
from kscout.data.store import Store
from kscout.errors import ConfigError
from kscout.physics.sampling import center_mask
from kscout.policies.column import ColumnPolicy
from kscout.policies.views import Recomputed
from kscout.reconstruction.zero_filled import ZeroFilled
from kscout.training.algorithms import dense
from kscout.training.algorithms.dense import Augmentation, BaselineGains, add_gradients, dense_loss
from kscout.training.augmentation import coarser_slices
from kscout.training.fixed_order import filled_gains, fit_fixed_order
from kscout.training.policy import train_policy
from kscout.training.states import Rows, observation_of


def test_before_it_learns_the_column_network_has_the_mean_gains_of_every_size(
    tmp_path: Path,
) -> None:
    large = blob_store(tmp_path / "large", n_rows=32, n_cols=32)
    config = dense_config(sizes=[24, 32, 16], learning_rate=1e-12, n_baseline_slices=11, n_epochs=1)
    # An odd start, of which no coarser matrix has the same share.
    config = replace(config, acquisition=replace(config.acquisition, n_initial=5, horizon=6))
    run = train_policy(config, large, "zero-filled", tmp_path / "run", device="cpu")
    policy, train = policies.load(run.path), large.split("train")
    assert isinstance(policy, ColumnPolicy) and policy.known_cols == [24, 16]
    units = torch.tensor(policy.gain_units)
    for n_cols, n_initial, horizon, rows in (
        (32, 5, 6, [0, 1, 2, 3, 4, 5]),
        # 3 to 7 columns of 24 are 4 to 9.3 of 32, and 2 to 4 of 16 are 4 to 8.
        (24, 3, 5, [0, 0, 2, 3, 4]),
        (16, 2, 3, [0, 1, 3]),
    ):
        gains = policy.prior if n_cols == 32 else policy.get_buffer(f"prior_{n_cols}")
        assert gains.shape == (horizon, n_cols)
        check_mean_gains(gains, coarser_slices(train, n_cols), n_initial, units[rows])


def check_mean_gains(
    gains: torch.Tensor, slices: SliceSet, n_initial: int, units: torch.Tensor
) -> None:
    """Compare what a policy of 32 columns began from with an order fitted for itself."""
    n_steps, n_cols = gains.shape
    fixed = fit_fixed_order(slices, ZeroFilled(), Plan(n_initial, n_steps))
    expected = fixed.gains / units[:, None] * (n_cols / 32)
    left = ~center_mask(n_cols, n_initial)
    for step in range(n_steps):
        found = torch.where(left, gains[step], -torch.inf)
        tried = expected[step].nan_to_num(-torch.inf)
        # Columns that mirror each other gain the same: orders take the first of them.
        told = f"{n_cols} columns from {n_initial}, step {step}"
        torch.testing.assert_close(found.sort()[0], tried.sort()[0], msg=told)
        left[(found > found.max() - 1e-3).nonzero()[0]] = False


def test_before_it_learns_the_column_network_has_the_mean_gains_of_every_start(
    tmp_path: Path,
) -> None:
    large = blob_store(tmp_path / "large", n_rows=32, n_cols=32)
    changes = {"sizes": [32, 16], "starts": [4, 8], "learning_rate": 1e-12, "n_baseline_slices": 11}
    config = dense_config(**changes, n_epochs=1)
    config = replace(config, acquisition=replace(config.acquisition, n_initial=6, horizon=6))
    run = train_policy(config, large, "zero-filled", tmp_path / "run", device="cpu")
    policy, train = policies.load(run.path), large.split("train")
    assert isinstance(policy, ColumnPolicy) and policy.known_starts == [6, 8]
    # Of 4 to 13 columns; a file tells those from 6 on.
    mine = fit_fixed_order(train, ZeroFilled(), Plan(4, 10)).gains
    units = torch.stack([row[~row.isnan()].std(correction=0) for row in mine])
    torch.testing.assert_close(units[2:], torch.tensor(policy.gain_units))
    for n_cols, start in itertools.product((32, 16), (6, 8)):
        name = f"prior_from_{start}" if n_cols == 32 else f"prior_{n_cols}_from_{start}"
        gains, n_each = policy.get_buffer(name), 32 // n_cols
        assert gains.shape == ((14 - start) // n_each, n_cols)
        own = units[start - 4 :: n_each][: len(gains)]
        check_mean_gains(gains, coarser_slices(train, n_cols), start // n_each, own)
    # These are not the later rows of the earliest start.
    assert not torch.allclose(policy.prior[4:].sort()[0], policy.prior_from_8.sort()[0])


def test_gains_of_later_starts_are_those_of_slices_drawn_for_each_step(tmp_path: Path) -> None:
    large = blob_store(tmp_path / "large", n_rows=32, n_cols=32)
    config, train = dense_config(starts=[4, 8], n_baseline_slices=4), large.split("train")
    config = replace(config, acquisition=replace(config.acquisition, n_initial=4, horizon=6))
    sizes = {name: value for name, value in COLUMN.items() if name != "name"}
    policy = ColumnPolicy(n_cols=32, n_initial=4, horizon=10, known_starts=[8], **sizes)
    units = torch.linspace(1, 2, 10)
    BaselineGains(config, train, ZeroFilled(), torch.device("cpu")).give(policy, units)
    assert len(train) > 4
    order = fit_fixed_order(train, ZeroFilled(), Plan(8, 6), n_slices_per_step=4)
    expected = order.gains / units[4:, None]
    torch.testing.assert_close(policy.prior_from_8, filled_gains(expected))


@pytest.mark.cuda
def test_batches_of_several_sizes_and_starts_are_graphs_that_learn_as_on_a_cpu(
    tmp_path: Path,
) -> None:
    large = blob_store(tmp_path / "large", n_rows=32, n_cols=32)
    changes = {"sizes": [16, 32], "starts": [4, 8], "n_repeats": 2, "n_repeated": 5}
    config = dense_config(**changes, precision="fp32", n_epochs=2)
    config = replace(config, acquisition=replace(config.acquisition, n_initial=8, horizon=4))
    runs = [
        train_policy(config, large, "zero-filled", tmp_path / device, device=device)
        for device in ("cpu", "cuda")
    ]
    for name in ("train_ssim", "val_ssim"):
        before, after = ([epoch[name] for epoch in run.metrics] for run in runs)
        assert after == pytest.approx(before, abs=2e-3), name
    policies_of = [policies.load(run.path) for run in runs]
    for name, value in policies_of[0].named_buffers():
        torch.testing.assert_close(policies_of[1].get_buffer(name), value, atol=1e-2, rtol=1e-2)


def test_batches_of_several_sizes_train_one_network(store: Store, tmp_path: Path) -> None:
    learned: list[tuple[int, ...]] = []
    config = dense_config(sizes=[16, 32], n_epochs=1, n_repeats=2, n_repeated=5)
    large = blob_store(tmp_path / "large", n_rows=32, n_cols=32)
    with pytest.MonkeyPatch.context() as patch:
        forward = ColumnPolicy.forward

        def watched(self: ColumnPolicy, seen: Observation) -> torch.Tensor:
            if torch.is_grad_enabled():
                learned.append(tuple(seen.image.shape))
                n_steps = seen.image.shape[-1] * 3 // 32
                assert torch.equal(seen.n_left, n_steps - seen.step)
            return forward(self, seen)

        patch.setattr(ColumnPolicy, "forward", watched)
        run = train_policy(config, large, "zero-filled", tmp_path / "run", device="cpu")
    # 4 and 3 slices take 1 column, 4 take 3; 5 are tried at each step.
    assert run.metrics[0]["n_decisions"] == 7 * 1 + 4 * 3
    assert run.metrics[0]["n_reconstructions"] == 11 + 19 * 5
    # 4, 4 and 3 slices, with 3 states of 32 columns and 1 of half as many, and after each batch
    # states of its size.
    batches = [(4, 16, 16), (12, 32, 32), (3, 16, 16)]
    assert learned == [shape for one in batches for shape in (one, *2 * [(5, *one[1:])])]
    told = Augmentation(dense_config(sizes=[16, 32], horizons=[2, 6]), 32)
    numbers = torch.tensor([[0.0, 0.0, 0.4, 0.0], [0.0, 0.0, 0.6, 0.0]])
    assert [told.horizons(numbers, n).tolist() for n in (16, 32)] == [[1, 3], [2, 6]]
    for policy, changes, message in (
        (CONV, {"sizes": [16]}, "ConvPolicy has one"),
        (COLUMN, {"sizes": [16, 64]}, "go beyond the 16 columns"),
    ):
        with pytest.raises(ConfigError, match=message):
            bad = dense_config(policy, **changes)
            train_policy(bad, store, "zero-filled", tmp_path / "bad", device="cpu")


N_STATES, N_COLS = 8, 24


def labelled_states() -> tuple[ColumnPolicy, Rows]:
    torch.manual_seed(0)
    sizes = {name: value for name, value in COLUMN.items() if name != "name"}
    policy = ColumnPolicy(n_cols=N_COLS, horizon=3, n_initial=2, **sizes)
    torch.nn.init.normal_(policy.head.weight)
    image = torch.rand(N_STATES, 16, N_COLS)
    measured = image[:, None].to(torch.complex64)
    return policy, {
        **{"image": image, "zero_filled": measured, "mean": torch.zeros(N_STATES)},
        **{"std": torch.ones(N_STATES), "mask": torch.rand(N_STATES, N_COLS) < 0.3},
        **{"step": torch.arange(N_STATES) % 3, "columns": torch.arange(5).expand(N_STATES, 5)},
        **{"gains": torch.rand(N_STATES, 5), "is_valid": torch.rand(N_STATES, 5) < 0.9},
    }


@pytest.mark.parametrize(("n_pixels", "expected"), [(16 * 24, [8]), (100, [2] * 4), (1, [1] * 8)])
def test_the_larger_images_are_the_fewer_are_looked_at_together(
    monkeypatch: pytest.MonkeyPatch, n_pixels: int, expected: list[int]
) -> None:
    monkeypatch.setattr(dense, "N_AT_ONCE", {"cpu": 8})
    policy, rows = labelled_states()
    found, counts = [], []
    recall = Recomputed.recall

    def counted(view: Recomputed, seen: Observation, begin: int) -> Tensor:
        assert begin == sum(counts)
        counts.append(len(seen.mask))
        return recall(view, seen, begin)

    monkeypatch.setattr(Recomputed, "recall", counted)
    parts = [{name: rows[name][part] for name in rows} for part in (slice(3), slice(3, None))]
    for size in (16 * 24, n_pixels):
        monkeypatch.setattr(dense, "_N_PIXELS", size)
        policy.zero_grad()
        counts.clear()
        add_gradients(Recomputed(policy), parts, 0.5, N_COLS)
        found.append([p.grad.clone() for p in policy.parameters() if p.grad is not None])
    assert counts == expected
    torch.testing.assert_close(found[1], found[0])
    assert any(float(gradient.abs().sum()) > 0 for gradient in found[0])


def test_a_coarser_matrix_weighs_as_much_as_others_though_its_columns_gain_more() -> None:
    policy, rows = labelled_states()
    add_gradients(Recomputed(policy), [rows], 0.5, 2 * N_COLS)
    found = [p.grad.clone() for p in policy.parameters() if p.grad is not None]
    policy.zero_grad()
    scores = policy(observation_of(rows)).gather(-1, rows["columns"])
    loss = dense_loss(scores / 2, rows["gains"] / 2, rows["is_valid"], 0.5)
    loss.mean().backward()
    torch.testing.assert_close(found, [p.grad for p in policy.parameters() if p.grad is not None])


def test_a_column_that_only_the_order_has_measured_keeps_its_gain() -> None:
    nan = torch.nan
    gains = torch.tensor([[nan, 3.0, 2.0], [nan, nan, 1.0], [nan, nan, nan]])
    wanted = torch.tensor([[3.0, 3.0, 2.0], [3.0, 3.0, 1.0], [3.0, 3.0, 1.0]])
    assert torch.equal(filled_gains(gains), wanted)
    # No less than the best that is left, where units make a later gain the larger number.
    gains = torch.tensor([[3.0, 2.0, 1.0], [nan, 4.0, 2.0], [nan, nan, 2.0]])
    wanted = torch.tensor([[3.0, 2.0, 1.0], [4.0, 4.0, 2.0], [4.0, 4.0, 2.0]])
    assert torch.equal(filled_gains(gains), wanted)
