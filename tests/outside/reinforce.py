"""REINFORCE with a running baseline: an estimator that the package does not have."""

from dataclasses import dataclass

import torch

from kscout.training import Draws, GradientEstimator, GradientTraining, Recording, n_draws


@dataclass(frozen=True)
class ReinforceTraining(GradientTraining):
    memory: float = 0.9


class Reinforce(GradientEstimator):
    settings = ReinforceTraining

    def __init__(self, trainees, slices, reconstructor):
        super().__init__(trainees, slices, reconstructor)
        self.baseline = torch.zeros(len(trainees), device=self.device)

    def draw(self, config, n_slices, n_batches, generator):
        shape = (n_slices, config.acquisition.horizon, n_draws(config))
        return Draws([torch.rand(shape, generator=generator("actions"))])

    def gradients(self, batch):
        (uniforms,), n_policies = batch.per_slice, len(batch.policies)
        n_slices, horizon, q = uniforms.shape
        baseline = self.baseline[batch.first : batch.first + n_policies]

        def weigh(rewards):
            returns = rewards.flip(0).cumsum(0).flip(0).unflatten(1, (n_policies, -1))
            return -(returns - baseline[:, None, None]).flatten(1, 2) * n_policies / (n_slices * q)

        recording = Recording(batch.policies, batch.simulator, weigh)
        state = batch.simulator.start(batch.configs[0].acquisition.n_initial, n_trajectories=q)
        for step in range(horizon):
            columns = recording.choose(state, uniforms[:, step].reshape(-1, 1))
            after = batch.simulator.acquire(state, columns[:, 0])
            recording.reward((after.score - state.score).view(n_slices, q))
            state = after
        found = recording.finish(state)
        total = found.rewards.sum(dim=0).view(n_policies, -1).mean(dim=1)
        baseline.lerp_(total, 1 - batch.configs[0].training.memory)
        return found.final_score

    def state(self, number):
        return {"baseline": float(self.baseline[number])}

    def restore(self, number, state):
        self.baseline[number] = state.get("baseline", 0.0)
