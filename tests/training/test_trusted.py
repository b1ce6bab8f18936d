"""What imagined columns must promise: found where it is known what they are worth."""

import math
from pathlib import Path

import pytest
import torch
from imagining import config_of, estimator_of, some_policy
from training_stores import blob_store

from kscout import policies
from kscout.acquisition.episode import Simulator
from kscout.acquisition.rollout import rollout
from kscout.data.store import Store
from kscout.policies.imagine import ImaginePolicy
from kscout.reconstruction.zero_filled import ZeroFilled
from kscout.training.estimators.trusted import NEVER, from_which, least_worth
from kscout.training.policy import train_policy


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return blob_store(tmp_path_factory.mktemp("store") / "store", n_rows=16, n_cols=16)


def test_columns_are_taken_from_the_promise_on_that_was_kept() -> None:
    promised = torch.tensor([0.1, 0.5, 0.3, 0.4, 0.2, -0.1])
    kept = torch.tensor([-9.0, 3.0, 3.0, 3.0, -1.0, -9.0])
    # In order of promise: 3, 3, 3, -1, ...; the sum less its standard error is highest after three.
    assert from_which(promised, kept) == pytest.approx(0.25)
    assert from_which(promised, -kept.abs()) == NEVER
    # One that was kept is no evidence: the sum is its own standard error.
    assert from_which(torch.tensor([0.5, 0.1]), torch.tensor([3.0, -9.0])) == NEVER
    assert from_which(promised[:4], torch.ones(4)) == 0
    assert from_which(-promised[:4], torch.ones(4)) == pytest.approx(-0.5)
    # Where no other column is left, nothing is promised and nothing kept.
    none = torch.tensor([0.5, 0.4, 0.3, -math.inf])
    assert from_which(none, torch.tensor([1.0, 1.0, 1.0, 77.0])) == 0
    assert from_which(torch.zeros(0), torch.zeros(0)) == NEVER


def test_slices_go_on_as_was_found_at_the_steps_before(store: Store) -> None:
    config = config_of(completion="fixed")
    batch, horizon = store.split("train").batch(torch.arange(8)), config.acquisition.horizon
    policy = some_policy(order=[5, 11, 3], order_cols=16)
    parts = [batch.rows(torch.arange(5)), batch.rows(torch.arange(5, 8))]
    found = least_worth(policy, parts, ZeroFilled(), config, 8)
    assert len(found) == horizon == 3
    for step in range(horizon):
        # With what was found so far, and the order from then on, states are those of this step.
        until = some_policy(order=[5, 11, 3], order_cols=16, least=[*found[:step], NEVER])
        simulator = Simulator(batch, ZeroFilled())
        taken = rollout(until, simulator, n_initial=2, horizon=3).columns[:, 0]
        mask = simulator.start(2).mask.scatter(-1, taken[:, :step], True)
        seen = simulator.observe(until, simulator.start_from(mask), n_left=3 - step)
        worth = policy.expected(seen)
        promised, best = worth.masked_fill(mask | (worth == 0), -torch.inf).max(dim=-1)
        kept = []
        for row in range(8):
            ends = []
            for first in (best[row].item(), None):
                own = set(mask[row].nonzero().flatten().tolist()) | ({first} - {None})
                own |= set([x for x in (5, 11, 3) if x not in own][: 5 - len(own)])
                end = torch.zeros(1, 16, dtype=torch.bool)
                end[0, list(own)] = True
                one = Simulator(batch.rows(torch.tensor([row])), ZeroFilled())
                ends.append(float(one.start_from(end).score))
            kept.append(ends[0] - ends[1])
        wanted = from_which(promised, torch.tensor(kept))
        assert found[step] == pytest.approx(wanted, abs=1e-5)


def test_a_training_finds_them_at_its_end(store: Store, tmp_path: Path) -> None:
    config = config_of(completion="fixed", n_epochs=2, n_trusted=6)
    run = train_policy(config, store, "zero-filled", tmp_path / "run", device="cpu")
    policy = policies.load(run.path)
    assert isinstance(policy, ImaginePolicy) and len(policy.least) == 3 and len(policy.order) == 3
    plain = train_policy(config_of(n_epochs=1), store, "zero-filled", tmp_path / "b", device="cpu")
    assert policies.load(plain.path).least == ()
    # Slices that are acquired are those of a seed, and no more than there are.
    estimator = estimator_of(config_of(completion="fixed", n_trusted=99), store)
    estimator.step_taken([], estimator.n_steps - 1)
    assert len(estimator.trainees[0].module.least) == 3
