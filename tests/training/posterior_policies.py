"""Posterior samplers that are small enough for tests."""

from collections.abc import Sequence
from pathlib import Path

import torch
from training_stores import small_config

from kscout import policies
from kscout.config import PolicyConfig
from kscout.core import Policy
from kscout.data.store import Store
from kscout.policies.column import ColumnPolicy
from kscout.policies.posterior import PosteriorPolicy
from kscout.reconstruction.zero_filled import ZeroFilled
from kscout.training.algorithm import Learner
from kscout.training.algorithms.posterior import Posterior
from kscout.training.policy import new_policy

SAMPLER = {"name": "posterior", "n_channels": 4, "n_pools": 1, "n_draws": 2, "n_first": 1}


SHORT = {"batch_size": 4, "n_warm": 2, "seed": 3, "n_validated": 2, "n_baseline_slices": 4}


def config_of(policy: dict[str, object] = SAMPLER, **changes: object) -> PolicyConfig:
    return small_config(policy, {"method": "posterior", "n_epochs": 2, **SHORT, **changes})


def some_policy(**how: object) -> PosteriorPolicy:
    torch.manual_seed(1)
    policy = PosteriorPolicy(**{"n_channels": 4, "n_pools": 1, "n_draws": 3, **how}).eval()
    policy.range_per_std.fill_(4.0)
    return policy


def estimator_of(config: PolicyConfig, store: Store) -> Posterior:
    slices = store.split("train")
    learner = Learner.of(new_policy(config, slices), config)
    estimator = Posterior(learner, slices, ZeroFilled())
    estimator.restore({})
    return estimator


def some_mask(n_images: int) -> torch.Tensor:
    mask = torch.zeros(n_images, 16, dtype=torch.bool)
    mask[:, [2, 7, 8, 9]] = True
    return mask


def loaded(paths: Sequence[str | Path]) -> list[Policy]:
    return [policies.load(path) for path in paths]


def ensemble_members(folder: Path, *, n_initial: int, horizon: int) -> list[str]:
    """Write a posterior sampler and a network that knows its start, and return the files."""
    torch.manual_seed(0)
    column = ColumnPolicy(n_cols=16, n_initial=n_initial, horizon=horizon, width=16, n_heads=2)
    column.is_stochastic, column.gain_units = False, (0.5, 0.25)
    policies.save(folder / "column.safetensors", column)
    policies.save(folder / "posterior.safetensors", some_policy())
    return [str(folder / f"{name}.safetensors") for name in ("posterior", "column")]
