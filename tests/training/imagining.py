"""Policies that imagine, small enough for tests."""

import torch
from training_stores import small_config

from kscout.config import PolicyConfig
from kscout.data.store import Store
from kscout.policies.imagine import ImaginePolicy
from kscout.reconstruction.zero_filled import ZeroFilled
from kscout.training.estimators.imagine import Imagine
from kscout.training.policy import new_policy
from kscout.training.trainee import Trainee

IMAGINE = {"name": "imagine", "n_channels": 4, "n_pools": 1, "n_draws": 2, "n_first": 1}


SHORT = {"batch_size": 4, "n_warm": 2, "seed": 3, "n_validated": 2, "n_prior_slices": 4}


def config_of(policy: dict[str, object] = IMAGINE, **changes: object) -> PolicyConfig:
    return small_config(policy, {"method": "imagine", "n_epochs": 2, **SHORT, **changes})


def some_policy(**how: object) -> ImaginePolicy:
    torch.manual_seed(1)
    policy = ImaginePolicy(**{"n_channels": 4, "n_pools": 1, "n_draws": 3, **how}).eval()
    policy.range_per_std.fill_(4.0)
    return policy


def estimator_of(config: PolicyConfig, store: Store) -> Imagine:
    slices = store.split("train")
    estimator = Imagine([Trainee.resume(new_policy(config, slices), config)], slices, ZeroFilled())
    estimator.restore(0, {})
    return estimator


def some_mask(n_images: int) -> torch.Tensor:
    mask = torch.zeros(n_images, 16, dtype=torch.bool)
    mask[:, [2, 7, 8, 9]] = True
    return mask
