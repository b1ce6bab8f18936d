"""Training of reconstructors and policies: repeatable, resumable, on one process or several.

An estimator is a way to train a policy; a new one derives from `GradientEstimator`, or from
`Estimator` where an epoch is more than one optimizer step per batch. A `Sampler` chooses the
columns of a reconstruction that learns together with it.

Public names load on first use.
"""

from typing import TYPE_CHECKING

from kscout.exports import on_first_use

if TYPE_CHECKING:
    from kscout.config import ACQUISITIONS as ACQUISITIONS
    from kscout.config import AcquisitionSetting as AcquisitionSetting
    from kscout.config import Component as Component
    from kscout.config import DenseTraining as DenseTraining
    from kscout.config import GradientTraining as GradientTraining
    from kscout.config import GreedyTraining as GreedyTraining
    from kscout.config import JointConfig as JointConfig
    from kscout.config import JointTraining as JointTraining
    from kscout.config import NonGreedyTraining as NonGreedyTraining
    from kscout.config import PolicyConfig as PolicyConfig
    from kscout.config import PolicyTraining as PolicyTraining
    from kscout.config import ReconstructorConfig as ReconstructorConfig
    from kscout.config import ReconstructorTraining as ReconstructorTraining
    from kscout.training.algorithm import EpochResult as EpochResult
    from kscout.training.algorithm import Estimator as Estimator
    from kscout.training.algorithm import PolicyLearner as PolicyLearner
    from kscout.training.algorithms.gradient import Batch as Batch
    from kscout.training.algorithms.gradient import Draws as Draws
    from kscout.training.algorithms.gradient import GradientEstimator as GradientEstimator
    from kscout.training.algorithms.gradient import action_draws as action_draws
    from kscout.training.algorithms.gradient import n_draws as n_draws
    from kscout.training.algorithms.recording import Estimate as Estimate
    from kscout.training.algorithms.recording import Recording as Recording
    from kscout.training.fixed_order import FixedOrderResult as FixedOrderResult
    from kscout.training.fixed_order import fit_fixed_order as fit_fixed_order
    from kscout.training.joint.sampler import Sampler as Sampler
    from kscout.training.joint.train import train_joint as train_joint
    from kscout.training.policy import train_policies as train_policies
    from kscout.training.policy import train_policy as train_policy
    from kscout.training.policy_gradient import advantages as advantages
    from kscout.training.policy_gradient import greedy_loss as greedy_loss
    from kscout.training.policy_gradient import non_greedy_loss as non_greedy_loss
    from kscout.training.policy_gradient import returns_to_go as returns_to_go
    from kscout.training.reconstructor import train_reconstructor as train_reconstructor

_MODULES = {
    "kscout.config": (
        "ACQUISITIONS AcquisitionSetting Component DenseTraining GradientTraining "
        "GreedyTraining JointConfig JointTraining NonGreedyTraining PolicyConfig "
        "PolicyTraining ReconstructorConfig ReconstructorTraining"
    ),
    "kscout.training.algorithms.gradient": "Batch Draws GradientEstimator action_draws n_draws",
    "kscout.training.algorithm": "EpochResult Estimator PolicyLearner",
    "kscout.training.algorithms.recording": "Estimate Recording",
    "kscout.training.fixed_order": "FixedOrderResult fit_fixed_order",
    "kscout.training.joint.sampler": "Sampler",
    "kscout.training.policy_gradient": "advantages greedy_loss non_greedy_loss returns_to_go",
    "kscout.training.joint.train": "train_joint",
    "kscout.training.reconstructor": "train_reconstructor",
    "kscout.training.policy": "train_policies train_policy",
}

__getattr__, __dir__, __all__ = on_first_use(__name__, _MODULES)
