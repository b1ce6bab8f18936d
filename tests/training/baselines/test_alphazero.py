"""AlphaZero: what is remembered and imitated, and that a training is repeatable and resumes."""

from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from training_stores import CONV, Train, small_config, train_whole_and_cut, weights

from kscout import policies
from kscout.config import PolicyConfig
from kscout.core import Measurement, Observation, Reconstruction
from kscout.data.store import Store
from kscout.errors import ConfigError
from kscout.evaluation import EvaluationSetting, evaluate
from kscout.evaluation.analyses.entropy import Entropy
from kscout.evaluation.summaries.paper_numbers import SSIM
from kscout.policies.conv import AlphaZeroPolicy
from kscout.randomness import slices_of_round
from kscout.reconstruction.zero_filled import ZeroFilled
from kscout.runs import Progress, read_run
from kscout.training.baselines.alphazero import (
    Episodes,
    decisions_of,
    imitation_loss,
    label_entropy,
)
from kscout.training.baselines.ddqn import double_target, explored
from kscout.training.baselines.settings import AlphaZeroTraining, DdqnTraining
from kscout.training.policy import train_policy
from kscout.training.states import Memory
from kscout.weights import read_weights

NETWORK = {"name": "alphazero", "n_channels": 2, "n_hidden": 8}


def config_of(**changes: object) -> PolicyConfig:
    training = {
        **{"method": "alphazero", "n_epochs": 3, "n_searches": 4, "n_episodes": 5},
        **{"n_updates": 3, "batch_size": 4, "buffer_size": 20, "seed": 3},
    }
    return small_config(NETWORK, {**training, **changes})


def test_the_network_has_ten_million_parameters() -> None:
    with torch.device("meta"):
        policy = AlphaZeroPolicy(n_cols=128)
    assert sum(parameter.numel() for parameter in policy.parameters()) == 10_088_832


def test_small_and_rectangular_images_are_halved_as_often_as_they_can_be() -> None:
    policy = AlphaZeroPolicy(n_cols=11, n_rows=18, n_channels=2)
    assert policy.n_blocks == 3
    seen = Observation(torch.rand(2, 18, 11), torch.zeros(2, 11, dtype=torch.bool))
    assert policy(seen).shape == (2, 11)
    with pytest.raises(ConfigError, match="n_blocks to a number from 1 to 3"):
        AlphaZeroPolicy(n_cols=11, n_blocks=4)


def test_the_loss_is_the_cross_entropy_with_the_shares_of_visits() -> None:
    chances = torch.tensor([[0.2, 0.3, 0.5], [0.6, 0.4, 0.0]])
    visits = torch.tensor([[1, 3, 0], [2, 0, 0]])
    expected = -(0.25 * chances[0, 0].log() + 0.75 * chances[0, 1].log() + chances[1, 0].log()) / 2
    found = imitation_loss(chances.clamp(min=1e-30).log(), visits)
    torch.testing.assert_close(found, expected)
    # The loss of a network that foresees the shares themselves.
    shares = visits / visits.sum(dim=-1, keepdim=True)
    least = imitation_loss(shares.clamp(min=1e-30).log(), visits)
    torch.testing.assert_close(label_entropy(visits), least)


def test_rounds_go_through_all_slices_before_any_comes_again() -> None:
    rounds = [slices_of_round(5, epoch, 4, n_slices=7) for epoch in range(1, 8)]
    every = torch.cat(rounds)
    for number in range(4):
        assert sorted(every[7 * number : 7 * (number + 1)].tolist()) == list(range(7))
    assert not torch.equal(every[:7], every[7:14])


def test_memory_keeps_the_newest_decisions() -> None:
    def episodes(first: int) -> Episodes:
        visits = torch.arange(first, first + 8).view(2, 2, 2)
        mask = torch.zeros(2, 2, 2, dtype=torch.bool)
        return Episodes(mask, visits, torch.zeros(2), mask[:, 0], torch.zeros(2), 0)

    memory = Memory(6)
    for index, first in (([6, 4], 0), ([1, 0], 8)):
        memory.add(decisions_of(torch.tensor(index), episodes(first)))
    assert len(memory) == 6
    assert memory.rows["index"].tolist() == [4, 4, 1, 1, 0, 0]
    assert memory.rows["step"].tolist() == [0, 1, 0, 1, 0, 1]
    assert memory.rows["visits"].flatten().tolist() == list(range(4, 16))


def test_what_settings_leave_open_shrinks_with_the_store() -> None:
    training = AlphaZeroTraining()
    assert training.round_of(6959, 16) == (64, 128, 5120)
    assert [training.searches(n_cols) for n_cols in (128, 64, 32)] == [8, 4, 4]
    assert training.round_of(6, 16) == (6, 12, 480)


@pytest.mark.slow
def test_settings_of_one_seed_give_one_result_and_a_stopped_run_goes_on_alike(
    store: Store, tmp_path: Path
) -> None:
    # The memory of the first round is full: what is left of it comes back.
    cut = train_whole_and_cut(config_of(n_epochs=2, buffer_size=12), store, tmp_path, epoch=2)
    whole, again = (read_run(path) for path in (tmp_path / "whole", cut))
    assert again.is_finished
    timed = {"time_s", "peak_memory_bytes"}
    lines = [[{k: x[k] for k in x.keys() - timed} for x in run.metrics] for run in (whole, again)]
    assert lines[0] == lines[1]
    for name in ("weights.safetensors", "best.safetensors"):
        assert (whole.path / name).read_bytes() == (cut / name).read_bytes()
    loaded = policies.load(cut)
    assert isinstance(loaded, AlphaZeroPolicy) and loaded.is_stochastic


@pytest.mark.slow
def test_training_ends_when_validation_stays_flat_and_keeps_the_best(
    train: Train, tmp_path: Path
) -> None:
    # A step size this small changes no choice: the first epoch stays the best.
    config = config_of(n_epochs=9, patience=2, learning_rate=1e-12)
    run = train(config)
    assert [record["epoch"] for record in run.metrics] == [1, 2, 3]
    best = read_weights(tmp_path / "run" / "best.safetensors").state
    kept = weights(tmp_path / "run")
    assert all(torch.equal(best[name], kept[name]) for name in best)
    assert train(config).metrics == run.metrics


class OneRound(NamedTuple):
    """A run, and what was reconstructed until each of its steps."""

    path: Path
    n_images: list[int]
    n_batches: list[int]


@pytest.fixture(scope="module")
def one_round(store: Store, tmp_path_factory: pytest.TempPathFactory) -> OneRound:
    out, plain = tmp_path_factory.mktemp("round") / "run", ZeroFilled.reconstruct
    seen: list[int] = []
    n_images: list[int] = []
    n_batches: list[int] = []

    def counted(self: ZeroFilled, measured: Measurement) -> Reconstruction:
        seen.append(len(measured.mask))
        return plain(self, measured)

    def watch(progress: Progress) -> None:
        if not progress.record:
            n_images.append(sum(seen))
            n_batches.append(len(seen))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ZeroFilled, "reconstruct", counted)
        train_policy(config_of(n_epochs=1), store, "zero-filled", out, on_step=watch)
    return OneRound(out, n_images, n_batches)


def test_a_round_tells_what_the_searches_found(one_round: OneRound) -> None:
    record = read_run(one_round.path).metrics[0]
    assert record["tree_ssim"] >= record["search_ssim"] > 0
    # Five trees: the start, and for each of four searches at most 3 + 2 + 1 new masks.
    n_searched, _, _, n_all = one_round.n_images
    assert 5 * (1 + 3) <= n_searched <= 5 * (1 + 4 * 6)
    # Those of one depth in one batch.
    assert one_round.n_batches[0] <= 1 + 4 * 6
    # Three updates on four decisions each, whose images were not kept.
    assert record["n_reconstructions"] == n_all == n_searched + 3 * 4


def test_its_runs_are_evaluated_and_analyzed_like_others(
    one_round: OneRound, store: Store, tmp_path: Path
) -> None:
    path = one_round.path
    setting = EvaluationSetting(n_initial=2, steps=3, trajectories=2, split="val", examples=0)
    found = evaluate([f"mine={path}"], store, "zero-filled", setting).found
    # By its training, not by its name: the paper's row stands beside ours.
    assert found.policies[0].paper_method == "alphazero" in SSIM["knee-base"]
    assert read_run(path).metrics[0]["n_decisions"] == 5 * 3
    entropy = Entropy(data=store.path, reconstructor="zero-filled", split="val", trajectories=2)
    rows = entropy.compute([str(path)], out=tmp_path)
    assert [row.step for row in rows] == [1, 2, 3]
    assert all(row.marginal >= row.conditional > 0 for row in rows)


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
    training = DdqnTraining(n_epochs=5, explore_last=0.2)
    chances = [training.chance(epoch) for epoch in range(1, 6)]
    assert chances == pytest.approx([1.0, 0.6, 0.2, 0.2, 0.2])


@pytest.mark.slow
def test_an_interrupted_training_ends_with_the_same_weights(store: Store, tmp_path: Path) -> None:
    training = {
        **{"method": "ddqn", "n_epochs": 3, "n_episodes": 5, "n_updates": 3, "n_target": 2},
        **{"batch_size": 4, "buffer_size": 20, "seed": 3, "learning_rate": 1e-2},
    }
    cut = train_whole_and_cut(small_config(CONV, training), store, tmp_path, epoch=3)
    assert not policies.load(cut).is_stochastic
    metrics = read_run(cut).metrics
    assert all(record["loss"] >= 0 and record["train_ssim"] > 0 for record in metrics)
