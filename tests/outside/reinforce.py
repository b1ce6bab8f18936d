"""REINFORCE with a running baseline: an estimator that the package does not have."""

from dataclasses import dataclass

import torch

from kscout.training import Draws, GradientEstimator, GradientTraining, Recording, n_draws


@dataclass(frozen=True)
class ReinforceTraining(GradientTraining):
    memory: float = 0.9


class Reinforce(GradientEstimator):
    settings = ReinforceTraining

    def __init__(self, learner, slices, reconstructor):
        super().__init__(learner, slices, reconstructor)
        self.baseline = torch.zeros((), device=self.device)

    def draw(self, n_slices, n_batches, generator):
        shape = (n_slices, self.config.acquisition.horizon, n_draws(self.config))
        return Draws({"uniforms": torch.rand(shape, generator=generator("actions"))})

    def update(self, batch):
        simulator, uniforms = self.simulator(batch.slices), batch.draws["uniforms"]
        n_slices, horizon, q = uniforms.shape

        def weigh(rewards):
            returns = rewards.flip(0).cumsum(0).flip(0)
            return -(returns - self.baseline) / (n_slices * q)

        recording = Recording(self.view, simulator, weigh)
        state = simulator.start(self.config.acquisition.n_initial, n_trajectories=q)
        for step in range(horizon):
            columns = recording.choose(state, uniforms[:, step].reshape(-1, 1))
            after = simulator.acquire(state, columns[:, 0])
            recording.reward((after.score - state.score).view(n_slices, q))
            state = after
        estimate = recording.finish(state)
        total = estimate.rewards.sum(dim=0).mean()
        self.baseline.lerp_(total, 1 - self.config.training.memory)
        return estimate.final_score

    def state(self):
        return {"baseline": float(self.baseline)}

    def restore(self, state):
        self.baseline.fill_(state.get("baseline", 0.0))
