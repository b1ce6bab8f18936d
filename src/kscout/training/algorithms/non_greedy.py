"""The non-greedy estimator: the return of a column is its own gain and all later ones.

A discount gamma in [0, 1] reduces later gains; the paper's NGreedy has none, gamma = 1.
Paper: arXiv 2010.16262, section 4, pseudocode in appendix A.5.
"""

from typing import final

from jaxtyping import Float, Int
from torch import Tensor

from kscout.acquisition.episode import Simulator
from kscout.config import NonGreedyTraining
from kscout.physics.sampling import Initial
from kscout.policies.views import View
from kscout.training.algorithms.gradient import (
    Batch,
    Draws,
    GeneratorFor,
    GradientEstimator,
    action_draws,
)
from kscout.training.algorithms.recording import KEPT_BYTES, Estimate, Recording
from kscout.training.policy_gradient import returns_to_go

_KEPT_BYTES = {**KEPT_BYTES, "cpu": 0}
"""Features of q trajectories would soon fill a CPU's share."""


def non_greedy_gradients(
    view: View,
    simulator: Simulator,
    *,
    n_initial: Initial,
    uniforms: Float[Tensor, "slice step q"],
    gamma: float,
    replay: Int[Tensor, "step slice q"] | None = None,
) -> Estimate:
    """Add the gradients of the non-greedy loss to the policy's own.

    The q columns of the first step start q trajectories, each of which then draws one a step:
    `loss = -1 / (q - 1) sum_i sum_t log pi(a_it | s_it) R_it`, as a mean over slices, with
    `R_it = sum_{t' >= t} gamma^(t' - t) (r_it' - mean_j r_jt')`.

    `uniforms` in [0, 1) decide the draws; `replay` has columns to take instead.
    """
    n_slices, n_steps, q = uniforms.shape

    def weigh(rewards: Float[Tensor, "step slice q"]) -> Float[Tensor, "step slice q"]:
        return -returns_to_go(rewards, gamma) / ((q - 1) * n_slices)

    recording = Recording(
        view, simulator, weigh, n_states=n_slices * (1 + q * (n_steps - 1)), kept_bytes=_KEPT_BYTES
    )
    draws = uniforms.transpose(0, 1).contiguous()
    state = simulator.start(n_initial)
    for step in range(n_steps):
        # One state per slice draws q columns at the first step; later q states draw one each.
        given = None if replay is None else replay[step].reshape(len(state), -1)
        columns = recording.choose(state, draws[step].reshape(len(state), -1), given)
        before = state.score.view(n_slices, -1)
        state = simulator.branch(state, columns).every()
        recording.reward(state.score.view(n_slices, q) - before)
    return recording.finish(state)


@final
class NonGreedy(GradientEstimator):
    """Trains a policy with the non-greedy estimator."""

    settings = NonGreedyTraining
    training: NonGreedyTraining
    is_pure = True

    def draw(self, n_slices: int, n_batches: int, generator: GeneratorFor) -> Draws:
        return Draws({"uniforms": action_draws(self.config, n_slices, generator)})

    def update(self, batch: Batch) -> Float[Tensor, ""]:
        return non_greedy_gradients(
            self.view,
            self.simulator(batch.slices),
            n_initial=self.config.acquisition.start,
            uniforms=batch.draws["uniforms"],
            gamma=self.training.gamma,
        ).final_score
