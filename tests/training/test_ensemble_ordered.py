"""Ensembles whose first columns are those of a fixed order."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from posterior_policies import ensemble_members, loaded
from training_stores import Train, ensemble_of_orders, small_config, train_whole_and_cut, weights

from kscout import policies
from kscout.acquisition.episode import Simulator
from kscout.acquisition.loop import rollout
from kscout.acquisition.plan import Plan
from kscout.contracts import check_policy
from kscout.core import Observation
from kscout.data.store import Store
from kscout.errors import ConfigError
from kscout.policies.column import ColumnPolicy
from kscout.policies.ensemble import EnsemblePolicy
from kscout.reconstruction.zero_filled import ZeroFilled
from kscout.training.algorithms import ensemble
from kscout.training.algorithms.ensemble import Sums
from kscout.training.fixed_order import fit_fixed_order

SHORT = {
    **{"method": "ensemble", "n_slices": 11, "n_best": 2, "n_validated": 2, "seed": 3},
    **{"ordered": [2], "n_baseline_slices": 4},
}


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return ensemble_members(tmp_path_factory.mktemp("members"), n_initial=3, horizon=2)


def config_of(members: list[str], **changes: Any) -> Any:
    return small_config({"name": "ensemble", "members": members}, {**SHORT, **changes})


@pytest.mark.parametrize("n_ordered", [0, 2])
def test_an_order_comes_first_and_weights_are_what_the_columns_that_members_like_gain(
    store: Store, train: Train, n_ordered: int
) -> None:
    """Both members are orders, so that all can be reckoned by hand; one step is fitted."""
    config = small_config(ensemble_of_orders(), {**SHORT, "ordered": [n_ordered]})
    horizon = n_ordered + 1
    run = train(replace(config, acquisition=replace(config.acquisition, horizon=horizon)))
    found, slices = policies.load(run.path), store.split("train")
    assert isinstance(found, EnsemblePolicy)
    order = []
    if n_ordered:
        plan = Plan(2, n_ordered, batch_size=16)
        order = fit_fixed_order(slices, ZeroFilled(), plan, n_slices_per_step=4).order
        assert found.order_cols == 16 and found.gain_units == ()
    assert list(found.order) == order
    simulator = Simulator(slices.batch(torch.arange(11)), ZeroFilled())
    done = rollout(found, simulator, Plan(2, horizon))
    assert done.columns[:, 0, :n_ordered].tolist() == [order] * 11
    state = simulator.start(2)
    for column in order:
        state = simulator.acquire(state, torch.full((11,), column))
    seen, liked = simulator.observe(found, state, n_left=None), []
    told = torch.stack([member(seen) for member in found.policies])
    for member in told:
        ranked = member.masked_fill(state.mask, -torch.inf).argsort(dim=-1, descending=True)
        liked.append(ranked[:, :2])
    columns = torch.cat(liked, dim=-1)
    gains = torch.stack(
        [simulator.acquire(state, columns[:, n]).score - state.score for n in range(4)], dim=-1
    )
    sums = Sums.empty(horizon, 2, torch.device("cpu"))
    sums.add(n_ordered, told.gather(-1, columns.expand(2, -1, -1)), gains)
    own, constants = (one[n_ordered] for one in sums.solved())
    torch.testing.assert_close(found.weights[n_ordered].detach(), own, rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(found.constants[n_ordered].detach(), constants, rtol=1e-4, atol=1e-6)
    best = (own[:, None, None] * told).sum(dim=0).masked_fill(state.mask, -torch.inf)
    assert torch.equal(done.columns[:, 0, -1], best.argmax(dim=-1))


def test_of_several_numbers_the_one_is_kept_after_which_slices_end_best(train: Train) -> None:
    both = ensemble_of_orders()
    run = train(small_config(both, {**SHORT, "ordered": [1, 0, 2]}))
    found = policies.load(run.path)
    scores = {}
    for number in (0, 1, 2):
        one = train(small_config(both, {**SHORT, "ordered": [number]}), str(number))
        scores[number] = one.metrics[0]["train_ssim"]
        if number == len(found.order):
            assert torch.equal(weights(one.path)["weights"], weights(run.path)["weights"])
    assert len(set(scores.values())) == 3
    assert run.metrics[0]["train_ssim"] == max(scores.values())
    assert len(found.order) == max(scores, key=scores.__getitem__)


def test_slices_at_other_steps_are_scored_each_by_what_decides_there(
    store: Store, members: list[str], tmp_path: Path
) -> None:
    how: Any = {"members": loaded(members), "horizon": 3, "order": [5, 11], "order_cols": 16}
    simulator = Simulator(store.split("val").batch(torch.arange(4)), ZeroFilled())
    policy = EnsemblePolicy(**how).eval().bind(simulator.context)
    seen = simulator.observe(policy, simulator.start(2), n_left=3)
    mixed = replace(seen, step=torch.tensor([0, 1, 2, 3]))
    scores = policy(mixed)
    for row in (0, 1):
        ranked = scores[row].argsort(descending=True).tolist()
        # After the order from the center outwards.
        assert ranked[:4] == [5, 11, 8, 7]
    torch.testing.assert_close(scores[2:], policy.weighted_sum(mixed)[2:])
    assert policy.misfit(16, 24) == ("16 columns", 24)
    check_policy(policy, n_rows=16, n_cols=16)
    policies.save(tmp_path / "ensemble.safetensors", policy)
    found = policies.load(tmp_path / "ensemble.safetensors").bind(simulator.context)
    torch.testing.assert_close(found(mixed), scores)
    for wrong in ([5, 16], [5, 5]):
        with pytest.raises(ConfigError, match="duplicate columns, or columns that are not in a"):
            EnsemblePolicy(**{**how, "order": wrong})


def test_where_no_column_of_the_order_is_left_the_sum_decides(
    store: Store, members: list[str]
) -> None:
    how: Any = {"horizon": 3, "order": [5, 8, 7], "order_cols": 16}
    policy = EnsemblePolicy(members=loaded(members), **how).eval()
    assert (policy.n_cols, policy.serves_any_size) == (16, False)
    batch = store.split("val").batch(torch.arange(4))
    # From 2 central columns, 7 and 8, the order has one more; from 5 to 10 it has none.
    for n_initial, first in ((2, 5), (6, None)):
        simulator = Simulator(batch, ZeroFilled())
        done = rollout(policy, simulator, Plan(n_initial, 3)).columns[:, 0]
        bound, state = policy.bind(simulator.context), simulator.start(n_initial)
        for step in range(3):
            seen = simulator.observe(policy, state, n_left=3 - step)
            best = bound.weighted_sum(seen).masked_fill(state.mask, -torch.inf).argmax(dim=-1)
            if first is not None and step == 0:
                best = torch.full((4,), first)
            assert torch.equal(done[:, step], best)
            state = simulator.acquire(state, best)


@pytest.mark.parametrize(
    ("policy", "training", "words"),
    [
        ({"order": [5, 11], "order_cols": 16}, {}, r"policy.order is \[5, 11\].*length as train"),
        ({}, {"ordered": [1, 3]}, "leaves no step to fit: 3 of 3; give fewer steps"),
    ],
)
def test_orders_that_cannot_be_fitted_are_rejected(
    train: Train, policy: dict[str, Any], training: dict[str, Any], words: str
) -> None:
    config = small_config({**ensemble_of_orders(), **policy}, {**SHORT, **training})
    with pytest.raises(ConfigError, match=words):
        train(config)


def test_a_network_is_shown_the_step_that_it_knows(
    store: Store, members: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was trained from 3 columns: with 4 measured it stands before its second step."""
    simulator = Simulator(store.split("val").batch(torch.arange(4)), ZeroFilled())
    policy = EnsemblePolicy(members=loaded(members)).eval().bind(simulator.context)
    column, shown = policies.load(members[1]), []
    forward = ColumnPolicy.forward

    def watched(self: ColumnPolicy, seen: Observation) -> torch.Tensor:
        shown.append(seen.for_each(seen.step).tolist())
        return forward(self, seen)

    monkeypatch.setattr(ColumnPolicy, "forward", watched)
    state = simulator.start(2)
    for step, (own, unit) in enumerate(((0, 0.5), (0, 0.5), (1, 0.25))):
        seen = simulator.observe(policy, state, n_left=3 - step)
        expected = policy.expected(seen)[1]
        assert shown.pop() == [own] * 4
        torch.testing.assert_close(expected, column(replace(seen, step=own)) * unit)
        state = simulator.acquire(state, torch.full((4,), 3 + step))


def test_a_resumed_training_fits_no_order_again(
    store: Store, members: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits: list[int] = []

    def counted(*given: Any, **how: Any) -> Any:
        fits.append(1)
        return fit_fixed_order(*given, **how)

    monkeypatch.setattr(ensemble, "fit_fixed_order", counted)
    cut = train_whole_and_cut(config_of(members, n_epochs=2), store, tmp_path, epoch=2)
    # Not where a training goes on.
    assert len(fits) == 2
    orders = [policies.load(path).order for path in (cut, tmp_path / "whole")]
    assert orders[0] == orders[1] and len(orders[0]) == 2


@pytest.mark.cuda
@pytest.mark.parametrize("ordered", [[], [1]])
def test_a_gpu_finds_the_same(train: Train, members: list[str], ordered: list[int]) -> None:
    config = small_config(ensemble_of_orders(), {**SHORT, "ordered": ordered})
    found = {}
    for device in ("cpu", "cuda"):
        run = train(config, device, device=device)
        found[device] = policies.load(run.path)
    torch.testing.assert_close(found["cuda"].weights, found["cpu"].weights, rtol=1e-2, atol=1e-5)
    assert found["cuda"].order == found["cpu"].order
    both = config_of(members, ordered=ordered)
    run = train(both, "both", device="cuda")
    assert torch.isfinite(weights(run.path)["weights"]).all()
