"""How much a policy adapts: entropies of its choices and their mutual information with the state.

The marginal entropy is that of the distribution averaged over slices and trajectories, the
conditional one is the entropy of each distribution, averaged. Their difference, the mutual
information, says how much the image tells about the next column. All in nats.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from kscout.core import Policy, Reconstructor
from kscout.data.slices import SliceSet
from kscout.errors import ConfigError
from kscout.evaluation.entrants import Entrant
from kscout.evaluation.trajectories import AcquisitionPlan, trajectories

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
    """Run a stochastic policy over a data set and return the entropies of its choices.

    Args:
        policy: one whose scores are logits.
        slices: what is acquired, on the device to work on.
        reconstructor: makes the images that the policy sees.
        plan: how slices are acquired (paper: 8 trajectories).
    """
    if not policy.is_stochastic:
        raise ConfigError(
            f"{type(policy).__name__} draws nothing, so its choices have no entropy; "
            "give a stochastic policy, such as random or a trained one"
        )
    accumulator = EntropyAccumulator()
    for _, trajectory in trajectories(policy, slices, reconstructor, plan, keep_probabilities=True):
        if trajectory.probabilities is None:
            raise ConfigError("entropies need at least one step; raise the number of steps")
        accumulator.add(trajectory.probabilities)
    return accumulator.result()


def entropy_bands(by_seed: Sequence[Entropies]) -> dict[str, dict[str, list[float] | None]]:
    """Return mean and std (ddof 1) over seeds of each entropy per step; std None for one seed."""
    bands: dict[str, dict[str, list[float] | None]] = {}
    for name in ("marginal", "conditional", "mutual_information"):
        values = torch.stack([getattr(one, name) for one in by_seed])
        std = values.std(dim=0).tolist() if len(by_seed) > 1 else None
        bands[name] = {"mean": values.mean(dim=0).tolist(), "std": std}
    return bands


def entropies_by_policy(
    entrants: Sequence[Entrant],
    slices: SliceSet,
    reconstructor: Reconstructor,
    plan: AcquisitionPlan,
    on_step: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, list[Entropies]]:
    """Return the entropies of each policy, one entry per seed.

    Args:
        entrants: stochastic policies; those of one name are seeds of one method.
        slices: what is acquired.
        reconstructor: makes the images that the policies see.
        plan: how slices are acquired; the draws are keyed by each entrant's own seed.
        on_step: called after each entrant with `policy`, `seed`, `done` and `total` slices.
    """
    found: dict[str, list[Entropies]] = {}
    for entrant in entrants:
        own = replace(plan, seed=entrant.draw_seed)
        one = policy_entropies(entrant.policy, slices, reconstructor, own)
        found.setdefault(entrant.name, []).append(one)
        if on_step is not None:
            whole = {"done": len(slices), "total": len(slices)}
            on_step({"policy": entrant.name, "seed": entrant.seed, **whole})
    return found


def entropy_rows(found: dict[str, list[Entropies]]) -> list[dict[str, Any]]:
    """Return a table: policy, step (from 1), mean and std of each entropy, n_seeds."""
    rows = []
    for name, by_seed in found.items():
        bands = entropy_bands(by_seed)
        for step in range(len(by_seed[0].marginal)):
            row: dict[str, Any] = {"policy": name, "step": step + 1, "n_seeds": len(by_seed)}
            for quantity, band in bands.items():
                row[quantity] = (band["mean"] or [])[step]
                row[f"{quantity}_std"] = None if band["std"] is None else band["std"][step]
            rows.append(row)
    return rows


__all__ = [
    "Entropies",
    "EntropyAccumulator",
    "entropies",
    "entropies_by_policy",
    "entropy_bands",
    "entropy_rows",
    "policy_entropies",
]
