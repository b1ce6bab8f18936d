"""How much a policy adapts: entropies of its choices and their mutual information with the state.

With p(a | x) the probability of column a in state x, and means over slices and trajectories,

    marginal            H(mean_x p(a | x))
    conditional         mean_x H(p(a | x))
    mutual information  I(a; x) = marginal - conditional >= 0,    H(p) = -sum_a p(a) log p(a)

all in nats (arXiv 2010.16262). The mutual information says how much the image tells about the next
column; a policy that takes the same columns in every slice has none. Where a policy takes its best
column, p is 1 there: nothing is left open by the state, and all marginal entropy is information.
"""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from kscout.core import Policy, Reconstructor
from kscout.data.slices import SliceSet
from kscout.errors import ConfigError
from kscout.evaluation.running.trajectories import AcquisitionPlan, trajectories

EPSILON = 1e-11
"""Added to probabilities before the logarithm, as the reference does."""


@final
@dataclass(frozen=True)
class Entropies:
    """Entropies per step, in nats."""

    marginal: Float[Tensor, " step"]
    conditional: Float[Tensor, " step"]

    @property
    def mutual_information(self) -> Float[Tensor, " step"]:
        return self.marginal - self.conditional


@final
class EntropyAccumulator:
    """Entropies from sums alone: memory does not grow with the number of slices."""

    def __init__(self) -> None:
        self.probabilities: Tensor | None = None
        self.entropy: Tensor | None = None
        self.count = 0

    def add(self, probabilities: Float[Tensor, "step slice trajectory col"]) -> None:
        """Take in the distributions of some more slices."""
        exact = probabilities.double()
        total = exact.sum(dim=(1, 2)).cpu()
        entropy = _entropy(exact).sum(dim=(1, 2)).cpu()
        self.probabilities = total if self.probabilities is None else self.probabilities + total
        self.entropy = entropy if self.entropy is None else self.entropy + entropy
        self.count += exact.shape[1] * exact.shape[2]

    def result(self) -> Entropies:
        """Return the entropies of all that was added."""
        if self.probabilities is None or self.entropy is None:
            raise ConfigError("no distribution was added; entropies need at least one slice")
        return Entropies(
            marginal=_entropy(self.probabilities / self.count),
            conditional=self.entropy / self.count,
        )


def _entropy(probabilities: Float[Tensor, "*lead col"]) -> Float[Tensor, "*lead"]:
    return -(probabilities * (probabilities + EPSILON).log()).sum(dim=-1)


def entropies(probabilities: Float[Tensor, "step slice trajectory col"]) -> Entropies:
    """Return marginal and conditional entropy and mutual information per step."""
    accumulator = EntropyAccumulator()
    accumulator.add(probabilities)
    return accumulator.result()


def policy_entropies(
    policy: Policy, slices: SliceSet, reconstructor: Reconstructor, plan: AcquisitionPlan
) -> Entropies:
    """Run a policy over a data set and return the entropies of its choices.

    Args:
        policy: whose scores are logits, or one that takes its best column.
        slices: what is acquired, on the device to work on.
        reconstructor: makes the images that the policy sees.
        plan: how slices are acquired (paper: 8 trajectories).
    """
    accumulator = EntropyAccumulator()
    where = (slices, reconstructor, plan)
    for _, done in trajectories(policy, *where, keep_probabilities=policy.is_stochastic):
        if not done.columns.shape[-1]:
            raise ConfigError("entropies need at least one step; raise the number of steps")
        if done.probabilities is not None:
            accumulator.add(done.probabilities)
        else:
            taken = torch.nn.functional.one_hot(done.columns, slices.n_cols)
            accumulator.add(taken.permute(2, 0, 1, 3).float())
    return accumulator.result()
