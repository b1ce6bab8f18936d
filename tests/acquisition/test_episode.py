"""The simulator's shortcuts equal the long way: mask k-space, transform, reconstruct, score."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from kscout.acquisition.episode import Simulator
from kscout.acquisition.loop import rollout
from kscout.acquisition.plan import Plan, check_budget
from kscout.acquisition.state import State
from kscout.core import Measurement, Observation, Policy, Protocol, Reconstruction, SliceBatch
from kscout.data.slices import SliceSet
from kscout.errors import ConfigError
from kscout.metrics import ssim
from kscout.physics.sampling import center_mask
from kscout.policies.fixed import CenterOut
from kscout.policies.oracle import Oracle, SpectralOracle
from kscout.reconstruction.unet import UNet

N_SLICES, N_ROWS, N_COLS, N_INITIAL = 3, 14, 17, 4


@pytest.fixture
def batch(generator: torch.Generator) -> SliceBatch:
    images = torch.rand(N_SLICES, N_ROWS, N_COLS, generator=generator)
    slices = SliceSet.from_images(images.cumsum(dim=-1), ["a", "a", "b"])
    return slices.batch(torch.arange(N_SLICES))


def engine(batch: SliceBatch, **settings: Any) -> Simulator:
    torch.manual_seed(0)
    return Simulator(batch, UNet(n_channels=2, n_pools=1).eval(), **settings)


def long_way(
    simulator: Simulator, state: State, protocol: Protocol = "paper"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Reconstruct and score the states' masks from k-space."""
    batch = simulator.batch.rows(state.owner)
    with torch.no_grad():
        found = simulator.reconstructor(batch.kspace, state.mask)
    mean, std = (
        (batch.target_mean, batch.target_std) if protocol == "paper" else (found.mean, found.std)
    )
    image = found.image * std[:, None, None] + mean[:, None, None]
    return found.image, ssim(image, batch.target, data_range=batch.data_range)


def agree(simulator: Simulator, state: State, protocol: Protocol = "paper") -> None:
    image, score = long_way(simulator, state, protocol)
    torch.testing.assert_close(state.image, image, atol=2e-4, rtol=0)
    torch.testing.assert_close(state.score, score, atol=1e-5, rtol=0)


@pytest.mark.parametrize("protocol", ["paper", "blind"])
def test_ten_rank_one_updates_equal_one_transform(batch: SliceBatch, protocol: Protocol) -> None:
    simulator = engine(batch, protocol=protocol)
    state = simulator.start(N_INITIAL)
    agree(simulator, state, protocol)
    for column in [0, 16, 3, 5, 12, 13, 1, 2, 14, 15]:
        state = simulator.acquire(state, torch.full((N_SLICES,), column))
    assert state.step == 10 and (state.mask.sum(dim=1) == N_INITIAL + 10).all()
    agree(simulator, state, protocol)


def test_branches_are_every_candidate_of_every_state_in_order(batch: SliceBatch) -> None:
    simulator = engine(batch)
    state = simulator.start(N_INITIAL)
    # With a column drawn twice for one state, and another order in each.
    columns = torch.tensor([[0, 3, 0], [16, 1, 2], [5, 4, 4]])
    children = simulator.branch(state, columns).every()
    assert children.owner.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    expected = state.mask.repeat_interleave(3, dim=0)
    expected[torch.arange(9), columns.reshape(-1)] = True
    assert torch.equal(children.mask, expected)
    agree(simulator, children)
    scores = simulator.score_columns(state, columns)
    torch.testing.assert_close(scores.reshape(-1), children.score, atol=1e-6, rtol=0)


@pytest.mark.parametrize("memory_limit", [1, 700_000])
def test_parts_change_nothing(batch: SliceBatch, memory_limit: int) -> None:
    whole, parts = engine(batch), engine(batch, memory_limit=memory_limit)
    assert parts.n_at_once < N_SLICES * (N_COLS - N_INITIAL)
    scores = [
        simulator.score_every_column(simulator.start(N_INITIAL)) for simulator in (whole, parts)
    ]
    torch.testing.assert_close(*scores, atol=1e-6, rtol=0)


def test_every_column_means_those_that_are_left(batch: SliceBatch) -> None:
    selectable = batch.selectable.clone()
    selectable[0, :3] = False
    selectable[2, 15:] = False
    simulator = engine(replace(batch, selectable=selectable))
    state = simulator.start(N_INITIAL)
    scores = simulator.score_every_column(state)
    assert torch.equal(scores.isinf(), state.mask | ~selectable)
    for column in (5, 12):
        after = simulator.acquire(state, torch.full((N_SLICES,), column))
        torch.testing.assert_close(scores[:, column], after.score, atol=1e-6, rtol=0)


def test_any_mask_may_be_the_start(batch: SliceBatch) -> None:
    simulator = engine(batch)
    state = simulator.start(N_INITIAL)
    for columns in ([2, 11, 0], [12, 15, 1]):
        state = simulator.acquire(state, torch.tensor(columns))
    direct = simulator.start_from(state.mask)
    torch.testing.assert_close(direct.score, state.score, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    "policy, sees_truth, sees_candidates",
    [
        (CenterOut(n_cols=N_COLS), False, False),
        (SpectralOracle(), True, False),
        (Oracle(), True, True),
    ],
)
def test_truth_is_shown_to_those_that_ask(
    batch: SliceBatch, policy: Policy, sees_truth: bool, sees_candidates: bool
) -> None:
    simulator = engine(batch)
    seen = simulator.observe(policy, simulator.start(N_INITIAL), n_left=None)
    assert (seen.truth is not None) is sees_truth
    candidates = None if seen.truth is None else seen.truth.candidate_scores
    assert (candidates is not None) is sees_candidates


@pytest.mark.parametrize(
    "n_initial, horizon, sentence",
    [
        (0, 3, "cannot start from 0 of 17"),
        (18, 0, "cannot start from 18 of 17"),
        (4, -1, "cannot acquire -1"),
        (4, 12, r"in 1 of 3 slices.*lower the number of steps to 11"),
        (4, 14, r"in 3 of 3 slices"),
    ],
)
def test_budgets_that_do_not_fit_are_refused(n_initial: int, horizon: int, sentence: str) -> None:
    selectable = torch.ones(3, N_COLS, dtype=torch.bool)
    selectable[1, :2] = False
    with pytest.raises(ConfigError, match=sentence):
        check_budget(selectable, n_initial=n_initial, horizon=horizon)


@pytest.mark.parametrize(
    ("n_initial", "columns", "advice"),
    [
        (10, range(4, 13), "start from 9 or fewer"),
        (6, range(7, 17), "start from 4 or fewer"),
        (1, range(9, 17), "name columns that it has"),
    ],
)
def test_central_columns_outside_the_matrix_are_refused(
    n_initial: int, columns: range, advice: str
) -> None:
    selectable = torch.ones(3, N_COLS, dtype=torch.bool)
    selectable[2] = False
    selectable[2, columns] = True
    told = rf"the {n_initial} central columns .* of 1 of 3 slices, .*; {advice}"
    with pytest.raises(ConfigError, match=told):
        check_budget(selectable, n_initial=n_initial, horizon=0)
    check_budget(selectable[:2], n_initial=n_initial, horizon=0)


@pytest.mark.parametrize(("n_initial", "horizon"), [(4, 11), (15, 0)])
def test_budgets_that_just_fit_are_taken(n_initial: int, horizon: int) -> None:
    check_budget(center_mask(N_COLS, 15)[None], n_initial=n_initial, horizon=horizon)


# Three trajectories per slice; the first two of the first slice differ in order alone.
PATHS = torch.tensor([[0, 1, 0, 5, 5, 5, 1, 2, 3], [1, 0, 2, 11, 12, 13, 2, 1, 1]])


def count_reconstructions(simulator: Simulator) -> list[int]:
    unet: Any = simulator.reconstructor
    reconstruct, counts = unet.reconstruct, []

    def count(measured: Measurement) -> Reconstruction:
        counts.append(len(measured))
        return reconstruct(measured)

    unet.reconstruct = count
    return counts


class Sighted(Policy):
    """Scores columns by what it sees there, and counts what it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.n_seen: list[int] = []

    def forward(self, seen: Observation) -> torch.Tensor:
        self.n_seen.append(len(seen.image))
        return seen.image.sum(dim=1)


def test_a_policy_looks_once_at_equal_states_of_a_rollout(batch: SliceBatch) -> None:
    simulator, policy = engine(batch), Sighted()
    n_reconstructed = count_reconstructions(simulator)
    replay = PATHS.T.reshape(N_SLICES, 3, 2)
    found = rollout(policy, simulator, Plan(N_INITIAL, 2), replay=replay, keep_probabilities=True)
    assert policy.n_seen == [3, 2 + 1 + 3]
    assert n_reconstructed == [3, 2 + 1 + 3, 2 + 3 + 2]
    for trajectory in range(3):
        own = replay[:, trajectory : trajectory + 1]
        alone = rollout(policy, simulator, Plan(N_INITIAL, 2), replay=own, keep_probabilities=True)
        torch.testing.assert_close(found.ssim[:, trajectory], alone.ssim[:, 0], atol=1e-6, rtol=0)
        assert found.probabilities is not None and alone.probabilities is not None
        own_probabilities = found.probabilities[:, :, trajectory]
        torch.testing.assert_close(
            own_probabilities, alone.probabilities[:, :, 0], atol=1e-4, rtol=0
        )


def test_states_of_different_slices_are_never_taken_for_one(batch: SliceBatch) -> None:
    simulator = engine(batch)
    mixed = simulator.start(N_INITIAL).rows(torch.tensor([0, 1, 2, 0, 1, 2]))
    state = simulator.acquire(mixed, torch.tensor([0, 0, 0, 0, 1, 0]))
    assert state.owner.tolist() == [0, 1, 2, 0, 1, 2]
    agree(simulator, state)


def test_branches_of_several_states_share_masks_and_keep_their_places(batch: SliceBatch) -> None:
    simulator = engine(batch)
    state = simulator.start(N_INITIAL).repeated(2)
    state = simulator.acquire(state, torch.tensor([0, 1, 2, 2, 0, 16]))
    columns = torch.tensor([[1, 3], [0, 3], [5, 6], [6, 5], [16, 16], [0, 1]])
    branches = simulator.branch(state, columns)
    assert len(branches.state) == 3 + 2 + 2
    every = branches.every()
    assert len(every) == 4 * N_SLICES
    for place, column in enumerate(columns.flatten()):
        expected = state.mask[place // 2].clone()
        expected[column] = True
        assert torch.equal(every.mask[place], expected)
    agree(simulator, every)
    followed = branches.follow(torch.tensor([0, 1, 1, 0, 1, 0]))
    assert len(followed) == 2 * N_SLICES
    assert torch.equal(followed.mask, every.mask.view(6, 2, -1)[range(6), [0, 1, 1, 0, 1, 0]])


@pytest.mark.usefixtures("unchecked")
def test_an_unknown_protocol_is_refused(batch: SliceBatch) -> None:
    with pytest.raises(ConfigError, match=r"'Paper' \(did you mean 'paper'\?\); choose"):
        engine(batch, protocol="Paper")
