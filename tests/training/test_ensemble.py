"""Ensembles: the gains that their members predict, added with weights of least squares."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from posterior_policies import ensemble_members, loaded, some_policy
from training_stores import (
    CONV,
    Train,
    blob_store,
    ensemble_of_orders,
    saved_orders,
    small_config,
    train_whole_and_cut,
    weights,
)

from coil_data import coil_store
from kscout import policies
from kscout.acquisition.episode import Simulator
from kscout.contracts import check_policy
from kscout.data.store import Store
from kscout.errors import ConfigError, KScoutError, WeightsError
from kscout.policies.ensemble import EnsemblePolicy
from kscout.policies.fixed import FixedOrder
from kscout.policies.oracle import Oracle
from kscout.reconstruction.zero_filled import ZeroFilled
from kscout.training.algorithm import Learner
from kscout.training.algorithms import ensemble
from kscout.training.algorithms.ensemble import Ensemble, Sums
from kscout.training.loop import TrainingLoop
from kscout.training.policy import new_policy
from kscout.training.training_run import TrainingRun
from kscout.weights import Weights, fingerprint, save_weights

SHORT = {"method": "ensemble", "n_slices": 6, "n_best": 3, "n_validated": 2, "seed": 3}


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return ensemble_members(tmp_path_factory.mktemp("members"), n_initial=2, horizon=3)


def config_of(members: list[str], **changes: Any) -> Any:
    return small_config({"name": "ensemble", "members": members}, {**SHORT, **changes})


def test_scores_are_the_weighted_sum_of_gains_that_members_expect(
    store: Store, members: list[str]
) -> None:
    policy = EnsemblePolicy(members=loaded(members), horizon=2).eval()
    with torch.no_grad():
        policy.weights.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        policy.constants.copy_(torch.tensor([0.1, 0.2]))
    simulator = Simulator(store.split("train").batch(torch.arange(3)), ZeroFilled())
    state = simulator.start(2)
    sampler, column = (policies.load(path).bind(simulator.context) for path in members)
    policy = policy.bind(simulator.context)
    for step, unit in enumerate((0.5, 0.25, 0.25)):
        seen = simulator.observe(policy, state, n_left=3)
        own = (1.0, 2.0, 0.1) if step == 0 else (3.0, 4.0, 0.2)
        wanted = own[0] * sampler(seen) + own[1] * unit * column(seen) + own[2]
        torch.testing.assert_close(policy(seen), wanted)
        state = simulator.acquire(state, torch.full((3,), 3 + step))
    assert policy.needs_gain_estimator and policy.gain_units == (1.0,)
    check_policy(policy, n_rows=16, n_cols=16)


def test_a_file_holds_all_members(members: list[str], tmp_path: Path) -> None:
    policy = EnsemblePolicy(members=loaded(members), horizon=3)
    with torch.no_grad():
        policy.weights.uniform_()
    policies.save(tmp_path / "ensemble.safetensors", policy)
    found = policies.load(tmp_path / "ensemble.safetensors")
    assert isinstance(found, EnsemblePolicy) and found.members == policy.members
    wanted = policy.state_dict()
    assert all(torch.equal(value, wanted[name]) for name, value in found.state_dict().items())
    assert found.policies[1].gain_units == (0.5, 0.25)
    assert found.misfit(16, 32) is None
    both = EnsemblePolicy(members=loaded(saved_orders(tmp_path, ([3, 5], [3, 5]))))
    assert both.misfit(16, 32) == ("16 columns", 32) and both.misfit(16, 16) is None
    assert not both.needs_gain_estimator


def test_least_squares_find_the_weights_that_gains_were_made_with() -> None:
    generator = torch.Generator().manual_seed(0)
    sums = Sums.empty(8, 3, torch.device("cpu"))
    true = torch.tensor([[0.5, 2.0, 0.0]] * 4 + [[1.0, 0.25, 0.0]] * 4)
    for step in range(8):
        expected = (
            torch.randn(3, 50, 6, generator=generator) + torch.tensor([1.0, 2, 3])[:, None, None]
        )
        # What a state's columns share is no member's: it decides nothing.
        shared = torch.randn(50, 1, generator=generator)
        gains = (true[step][:, None, None] * expected).sum(dim=0) + shared + 0.7
        sums.add(step, expected, gains)
    found, constants = sums.solved()
    torch.testing.assert_close(found[[0, 1, 6, 7]], true[[0, 1, 6, 7]], rtol=0, atol=1e-5)
    # Two steps nearby count, so that those in the middle lie between.
    assert ((found[3] - true[0]) * (found[3] - true[7]) <= 1e-6).all()
    torch.testing.assert_close(constants[[0, 7]], torch.tensor([0.7, 0.7]), rtol=0, atol=0.25)


def test_no_weight_is_negative_and_what_remains_is_fitted_anew() -> None:
    generator = torch.Generator().manual_seed(0)
    expected = torch.randn(3, 400, 5, generator=generator)
    expected[1] += 0.5 * expected[0]
    gains = expected[0] - 0.4 * expected[1] + 0.3 * expected[2]
    sums = Sums.empty(1, 3, torch.device("cpu"))
    sums.add(0, expected, gains)
    about = [
        (x - x.mean(dim=-1, keepdim=True)).flatten().double().numpy() for x in (*expected, gains)
    ]
    wanted = np.linalg.lstsq(np.stack([about[0], about[2]], axis=1), about[3], rcond=None)[0]
    np.testing.assert_allclose(sums.solved()[0][0], [wanted[0], 0, wanted[1]], rtol=1e-4)
    nothing = Sums.empty(1, 2, torch.device("cpu"))
    nothing.add(0, -expected[:2], expected[0] + expected[1])
    assert nothing.solved()[0].tolist() == [[1.0, 0.0]]


def test_trainings_resume_and_leave_members_unchanged(
    store: Store, members: list[str], tmp_path: Path, train: Train
) -> None:
    train_whole_and_cut(config_of(members, n_epochs=2), store, tmp_path, epoch=2)
    first = weights(tmp_path / "whole")
    other = train(config_of(members, seed=4), "other")
    assert not torch.equal(first["weights"], weights(other.path)["weights"])
    for name, value in policies.load(members[1]).state_dict().items():
        assert torch.equal(first[f"policies.1.{name}"], value)


def test_weights_do_not_depend_on_the_units_of_scores() -> None:
    generator = torch.Generator().manual_seed(0)
    expected = torch.randn(2, 60, 5, generator=generator)
    gains = 2 * expected[0] + 3 * expected[1]
    for scale in (1e-7, 1.0, 1e7):
        sums = Sums.empty(1, 2, torch.device("cpu"))
        sums.add(0, expected * torch.tensor([1.0, scale])[:, None, None], gains)
        torch.testing.assert_close(
            sums.solved()[0][0] * torch.tensor([1.0, scale]), torch.tensor([2.0, 3.0])
        )


def test_slices_follow_members_in_turn_whatever_is_acquired_together(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = [4, 10, 12], [10, 11, 4], [3, 2, 1]
    config = config_of(saved_orders(tmp_path, orders), n_slices=9, n_best=1)
    learner = Learner.of(new_policy(config, store.split("train")), config)
    followed: list[list[int]] = []
    acquire = Simulator.acquire

    def watched(self: Simulator, state: Any, column: torch.Tensor) -> Any:
        followed.append(column.tolist())
        return acquire(self, state, column)

    monkeypatch.setattr(Simulator, "acquire", watched)
    firsts = []
    for n_at_once in (4, 2):
        followed.clear()
        monkeypatch.setitem(ensemble._N_AT_ONCE, "cpu", n_at_once)
        algorithm = Ensemble(learner, store.split("train"), ZeroFilled())
        TrainingLoop(algorithm, TrainingRun(learner)).take_steps(1)
        firsts.append([column for batch in followed[::3] for column in batch])
    assert firsts == [[4, 10, 3] * 3] * 2


def test_a_changed_member_is_another_training(train: Train, tmp_path: Path) -> None:
    paths = saved_orders(tmp_path, ([4, 10, 12], [4, 10, 12]))
    train(config_of(paths))
    policies.save(paths[0], FixedOrder(n_cols=16, order=[5, 10, 12]))
    with pytest.raises(KScoutError, match="members"):
        train(config_of(paths))
    one, other = (some_policy(n_draws=3, n_first=n) for n in (1, 2))
    for path, policy in zip(paths, (one, other), strict=True):
        policies.save(path, policy)
    told = [fingerprint(EnsemblePolicy(members=loaded([path, path]))) for path in paths]
    assert told[0] != told[1]


def test_gains_of_another_metric_are_no_gains_to_stop_by(train: Train) -> None:
    run = train(small_config(ensemble_of_orders(), {**SHORT, "metric": "psnr"}))
    policy = policies.load(run.path)
    assert policy.gain_units == () and policy.n_cols == 16 and not policy.serves_any_size


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((), "give two policies or more"),
        ([some_policy()], "give two policies or more"),
        (["random", "random"], "give two policies or more"),
        ("knee-base-fixed", "give two policies or more"),
        ([Oracle()] * 2, "Oracle cannot be a member of an ensemble: oracles see the ground truth"),
    ],
)
def test_what_cannot_be_a_member_is_rejected(given: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        EnsemblePolicy(members=given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], r"members are \[\]; give two policies or more"),
        ([3, 4], "does not fit ensemble of this kscout"),
        ([{"component": "oracle"}] * 2, r"a member has the keys \['component'\]; expected"),
        (
            [{"component": "oracle", "arguments": {}, "gain_units": []}] * 2,
            "Oracle cannot be a member of an ensemble: oracles see the ground truth",
        ),
        (
            [{"component": "os:system", "arguments": {}, "gain_units": []}] * 2,
            "names the policy os:system, which is not part of kscout",
        ),
        ([{"zoo": 3, "sha256": ""}] * 2, "does not fit ensemble of this kscout"),
        (["knee-base-fixed"] * 2, "names other files as its members"),
        *(
            (
                [{"component": "random", "arguments": {}, "gain_units": [unit]}] * 2,
                "units of gain that are not numbers",
            )
            for unit in ("a", math.nan)
        ),
    ],
)
def test_files_with_such_members_are_rejected(tmp_path: Path, given: Any, words: str) -> None:
    path = tmp_path / "ensemble.safetensors"
    save_weights(path, Weights("policy", "ensemble", {"members": given}, {}))
    with pytest.raises(WeightsError, match=words):
        policies.load(path)


def test_other_networks_and_methods_are_refused(
    members: list[str], tmp_path: Path, train: Train
) -> None:
    both, dense = {"name": "ensemble", "members": members}, {"method": "dense", "n_epochs": 1}
    wide = blob_store(tmp_path / "wide", n_rows=16, n_cols=24)
    coils = coil_store(tmp_path / "coils")
    gone = ["knee-base-fixed", str(tmp_path / "gone")]
    start = train(config_of(members), "start").path
    refused: list[tuple[Any, dict[str, Any], str]] = [
        (small_config(CONV, SHORT), {}, "ensemble fits the weights of several policies"),
        (small_config(both, dense), {}, "dense would change the members of an ensemble"),
        (config_of(members), {"start": start}, r"is an ensemble.*leave out --start"),
        (
            *(config_of(members, metric="psnr"), {}),
            "tries columns by SSIM, and the weights are fitted for psnr",
        ),
        (
            *(small_config(ensemble_of_orders(), SHORT), {"on": wide}),
            "made for 16 columns, the slices have 24",
        ),
        (
            *(config_of([members[0]] * 2, protocol="blind"), {"on": coils}),
            "samples real images, and the slices are kspace",
        ),
        (config_of(gone), {}, "does not exist"),
    ]
    for config, how, words in refused:
        with pytest.raises(ConfigError, match=words):
            train(config, **how)
