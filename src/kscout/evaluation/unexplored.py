"""Which columns a policy leaves unexplored: those with the largest gain that it rarely samples.

Both estimators learn from the columns that the policy draws. One that it has ruled out early gives
no gradient any more, however much it is worth. A policy that takes its best column instead of
drawing has no chances of its own; there a column counts as hardly ever drawn that is hardly ever
taken, in any state in which it could be.
"""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kscout.acquisition.choose import check_chosen, choose_columns, column_log_probabilities
from kscout.acquisition.episode import Simulator
from kscout.acquisition.rollout import action_uniforms
from kscout.core import Policy, Reconstructor
from kscout.data.slices import SliceSet
from kscout.errors import ConfigError
from kscout.evaluation.running.trajectories import AcquisitionPlan, check_fits
from kscout.policies.oracle import TIE
from kscout.policies.views import in_precision


@final
@dataclass
class Tally:
    """Sums over states, of which there is one per slice and step."""

    n_states: int
    n_best: Float[Tensor, " col"]
    """States in which no column is worth more."""
    n_unexplored: Float[Tensor, " col"]
    """Those of them in which the policy hardly ever draws it, or that it hardly ever takes."""
    gain: Float[Tensor, " col"]
    """What measuring it next adds to SSIM, over the unexplored ones."""
    forgone: Float[Tensor, " col"]
    """By how much that exceeds what the policy can expect of its draw."""

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(
            self.n_states + other.n_states,
            self.n_best + other.n_best,
            self.n_unexplored + other.n_unexplored,
            self.gain + other.gain,
            self.forgone + other.forgone,
        )


def tally_states(
    gains: Float[Tensor, "state col"],
    probabilities: Float[Tensor, "state col"],
    rare: float,
    chances: Float[Tensor, "state col"] | None = None,
) -> Tally:
    """Count the columns that are best, and those of them that are unexplored.

    Args:
        gains: SSIM that each column adds; -inf where it cannot be measured.
        probabilities: the policy's, zero there.
        rare: a chance below this counts as hardly ever.
        chances: that a column is ever drawn; the probabilities where not given.
    """
    gain = gains.double().amax(dim=-1)
    # Mirrored columns may be worth the same: the first stands for them, and drawing any will do.
    is_best = gains >= gain[:, None] - TIE
    best = is_best.to(torch.int8).argmax(dim=-1)
    expected = (probabilities.double() * gains.double().clamp_min(-1)).sum(dim=-1)
    is_rare = ((probabilities if chances is None else chances) * is_best).sum(dim=-1) < rare
    n_cols = gains.shape[-1]

    def by_column(values: Tensor) -> Tensor:
        total = torch.zeros(n_cols, dtype=torch.float64, device=values.device)
        return total.index_add(0, best, values.double()).cpu()

    return Tally(
        len(gains),
        by_column(torch.ones_like(gain)),
        by_column(is_rare),
        by_column(is_rare * gain),
        by_column(is_rare * (gain - expected)),
    )


def tally_choices(
    gains: Float[Tensor, "state col"], chosen: Int[Tensor, " state"], rare: float
) -> Tally:
    """Count the same for a policy that draws nothing, from all of its states.

    Args:
        gains: SSIM that each column adds; -inf where it cannot be measured.
        chosen: the column that it takes.
        rare: taken in a smaller share of the states in which it could be is hardly ever.
    """
    taken = torch.nn.functional.one_hot(chosen, gains.shape[-1]).double()
    shares = taken.sum(dim=0) / gains.isfinite().sum(dim=0).clamp(min=1)
    return tally_states(gains, taken, rare, shares.expand(taken.shape))


@torch.no_grad()
def tally_policy(
    policy: Policy,
    slices: SliceSet,
    reconstructor: Reconstructor,
    plan: AcquisitionPlan,
    *,
    rare: float,
) -> Tally:
    """Run a policy once over each slice, and try every column at every step."""
    check_fits(policy, slices, plan)
    device = slices.device
    reconstructor = reconstructor.to(device).eval()
    policy = in_precision(policy.to(device).eval(), reconstructor.precision)
    uniforms = action_uniforms(int(slices.position.max()) + 1, 1, plan.horizon, plan.seed)
    total, states = None, []
    for batch in slices.batches(plan.n_at_once(slices)):
        simulator = Simulator(batch, reconstructor, protocol=plan.protocol)
        state, own = simulator.start(plan.start(slices)), uniforms.to(device)[batch.index, 0]
        for step in range(plan.horizon):
            seen = simulator.observe(policy, state, n_left=plan.horizon - step)
            scores, blocked = policy(seen), simulator.blocked(state)
            gains = simulator.score_every_column(state) - state.score[:, None]
            chosen = choose_columns(policy, scores, blocked, own[:, step])
            check_chosen(blocked.gather(-1, chosen[:, None]).any(), type(policy).__name__)
            if policy.is_stochastic:
                probabilities = column_log_probabilities(scores, blocked).exp()
                found = tally_states(gains, probabilities, rare)
                total = found if total is None else total + found
            else:
                states.append((gains.cpu(), chosen.cpu()))
            state = simulator.acquire(state, chosen)
    if states:
        tried, taken = (torch.cat(part) for part in zip(*states, strict=True))
        total = tally_choices(tried, taken, rare)
    if total is None:
        raise ConfigError("nothing is unexplored in no step; raise the number of steps")
    return total
