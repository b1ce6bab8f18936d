"""Weights of an ensemble, by non-negative least squares on slices with known gains.

Slices are acquired by the members, each by one of them in turn. At each step the columns with the
highest scores of some member are tried, and their gains are regressed on the gains that the members
predict. Both are centered within each state, because a constant over its columns decides nothing.
States of adjacent steps count, too. A constant makes the sum a gain.

From few columns the largest immediate gain is a poor choice. With `training.ordered` the first
steps are those of a fixed order; of several numbers of steps the one with the best final scores is
selected.
"""

from dataclasses import dataclass, fields, replace
from typing import final

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from kscout.acquisition.loop import Acquisition
from kscout.acquisition.plan import training_plan
from kscout.compatibility import check_matrix, check_real
from kscout.config import EnsembleTraining
from kscout.core import Reconstructor
from kscout.data.kinds import IMAGES
from kscout.data.slices import SliceSet
from kscout.errors import ConfigError
from kscout.json_types import StateDict
from kscout.names import metric_word
from kscout.policies.ensemble import EnsemblePolicy
from kscout.randomness import keyed_generator
from kscout.training.algorithm import EpochResult, Estimator, PolicyLearner
from kscout.training.fixed_order import fit_fixed_order

_N_AT_ONCE = {"cpu": 4, "cuda": 48}
"""Slices acquired together."""
_NEAR = 2
"""States of this many steps before and after a step also determine its weights."""

_RIDGE = 1e-12
"""Relative ridge, for members that predict the same."""
_LEAST = 1e-300
"""Prevents division by zero if a member predicts nothing."""


@final
class Ensemble(Estimator):
    """Fits the weights of the members of an `EnsemblePolicy`."""

    settings = EnsembleTraining
    training: EnsembleTraining

    def __init__(
        self, learner: PolicyLearner, slices: SliceSet, reconstructor: Reconstructor
    ) -> None:
        super().__init__(learner, slices, reconstructor)
        if not isinstance(learner.module, EnsemblePolicy):
            raise ConfigError(
                f"ensemble fits the weights of several policies, and "
                f"{type(learner.module).__name__} is one; use policy.name = 'ensemble', or another "
                "--method"
            )
        self.policy = learner.module
        self.n_slices = min(self.training.n_slices, len(slices))
        self.n_ordered = sorted(set(self.training.ordered)) or [0]
        """Candidate numbers of first steps that follow the fixed order."""
        self.n_batches = -(-self.n_slices // _N_AT_ONCE[self.device.type])
        self.n_steps = len(self.n_ordered) * self.n_batches
        self.order: list[int] = []
        self._check()

    def _check(self) -> None:
        policy, n_steps = self.policy, self.config.acquisition.horizon
        if self.n_ordered[-1] >= n_steps:
            raise ConfigError(
                f"training.ordered leaves no step to fit: {self.n_ordered[-1]} of {n_steps}; give "
                "fewer steps"
            )
        if policy.order:
            raise ConfigError(
                f"policy.order is {list(policy.order)}, but the training fits it; leave it out, "
                "and give its length as training.ordered"
            )
        kind = None if self.slices.kind == IMAGES.name else f"the slices are {self.slices.kind}"
        check_real(policy, kind)
        check_matrix(policy, self.slices.shape)
        if policy.needs_gain_estimator and self.training.metric != "ssim":
            raise ConfigError(
                "a member tries columns by SSIM, and the weights are fitted for "
                f"{self.training.metric}; leave out --metric, or give policies that try none"
            )

    def restore(self, state: StateDict) -> None:
        """Restore the fixed order, or fit one."""
        if self.n_ordered[-1] and state:
            self.order = state["order"]
        elif self.n_ordered[-1]:
            plan = replace(training_plan(self.config), horizon=self.n_ordered[-1])
            self.order = fit_fixed_order(
                *(self.slices, self.reconstructor, plan),
                n_slices_per_step=self.training.n_baseline_slices,
                device=self.device,
            ).order

    def state(self) -> StateDict:
        return {"order": self.order} if self.order else {}

    def validated(self, slices: SliceSet) -> SliceSet:
        """Return some of the slices: members may try many columns of each."""
        return slices.sample(self.training.n_validated)

    def begin_epoch(self, epoch: int) -> None:
        """Draw slices that are acquired together, and their numbers, which select the member."""
        generator = keyed_generator(self.training.seed, epoch, "weighed slices")
        drawn = torch.randperm(len(self.slices), generator=generator)[: self.n_slices]
        numbers = torch.arange(self.n_slices, device=self.device)
        n_at_once = _N_AT_ONCE[self.device.type]
        parts = (drawn.to(self.slices.index_device).split(n_at_once), numbers.split(n_at_once))
        self.batches = [*zip(*parts, strict=True)]

    @torch.no_grad()
    def take_step(self, epoch: int, step: int) -> None:
        part, at = divmod(step, self.n_batches)
        self.policy.eval()
        self._begin(self.n_ordered[part])
        if f"scores {part}" not in self.sums:
            shape = (self.config.acquisition.horizon, len(self.policy.members))
            scores = torch.zeros((), dtype=torch.float64, device=self.device)
            new = {**vars(Sums.empty(*shape, self.device)), "scores": scores}
            self.sums |= {f"{name} {part}": value for name, value in new.items()}
        self.sums[f"scores {part}"] += self._acquire(*self.batches[at], self._sums(part))

    def _sums(self, part: int) -> "Sums":
        return Sums(*(self.sums[f"{field.name} {part}"] for field in fields(Sums)))

    @torch.no_grad()
    def end_epoch(self, epoch: int) -> EpochResult:
        """Fit the weights after each number of ordered steps, and select the best final score."""
        policy, numbers = self.policy, self.n_ordered
        means = [float(self.sums[f"scores {x}"]) / self.n_slices for x in range(len(numbers))]
        # Of equal ones the first, which decides most steps by what it sees.
        best = max(range(len(numbers)), key=means.__getitem__)
        self._begin(numbers[best])
        fitted = self._sums(best).solved()
        for own, value in zip((policy.weights, policy.constants), fitted, strict=True):
            own.copy_(value)
        horizon = self.config.acquisition.horizon
        n_decisions = self.n_slices * sum(horizon - n_first for n_first in numbers)
        n_tried = n_decisions * (1 + len(policy.members) * self.training.n_best)
        n_images = n_tried + self.n_slices * sum(numbers)
        facts = {"n_reconstructions": n_images, "n_decisions": n_decisions}
        return EpochResult({f"train_{metric_word(self.training.metric)}": means[best]}, facts)

    def _begin(self, n_first: int) -> None:
        self.policy.begin_with(self.order[:n_first], self.slices.n_cols)
        if self.training.metric != "ssim":
            self.policy.gain_units = ()

    def _acquire(
        self, index: Int[Tensor, " slice"], number: Int[Tensor, " slice"], sums: "Sums"
    ) -> Float[Tensor, ""]:
        training, plan = self.training, training_plan(self.config)
        simulator = plan.simulator(self.slices.batch(index), self.reconstructor)
        policy, acquisition = self.policy.bind(simulator.context), Acquisition(simulator, plan)
        slices = torch.arange(len(index), device=self.device)
        for step in range(plan.horizon):
            seen, blocked = acquisition.observe(policy), acquisition.blocked
            if step < len(policy.order):
                scores = policy.along_order(seen).masked_fill(blocked, -torch.inf)
                acquisition.measure(scores.argmax(dim=-1, keepdim=True))
                continue
            expected = policy.expected(seen).masked_fill(blocked, -torch.inf)
            n_best = min(training.n_best, blocked.shape[-1])
            best = expected.topk(n_best, dim=-1).indices
            # If too few are left, the best column replaces the others.
            is_left = ~blocked.expand(expected.shape).gather(-1, best)
            best = torch.where(is_left, best, best[..., :1])
            columns = best.transpose(0, 1).flatten(1)
            state = acquisition.state
            gains = simulator.score_columns(state, columns) - state.score[:, None]
            predicted = expected.gather(-1, columns.expand(len(expected), -1, -1))
            sums.add(step, predicted, gains)
            acquisition.measure(best[number % len(best), slices, :1])
        acquisition.finish()
        return acquisition.state.score.double().sum()


@final
@dataclass(frozen=True)
class Sums:
    """Sums of the normal equations, by step."""

    products: Float64[Tensor, "step member member"]
    moments: Float64[Tensor, "step member"]
    totals: Float64[Tensor, "step term"]
    """Sums of the predictions of each member and of gains, and their number."""

    @classmethod
    def empty(cls, n_steps: int, n_members: int, device: torch.device) -> "Sums":
        shapes = ((n_members, n_members), (n_members,), (n_members + 2,))
        nothing = torch.zeros((), dtype=torch.float64, device=device)
        return cls(*(nothing.new_zeros((n_steps, *shape)) for shape in shapes))

    def add(
        self,
        step: int,
        expected: Float[Tensor, "member state column"],
        gains: Float[Tensor, "state column"],
    ) -> None:
        """Add the states of a step, also to the steps nearby."""
        terms = torch.cat([expected, gains[None]]).double()
        about = (terms - terms.mean(dim=-1, keepdim=True)).flatten(1)
        count = terms.new_full((1,), gains.numel())
        near = slice(max(0, step - _NEAR), step + _NEAR + 1)
        self.products[near] += about[:-1] @ about[:-1].T
        self.moments[near] += about[:-1] @ about[-1]
        self.totals[near] += torch.cat([terms.flatten(1).sum(dim=-1), count])

    def solved(self) -> tuple[Float[Tensor, "step member"], Float[Tensor, " step"]]:
        """Return non-negative weights and constants; without data, the first weight is one."""
        rows = [non_negative(*both) for both in zip(self.products, self.moments, strict=True)]
        weights = torch.stack(rows).to(self.totals.device)
        means = self.totals[:, :-1] / self.totals[:, -1:].clamp(min=1)
        constants = means[:, -1] - (weights * means[:, :-1]).sum(dim=-1)
        return weights.float(), constants.float()


def non_negative(
    products: Float64[Tensor, "weight weight"], moments: Float64[Tensor, " weight"]
) -> Float64[Tensor, " weight"]:
    """Solve normal equations for non-negative weights.

    The most negative weight is set to zero and the others are solved again, until none is
    negative. Without data, the first weight is one.
    """
    products, moments = products.cpu(), moments.cpu()
    weights, kept = torch.zeros_like(moments), list(range(len(moments)))
    while kept:
        own = products[kept][:, kept]
        # Scaled to a unit diagonal, so that the ridge is relative.
        unit = own.diagonal().clamp(min=_LEAST).sqrt()
        own = own / (unit[:, None] * unit) + _RIDGE * torch.eye(len(kept), dtype=own.dtype)
        # Not lstsq, whose results differ from call to call.
        found, info = torch.linalg.solve_ex(own, moments[kept] / unit)
        if int(info) == 0 and bool((found >= 0).all()):
            weights[kept] = found / unit
            break
        del kept[int(found.nan_to_num().argmin())]
    if not bool((weights > 0).any()):
        weights[0] = 1.0
    return weights
