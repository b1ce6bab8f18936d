"""Look-ahead: simulated on what agrees with the measurement, blind to the rest, weighed by fit."""

from dataclasses import replace
from typing import final

import pytest
import torch
from blind_policies import assert_unmeasured_columns_change_no_score
from jaxtyping import Float
from torch import Tensor

from kscout.acquisition.episode import Simulator
from kscout.contracts import check_policy
from kscout.core import Measurement, Observation, Policy, Reconstruction, Reconstructor
from kscout.data.slices import SliceSet
from kscout.errors import ConfigError
from kscout.evaluation.lookahead import Estimates, LookAhead, agreeing, fit_weights
from kscout.evaluation.running.trajectories import AcquisitionPlan
from kscout.physics.fourier import completed
from kscout.policies import build
from kscout.policies.column import ColumnPolicy
from kscout.reconstruction.zero_filled import ZeroFilled

N_INITIAL, N_COLS = 3, 13
PLAN = AcquisitionPlan(N_INITIAL, 2, n_trajectories=1, batch_size=3)


@final
class Knows(Reconstructor):
    """Returns the images that it was given, in units of its own."""

    def __init__(self, images: Float[Tensor, "batch row col"]) -> None:
        super().__init__()
        self.images = images

    def reconstruct(self, measured: Measurement) -> Reconstruction:
        return Reconstruction.of(self.images[: len(measured.mask)])


@final
class Ranks(Policy):
    """Gives every slice the same scores."""

    def __init__(self, scores: Float[Tensor, " col"]) -> None:
        super().__init__()
        self.scores = scores

    def forward(self, seen: Observation) -> Float[Tensor, "batch col"]:
        return self.scores.expand(seen.mask.shape)


def ahead(slices: SliceSet, estimator: Reconstructor, own: float = 0.5) -> LookAhead:
    policy = Ranks(torch.arange(N_COLS) / 100)
    estimates = Estimates.of(estimator, slices)
    return LookAhead(policy, ZeroFilled(), estimates, weights=[(own, 1.0)], n_columns=N_COLS)


def test_estimates_have_what_was_measured_and_its_mirror_image(test_slices: SliceSet) -> None:
    policy, batch = ahead(test_slices, ZeroFilled()), test_slices.batch(torch.arange(4))
    mask = torch.zeros(4, N_COLS, dtype=torch.bool)
    mask[:, [2, 5, 6, 7, 9]] = True
    simulator = Simulator(batch, ZeroFilled())
    found = policy.estimates.batch(simulator.observe(policy, simulator.start_from(mask)))
    assert len(found) == 8
    kspace, known = completed(batch.kspace * mask[:, None, None], mask)
    assert known[0].nonzero()[:, 0].tolist() == [2, 3, 5, 6, 7, 9, 10]
    torch.testing.assert_close(kspace, batch.kspace * known[:, None, None])
    # Where the estimate was negative it was cut off, so that images are compared, not k-space.
    expected = agreeing(torch.zeros_like(kspace[:, 0]), kspace[:, 0] * mask[:, None], mask)
    torch.testing.assert_close(found.target[4:].clamp(min=0), found.target[4:])
    assert (found.target[:4] - batch.target).abs().mean() < (expected - batch.target).abs().mean()


def test_on_the_truth_simulated_gains_are_the_gains(test_slices: SliceSet) -> None:
    one = test_slices.of_volumes("c")
    batch = one.batch(torch.arange(1))
    policy = ahead(one, Knows(3 * batch.target + 7), own=0.0)
    simulator = Simulator(batch, ZeroFilled())
    state = simulator.start(N_INITIAL)
    gains = simulator.score_every_column(state) - state.score[:, None]
    scores = policy(simulator.observe(policy, state))
    left = ~state.mask
    torch.testing.assert_close(scores[left], gains[left], atol=2e-5, rtol=0)


def test_unmeasured_columns_change_no_choice(test_slices: SliceSet) -> None:
    policy = ahead(test_slices, ZeroFilled())
    assert_unmeasured_columns_change_no_score(policy, test_slices, N_INITIAL)


def test_scores_are_gains_by_how_many_columns_are_measured(test_slices: SliceSet) -> None:
    small = {"width": 8, "n_heads": 2, "n_layers": 1, "channels": [8], "image_channels": [8]}
    own = ColumnPolicy(n_cols=N_COLS, horizon=6, n_initial=1, **small)
    own.start_from(torch.ones(6, N_COLS))
    own.is_stochastic, own.gain_units = False, (0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
    policy = LookAhead(own, ZeroFilled(), Estimates.of(ZeroFilled(), test_slices), n_columns=2)
    simulator = Simulator(test_slices.batch(torch.arange(3)), ZeroFilled())
    _, expected, _ = policy.tried(simulator.observe(policy, simulator.start(N_INITIAL)))
    torch.testing.assert_close(expected, torch.full((3, 2), 0.4))


def test_only_the_columns_with_the_highest_scores_are_tried(test_slices: SliceSet) -> None:
    policy = ahead(test_slices, ZeroFilled())
    policy.n_columns = 2
    simulator = Simulator(test_slices.batch(torch.arange(3)), ZeroFilled())
    columns, expected, _ = policy.tried(simulator.observe(policy, simulator.start(N_INITIAL)))
    assert columns.tolist() == [[12, 11]] * 3
    assert expected[0].tolist() == pytest.approx([0.12, 0.11])
    assert set(
        policy(simulator.observe(policy, simulator.start(N_INITIAL))).argmax(-1).tolist()
    ) <= {*(11, 12)}


def test_it_keeps_the_contract_of_policies(train_slices: SliceSet) -> None:
    check_policy(ahead(train_slices, ZeroFilled()), n_rows=18, n_cols=N_COLS)


def test_weights_are_those_with_which_gains_are_told(test_slices: SliceSet) -> None:
    whole = test_slices.batch(torch.arange(len(test_slices)))
    policy = ahead(test_slices, Knows(whole.target))
    plan = replace(PLAN, batch_size=len(test_slices))
    for own, other in fit_weights(policy, test_slices, plan):
        # The range of each slice is a mean one, so that gains are told nearly, not exactly.
        assert own < 0.01 and 0.8 < other < 1.2


def test_a_simulation_that_misleads_has_no_say(
    test_slices: SliceSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = ahead(test_slices, ZeroFilled())

    def opposite(_: LookAhead, seen: Observation, columns: Tensor) -> Tensor:
        simulator = Simulator(test_slices.batch(torch.arange(len(columns))), ZeroFilled())
        state = simulator.start_from(seen.mask)
        return state.score[:, None] - simulator.score_columns(state, columns)

    monkeypatch.setattr(LookAhead, "_simulated", opposite)
    plan = replace(PLAN, batch_size=len(test_slices))
    assert all(other == 0 and own > 0 for own, other in fit_weights(policy, test_slices, plan))


def test_each_step_has_its_weights(test_slices: SliceSet) -> None:
    policy = ahead(test_slices, ZeroFilled())
    policy.weights = [(1.0, 0.0), (0.0, 1.0)]
    simulator = Simulator(test_slices.batch(torch.arange(3)), ZeroFilled())
    seen = simulator.observe(policy, simulator.start(N_INITIAL))
    columns, expected, simulated = policy.tried(seen)
    for step, worth in ((0, expected), (1, simulated), (7, simulated)):
        found = policy(replace(seen, step=step)).gather(-1, columns)
        torch.testing.assert_close(found, worth)


def test_oracles_are_refused(train_slices: SliceSet) -> None:
    oracle = build("oracle", n_cols=N_COLS, n_initial=N_INITIAL, horizon=2)
    estimates = Estimates.of(ZeroFilled(), train_slices)
    with pytest.raises(ConfigError, match="an oracle sees it"):
        LookAhead(oracle, ZeroFilled(), estimates)


@final
class Calibrates(Reconstructor):
    """Adds the more to the zero-filled image the more columns it was calibrated by."""

    def calibrate(self, measured: Measurement) -> Tensor:
        n_measured = measured.mask.sum(dim=1)[:, None, None, None]
        return n_measured * torch.ones_like(measured.zero_filled)

    def reconstruct(self, measured: Measurement) -> Reconstruction:
        maps = self.calibrate(measured) if measured.maps is None else measured.maps
        image = measured.zero_filled[:, 0].abs()
        return Reconstruction.of(image + 0.1 * maps[:, 0].real * image.square())


def test_columns_are_simulated_with_the_sensitivities_of_the_start(
    test_slices: SliceSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, model = test_slices.batch(torch.arange(3)), Calibrates()
    simulator = Simulator(batch, model)
    state = simulator.start(N_INITIAL)
    start = state.mask[0]
    state = simulator.acquire(state, torch.tensor([2, 3, 9]))
    # On an estimate that is right, simulated gains are the true ones.
    monkeypatch.setattr(Estimates, "batch", lambda *_: batch)
    policy, estimates = Ranks(torch.arange(N_COLS) / 100), Estimates.of(model, test_slices)
    looking = LookAhead(policy, model, estimates, n_columns=4, start=start)
    columns, _, simulated = looking.tried(simulator.observe(looking, state))
    gains = simulator.score_columns(state, columns) - state.score[:, None]
    torch.testing.assert_close(simulated, gains)
