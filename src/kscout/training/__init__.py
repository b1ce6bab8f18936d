"""Training of reconstructors and policies: repeatable, resumable, on one process or several.

An estimator is a way to train a policy; a new one derives from `GradientEstimator`, or from
`Estimator` where an epoch is more than one optimizer step per batch.
"""

from kscout.training.estimators import EpochResult, Estimator, PolicyTrainee
from kscout.training.estimators.gradient import Batch, Draws, GradientEstimator, n_draws
from kscout.training.estimators.recording import Estimate, Recording
from kscout.training.fixed_order import FixedOrderResult, fit_fixed_order
from kscout.training.policy import train_policies, train_policy
from kscout.training.policy_gradient import (
    advantages,
    greedy_loss,
    non_greedy_loss,
    returns_to_go,
)
from kscout.training.reconstructor import train_reconstructor

__all__ = [
    "Batch",
    "Draws",
    "EpochResult",
    "Estimate",
    "Estimator",
    "FixedOrderResult",
    "GradientEstimator",
    "PolicyTrainee",
    "Recording",
    "advantages",
    "fit_fixed_order",
    "greedy_loss",
    "n_draws",
    "non_greedy_loss",
    "returns_to_go",
    "train_policies",
    "train_policy",
    "train_reconstructor",
]
