"""The non-greedy estimator: a column is judged by its own gain and all later ones.

A discount gamma in [0, 1] weighs later gains; the paper's NGreedy has none, gamma = 1.
Paper: arXiv 2010.16262, section 4, pseudocode in appendix A.5.
"""

from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kscout.acquisition.episode import Simulator
from kscout.config import NonGreedyTraining, PolicyConfig
from kscout.physics.sampling import Initial
from kscout.policies.views import View
from kscout.training.estimators.gradient import (
    Batch,
    Draws,
    GeneratorFor,
    GradientEstimator,
    action_draws,
)
from kscout.training.estimators.recording import KEPT_BYTES, Estimate, Recording
from kscout.training.policy_gradient import returns_to_go

_KEPT_BYTES = {**KEPT_BYTES, "cpu": 0}
"""Features of q trajectories would soon fill a CPU's share."""


def non_greedy_gradients(
    policies: Sequence[View],
    simulator: Simulator,
    *,
    n_initial: Initial,
    uniforms: Float[Tensor, "slice step q *member"],
    gammas: Sequence[float],
    replay: Int[Tensor, "step slice q *member"] | None = None,
) -> Estimate:
    """Add the gradients of the non-greedy loss to the policies' own.

    The q columns of the first step start q trajectories, each of which then draws one a step:
    `loss = -1 / (q - 1) sum_i sum_t log pi(a_it | s_it) R_it`, as a mean over slices, with
    `R_it = sum_{t' >= t} gamma^(t' - t) (r_it' - mean_j r_jt')`. Where a step takes several
    columns, a_it is a group of them, as in `greedy_gradients`.

    Args:
        policies: one, or several in lockstep.
        simulator: holds the slices, divided among the policies in equal consecutive parts.
        n_initial: central columns measured at the start, or columns.
        uniforms: numbers in [0, 1) that decide the draws.
        gammas: discount of each policy.
        replay: columns to take instead of drawing.
    """
    n_slices, n_steps, q, *group = uniforms.shape
    n_own = n_slices // len(policies)

    def weigh(rewards: Float[Tensor, "step slice q"]) -> Float[Tensor, "step slice q"]:
        parts = zip(rewards.split(n_own, dim=1), gammas, strict=True)
        returns = [-returns_to_go(part, gamma) / ((q - 1) * n_own) for part, gamma in parts]
        return torch.cat(returns, dim=1)

    recording = Recording(
        policies,
        simulator,
        weigh,
        n_states=n_slices * (1 + q * (n_steps - 1)),
        kept_bytes=_KEPT_BYTES,
    )
    draws = uniforms.transpose(0, 1).contiguous()
    state = simulator.start(n_initial)
    for step in range(n_steps):
        # One state per slice draws q columns at the first step; later q states draw one each.
        given = None if replay is None else replay[step].reshape(len(state), -1, *group)
        columns = recording.choose(state, draws[step].reshape(len(state), -1, *group), given)
        before = state.score.view(n_slices, -1)
        state = simulator.branch(state, columns).every()
        recording.reward(state.score.view(n_slices, q) - before)
    return recording.finish(state)


@final
class NonGreedy(GradientEstimator):
    """Trains policies with the non-greedy estimator."""

    settings = NonGreedyTraining
    is_pure = True
    takes_groups = True

    def draw(
        self, config: PolicyConfig, n_slices: int, n_batches: int, generator: GeneratorFor
    ) -> Draws:
        return Draws([action_draws(config, n_slices, generator)])

    def gradients(self, batch: Batch) -> Float[Tensor, " policy"]:
        (uniforms,) = batch.per_slice
        return non_greedy_gradients(
            batch.policies,
            batch.simulator,
            n_initial=batch.configs[0].acquisition.start,
            uniforms=uniforms,
            gammas=[config.training.varied["gamma"] for config in batch.configs],
        ).final_score
