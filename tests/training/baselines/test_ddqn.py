"""Double Q-learning: what is aimed at, what is remembered, and that a training resumes."""

from pathlib import Path

import pytest
import torch
from training_stores import small_config, train_whole_and_cut

from kscout import policies
from kscout.config import PolicyConfig
from kscout.data.store import Store
from kscout.runs import read_run
from kscout.training.baselines.ddqn import double_target, explored
from kscout.training.baselines.settings import DdqnTraining
from kscout.training.states import Memory

NETWORK = {"name": "conv", "n_channels": 2, "n_blocks": 2, "n_hidden": 8}


def config_of(**changes: object) -> PolicyConfig:
    training = {
        **{"method": "ddqn", "n_epochs": 3, "n_episodes": 5, "n_updates": 3, "n_target": 2},
        **{"batch_size": 4, "buffer_size": 20, "seed": 3, "learning_rate": 1e-2},
    }
    return small_config(NETWORK, {**training, **changes})


def test_one_network_says_which_column_is_best_and_the_other_what_it_is_worth() -> None:
    scores = torch.tensor([[9.0, 2.0, 5.0], [1.0, 2.0, 3.0], [1.0, 7.0, 3.0]])
    copied = torch.tensor([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6], [0.7, 0.8, float("nan")]])
    blocked = torch.tensor([[True, False, False], [False, False, False], [True, True, True]])
    discount = torch.tensor([0.5, 0.5, 0.0])
    found = double_target(torch.tensor([1.0, 2.0, 3.0]), scores, copied, blocked, discount)
    torch.testing.assert_close(found, torch.tensor([1 + 0.5 * 0.3, 2 + 0.5 * 0.6, 3.0]))


def test_any_column_is_taken_by_chance_and_the_best_otherwise() -> None:
    scores = torch.tensor([[1.0, 4.0, 3.0, 2.0]]).expand(3, -1)
    blocked = torch.tensor([[False, True, False, False]]).expand(3, -1)
    uniforms = torch.tensor([[0.9, 0.99], [0.1, 0.99], [0.1, 0.0]])
    assert explored(scores, blocked, uniforms, 0.5).tolist() == [2, 3, 0]
    training = DdqnTraining(n_epochs=5, explore_first=0.9, explore_last=0.1)
    chances = [training.chance(epoch) for epoch in range(1, 6)]
    assert chances == pytest.approx([0.9, 0.5, 0.1, 0.1, 0.1])


def test_memory_keeps_the_newest_of_all_that_is_added_at_once() -> None:
    memory = Memory(4)
    assert len(memory) == 0
    memory.add(*({"index": torch.arange(first, first + 3)} for first in (0, 3)))
    assert memory.rows["index"].tolist() == [2, 3, 4, 5]
    assert memory.draw(torch.tensor([0.99, 0.0]))["index"].tolist() == [5, 2]


@pytest.mark.slow
def test_an_interrupted_training_ends_with_the_same_weights(store: Store, tmp_path: Path) -> None:
    cut = train_whole_and_cut(config_of(), store, tmp_path, epoch=3)
    assert not policies.load(cut).is_stochastic
    metrics = read_run(cut).metrics
    assert all(record["loss"] >= 0 and record["train_ssim"] > 0 for record in metrics)
