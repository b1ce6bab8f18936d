"""How the step sizes of optimizers change while they learn."""

from kscout.config.policy import PolicyTraining
from kscout.config.reconstructor import ReconstructorTraining


def learning_rate_at(training: ReconstructorTraining | PolicyTraining, epoch: int) -> float:
    """Return the step size during an epoch, counted from 1."""
    n_decays = sum(epoch > decay_epoch for decay_epoch in training.decay_epochs)
    return training.learning_rate * training.decay_factor**n_decays


def warmed_rate(rate: float, n_done: int, n_steps: int, n_warm: int) -> float:
    """Return a step size that rises to `rate` over `n_warm` steps and falls to zero.

    Args:
        rate: the largest.
        n_done: steps taken before.
        n_steps: in all.
        n_warm: steps of the rise.
    """
    return rate * min(1.0, (n_done + 1) / (n_warm + 1)) * (1 - n_done / n_steps)
