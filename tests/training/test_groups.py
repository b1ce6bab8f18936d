"""Training where a step takes several columns: gradients, runs, and estimators that cannot."""

from collections.abc import Callable
from itertools import permutations, product
from pathlib import Path
from typing import final

import pytest
import torch
from jaxtyping import Float
from torch import Tensor, nn

from kscout.acquisition.choose import draw_groups, group_log_probabilities
from kscout.acquisition.episode import Simulator
from kscout.acquisition.state import State
from kscout.apps.cli.train import resolve_policy
from kscout.config import JointConfig, PolicyConfig, read
from kscout.core import Observation, Policy
from kscout.data.slices import SliceSet
from kscout.data.store import Store
from kscout.errors import ConfigError
from kscout.evaluation.request import EvaluationSetting
from kscout.evaluation.running.entries import completed
from kscout.names import ESTIMATORS
from kscout.policies.views import Recomputed
from kscout.reconstruction import RECONSTRUCTORS
from kscout.reconstruction.zero_filled import ZeroFilled
from kscout.training.algorithms.greedy import greedy_gradients
from kscout.training.algorithms.non_greedy import non_greedy_gradients
from kscout.training.policy import train_policy
from kscout.weights import read_weights

N_ROWS, N_COLS, START = 5, 6, (2, 3)
PAIRS = list(permutations((0, 1, 4), 2))
"""All groups of two where column 5 is measured, too."""


@final
class Profile(Policy):
    """Scores columns by weights times the mean magnitude of each, so that states differ."""

    def __init__(self) -> None:
        super().__init__()
        values = torch.tensor([0.3, -0.7, 0.2, 0.9, 1.1, -0.4])
        self.weight = nn.Parameter(values)

    def forward(self, seen: Observation) -> Float[Tensor, "batch col"]:
        return self.weight * (1 + seen.image.abs().mean(dim=-2))


@pytest.fixture(scope="module")
def simulator() -> Simulator:
    images = torch.rand(1, N_ROWS, N_COLS, generator=torch.Generator().manual_seed(3))
    slices = SliceSet.from_images(images, ("a",))
    return Simulator(slices.batch(torch.arange(1)), RECONSTRUCTORS["zero-filled"]())


def chance(scores: Float[Tensor, " col"], taken: tuple[int, ...], pair: tuple[int, ...]) -> Tensor:
    """Return the probability of columns in their order, as draws from an urn that empties."""
    total, gone = torch.ones(()), set(taken)
    for column in pair:
        left = sum(scores[other].exp() for other in range(N_COLS) if other not in gone)
        total = total * scores[column].exp() / left
        gone.add(column)
    return total


def after(simulator: Simulator, state: State, columns: tuple[int, ...]) -> State:
    for column in columns:
        state = simulator.acquire(state, torch.tensor([column]))
    return state


def test_the_expected_greedy_gradient_is_that_of_the_expected_gain(simulator: Simulator) -> None:
    policy, measured = Profile(), (*START, 5)
    start = simulator.start(measured)
    scores = policy(simulator.observe(policy, start, n_left=None))[0]
    chances = {pair: chance(scores, measured, pair) for pair in PAIRS}
    assert sum(chances.values()).item() == pytest.approx(1, abs=1e-6)  # type: ignore[union-attr]
    gains = {pair: (after(simulator, start, pair).score - start.score)[0] for pair in PAIRS}
    expected = sum(chances[pair] * gains[pair] for pair in PAIRS)
    (wanted,) = torch.autograd.grad(-expected, policy.weight)  # type: ignore[arg-type]

    found = torch.zeros(N_COLS)
    for drawn in product(PAIRS, repeat=2):
        policy.zero_grad()
        estimate = greedy_gradients(
            Recomputed(policy),
            simulator,
            n_initial=measured,
            uniforms=torch.zeros(1, 1, 2, 2),
            followed=torch.zeros(1, dtype=torch.long),
            replay=torch.tensor([[drawn]]),
        )
        both = chances[drawn[0]] * chances[drawn[1]]
        assert estimate.log_probs.sum().item() == pytest.approx(both.log().item(), abs=1e-5)
        assert policy.weight.grad is not None
        found += both.detach() * policy.weight.grad
    assert wanted.abs().max() > 1e-3
    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=1e-4)


def test_non_greedy_groups_are_judged_by_later_gains_too(simulator: Simulator) -> None:
    policy, start, gamma = Profile(), simulator.start(START), 0.7
    replay = torch.tensor([[[[0, 5], [4, 1]]], [[[4, 1], [5, 0]]]])
    estimate = non_greedy_gradients(
        Recomputed(policy),
        simulator,
        n_initial=START,
        uniforms=torch.zeros(1, 2, 2, 2),
        gamma=gamma,
        replay=replay,
    )
    found = policy.weight.grad
    policy.zero_grad()
    log_chances, scores = torch.zeros(2, 2), torch.zeros(3, 2)
    rows = []
    for path in range(2):
        state, taken = start, START
        scores[0, path] = state.score[0]
        for step in range(2):
            pair = tuple(replay[step, 0, path].tolist())
            own = policy(simulator.observe(policy, state, n_left=None))[0]
            rows.append((step, path, chance(own, taken, pair).log()))
            state, taken = after(simulator, state, pair), (*taken, *pair)
            scores[step + 1, path] = state.score[0]
    gains = scores.diff(dim=0)
    advantage = gains - gains.mean(dim=1, keepdim=True)
    returns = torch.stack([advantage[0] + gamma * advantage[1], advantage[1]])
    loss = -sum(log_chance * returns[step, path] for step, path, log_chance in rows)
    for step, path, log_chance in rows:
        log_chances[step, path] = log_chance.detach()
    loss.backward()  # type: ignore[union-attr]
    torch.testing.assert_close(estimate.rewards[:, 0], gains, atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(estimate.log_probs[:, 0], log_chances)
    torch.testing.assert_close(found, policy.weight.grad, atol=1e-7, rtol=1e-4)


def test_groups_are_drawn_as_often_as_their_probability_says() -> None:
    scores = torch.tensor([[0.3, -0.7, 5.0, 5.0, 1.1, -0.4]])
    blocked = torch.zeros(1, N_COLS, dtype=torch.bool)
    blocked[0, [*START, 5]] = True
    uniforms = torch.rand(1, 20_000, 2, generator=torch.Generator().manual_seed(0))
    drawn = draw_groups(scores, blocked, uniforms)
    pairs = torch.tensor([PAIRS])
    expected = group_log_probabilities(scores, blocked, pairs).exp()[0]
    shares = (drawn[0, :, None] == pairs).all(dim=-1).float().mean(dim=0)
    # Four deviations of a share of 20,000 draws.
    assert (shares - expected).abs().max() < 4 * (0.25 / 20_000) ** 0.5
    assert shares.sum() == 1


@pytest.fixture
def train(store: Store, tmp_path: Path) -> Callable[..., Path]:
    def run(name: str, method: str = "greedy", **acquisition: int) -> Path:
        flags = {f"acquisition.{key}": value for key, value in acquisition.items()}
        short = ["policy.n_channels=2", "policy.n_hidden=8", "training.n_epochs=1"]
        short += ["policy.n_blocks=2"] * (method != "alphazero")
        flags |= {"acquisition.n_initial": 2, "training.method": method, "training.batch_size": 4}
        if method in ("greedy", "ngreedy"):
            flags["training.n_trajectories"] = 2
        config: PolicyConfig = resolve_policy("knee-base", None, short, flags, 128)
        train_policy(config, store, "zero-filled", tmp_path / name, device="cpu")
        return tmp_path / name

    return run


@pytest.mark.parametrize("method", [x for x in ESTIMATORS.entries if "greedy" in x])
def test_a_run_learns_groups_and_tells_of_them(
    train: Callable[..., Path], store: Store, method: str
) -> None:
    run = train("groups", method, horizon=4, columns_per_step=2)
    assert read_weights(run / "weights.safetensors").extra["columns_per_step"] == 2
    for setting, expected in (
        (EvaluationSetting(), (2, 4, 2)),
        (EvaluationSetting(steps=3), (2, 3, 1)),
        (EvaluationSetting(n_initial=3, columns_per_step=4), (3, 4, 4)),
    ):
        found = completed(setting, ["random", f"x={run}"], ZeroFilled())
        assert (found.n_initial, found.steps, found.columns_per_step) == expected


def test_one_column_per_step_is_the_training_without_groups(train: Callable[..., Path]) -> None:
    named, plain = train("named", horizon=2, columns_per_step=1), train("plain", horizon=2)
    found, wanted = (read_weights(run / "weights.safetensors") for run in (named, plain))
    assert all(torch.equal(found.state[key], value) for key, value in wanted.state.items())
    assert found.extra == wanted.extra


@pytest.mark.parametrize("method", [x for x in ESTIMATORS.entries if "greedy" not in x])
def test_estimators_that_judge_single_columns_refuse_groups(
    train: Callable[..., Path], tmp_path: Path, method: str
) -> None:
    with pytest.raises(ConfigError, match=rf"{method} scores columns .*--method greedy or ngreedy"):
        train("groups", method, horizon=4, columns_per_step=2)
    assert not (tmp_path / "groups").exists()


def test_joint_training_refuses_groups() -> None:
    with pytest.raises(ConfigError, match="train joint takes one column per step"):
        read(JointConfig, {"acquisition": {"horizon": 4, "columns_per_step": 2}})


def test_the_columns_of_a_training_divide_into_its_steps(train: Callable[..., Path]) -> None:
    with pytest.raises(ConfigError, match="5 columns cannot be acquired 2 at a time"):
        train("groups", horizon=5, columns_per_step=2)
