"""The greedy estimator: the reward of a column is its own gain.

Paper: arXiv 2010.16262, section 4, pseudocode in appendix A.5.
"""

from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kscout.acquisition.episode import Simulator
from kscout.config import GreedyTraining
from kscout.physics.sampling import Initial
from kscout.policies.views import View
from kscout.training.algorithms.gradient import (
    Batch,
    Draws,
    GeneratorFor,
    GradientEstimator,
    action_draws,
    n_draws,
)
from kscout.training.algorithms.recording import Estimate, Recording
from kscout.training.policy_gradient import advantages


def greedy_gradients(
    view: View,
    simulator: Simulator,
    *,
    n_initial: Initial,
    uniforms: Float[Tensor, "slice step q"],
    followed: Int[Tensor, " step"],
    replay: Int[Tensor, "step slice q"] | None = None,
) -> Estimate:
    """Add the gradients of the greedy loss, summed over steps, to the policy's own.

    At each step, q columns a_i are drawn from one state s, and one of them is acquired:
    `loss = -1 / (q - 1) sum_i log pi(a_i | s) (r_i - mean_j r_j)`, as a mean over slices.

    `uniforms` in [0, 1) decide the draws, `followed` which of the q columns is acquired: one index
    for the whole batch, as in the authors' code. `replay` has columns to take instead.
    """
    n_slices, n_steps, q = uniforms.shape

    def weigh(rewards: Float[Tensor, "*step slice q"]) -> Float[Tensor, "*step slice q"]:
        return -advantages(rewards) / ((q - 1) * n_slices)

    recording = Recording(view, simulator, weigh, is_by_step=True, n_states=n_slices * n_steps)
    # Made for all steps at once: small tensors cost a GPU as much as large ones.
    draws = uniforms.transpose(0, 1).contiguous()
    choices = followed[:, None].expand(-1, n_slices).contiguous()
    state = simulator.start(n_initial)
    for step in range(n_steps):
        given = None if replay is None else replay[step]
        columns = recording.choose(state, draws[step], given)
        branches = simulator.branch(state, columns)
        recording.reward(branches.score - state.score[:, None])
        state = branches.follow(choices[step])
    return recording.finish(state)


@final
class Greedy(GradientEstimator):
    """Trains a policy with the greedy estimator."""

    settings = GreedyTraining
    is_pure = True

    def draw(self, n_slices: int, n_batches: int, generator: GeneratorFor) -> Draws:
        q, n_steps = n_draws(self.config), self.config.acquisition.horizon
        followed = torch.randint(q, (n_batches, n_steps), generator=generator("followed"))
        uniforms = action_draws(self.config, n_slices, generator)
        return Draws({"uniforms": uniforms}, {"followed": followed})

    def update(self, batch: Batch) -> Float[Tensor, ""]:
        return greedy_gradients(
            self.view,
            self.simulator(batch.slices),
            n_initial=self.config.acquisition.start,
            uniforms=batch.draws["uniforms"],
            followed=batch.draws["followed"],
        ).final_score
