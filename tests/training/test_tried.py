"""Gradients of many states: some at a time, fewer of larger images."""

import pytest
import torch
from torch import Tensor
from training_stores import COLUMN

from kscout.core import Observation
from kscout.policies.column import ColumnPolicy
from kscout.policies.views import Recomputed
from kscout.training.algorithms import dense
from kscout.training.algorithms.dense import add_gradients, dense_loss
from kscout.training.states import Rows, observation_of

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
