"""Training of reconstructors and policies: repeatable, resumable, on one process or several.

An estimator is a way to train a policy; a new one derives from `GradientEstimator`, or from
`Estimator` where an epoch is more than one optimizer step per batch. A `Sampler` chooses the
columns of a reconstruction that learns together with it.

Public names load on first use.
"""

from typing import TYPE_CHECKING

from kscout.exports import on_first_use

if TYPE_CHECKING:
    from kscout.config import (
        ACQUISITIONS,
        AcquisitionSetting,
        Component,
        DenseTraining,
        GradientTraining,
        GreedyTraining,
        JointConfig,
        JointTraining,
        NonGreedyTraining,
        PolicyConfig,
        PolicyTraining,
        ReconstructorConfig,
        ReconstructorTraining,
    )
    from kscout.training.estimators import EpochResult, Estimator, PolicyTrainee
    from kscout.training.estimators.gradient import (
        Batch,
        Draws,
        GradientEstimator,
        action_draws,
        n_draws,
    )
    from kscout.training.estimators.recording import Estimate, Recording
    from kscout.training.fixed_order import FixedOrderResult, fit_fixed_order
    from kscout.training.joint.sampler import Sampler
    from kscout.training.joint.train import train_joint
    from kscout.training.policy import train_policies, train_policy
    from kscout.training.policy_gradient import (
        advantages,
        greedy_loss,
        non_greedy_loss,
        returns_to_go,
    )
    from kscout.training.reconstructor import train_reconstructor

_MODULES = {
    "kscout.config": (
        "ACQUISITIONS AcquisitionSetting Component DenseTraining GradientTraining "
        "GreedyTraining JointConfig JointTraining NonGreedyTraining PolicyConfig "
        "PolicyTraining ReconstructorConfig ReconstructorTraining"
    ),
    "kscout.training.estimators.gradient": "Batch Draws GradientEstimator action_draws n_draws",
    "kscout.training.estimators": "EpochResult Estimator PolicyTrainee",
    "kscout.training.estimators.recording": "Estimate Recording",
    "kscout.training.fixed_order": "FixedOrderResult fit_fixed_order",
    "kscout.training.joint.sampler": "Sampler",
    "kscout.training.policy_gradient": "advantages greedy_loss non_greedy_loss returns_to_go",
    "kscout.training.joint.train": "train_joint",
    "kscout.training.policy": "train_policies train_policy",
    "kscout.training.reconstructor": "train_reconstructor",
}

__getattr__, __dir__ = on_first_use(__name__, _MODULES)

__all__ = [
    "ACQUISITIONS",
    "AcquisitionSetting",
    "Batch",
    "Component",
    "DenseTraining",
    "Draws",
    "EpochResult",
    "Estimate",
    "Estimator",
    "FixedOrderResult",
    "GradientEstimator",
    "GradientTraining",
    "GreedyTraining",
    "JointConfig",
    "JointTraining",
    "NonGreedyTraining",
    "PolicyConfig",
    "PolicyTrainee",
    "PolicyTraining",
    "ReconstructorConfig",
    "ReconstructorTraining",
    "Recording",
    "Sampler",
    "action_draws",
    "advantages",
    "fit_fixed_order",
    "greedy_loss",
    "n_draws",
    "non_greedy_loss",
    "returns_to_go",
    "train_joint",
    "train_policies",
    "train_policy",
    "train_reconstructor",
]
