"""One pass of policies over the training slices: draws, gradients and optimizer steps.

Every draw of an epoch is made before it, keyed by seed, purpose, epoch and slice, and moves to the
device in one go. On CUDA a whole batch, from the first column to the last, is one graph, and all
policies' images are reconstructed together; on a CPU the policies take turns.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kscout.acquisition.episode import Simulator
from kscout.config import PolicyConfig, learning_rate_at
from kscout.core import Policy, Reconstructor
from kscout.data.slices import SliceSet
from kscout.errors import ConfigError, RunError
from kscout.policies.conv_fused import HalfPrecisionConvPolicy
from kscout.policies.conv_fused import can_fuse_policy as fuses
from kscout.policies.conv_kept import KeptConvPolicy, Room, can_keep_policy
from kscout.randomness import keyed_generator
from kscout.runs import Progress
from kscout.training.distributed import (
    average_gradients,
    n_processes,
    share,
    sum_over_processes,
)
from kscout.training.gradients import EagerGradients, GraphedGradients
from kscout.training.mixed_precision import MixedPrecision
from kscout.training.policy_gradient import greedy_gradients, non_greedy_gradients

OnStep = Callable[[Progress], None]


def _in_half_precision(policy: Policy, compiles: bool) -> Policy:
    """Return a view of a policy whose passes are faster on CUDA."""
    if fuses(policy):
        return HalfPrecisionConvPolicy(policy)
    return MixedPrecision(policy, compiles=compiles)


def _kept(policy: Policy, room: Room) -> Policy:
    """Return a view of a policy that keeps its features on a CPU, where it can."""
    return KeptConvPolicy(policy, room) if can_keep_policy(policy) else policy


class Draws(NamedTuple):
    """What decides one policy's epoch."""

    order: Int[Tensor, " slice"]
    """The slices, shuffled; batches are consecutive parts."""
    uniforms: Float[Tensor, "slice step q"]
    """Numbers in [0, 1) that decide the columns drawn for each slice."""
    followed: Int[Tensor, "batch step"]
    """Which of the q columns the greedy estimator goes on with."""


def draw_epoch(config: PolicyConfig, n_slices: int, epoch: int) -> Draws:
    """Make one policy's draws for an epoch, on the CPU."""
    training, horizon = config.training, config.acquisition.horizon
    key = (training.seed, epoch)
    n_batches = math.ceil(n_slices / training.batch_size)
    q = training.n_trajectories
    return Draws(
        torch.randperm(n_slices, generator=keyed_generator("order", *key)),
        torch.rand(n_slices, horizon, q, generator=keyed_generator("actions", *key)),
        torch.randint(q, (n_batches, horizon), generator=keyed_generator("followed", *key)),
    )


@final
class Lockstep:
    """Policies that differ in seed and gamma alone, trained over the same slices together."""

    def __init__(
        self,
        policies: Sequence[Policy],
        optimizers: Sequence[torch.optim.Optimizer],
        configs: Sequence[PolicyConfig],
        slices: SliceSet,
        reconstructor: Reconstructor,
    ) -> None:
        self.policies, self.optimizers, self.configs = policies, optimizers, configs
        precision = configs[0].training.precision
        is_fast = slices.device.type == "cuda" and precision != "fp32"
        compiles = configs[0].training.compile
        room = Room()
        self.learned = [
            _in_half_precision(x, compiles) if is_fast else _kept(x, room) for x in policies
        ]
        self.slices, self.reconstructor = slices, reconstructor
        training = configs[0].training
        if training.batch_size < n_processes():
            raise ConfigError(
                f"a batch of {training.batch_size} cannot be shared by {n_processes()} processes; "
                "raise training.batch_size or start fewer"
            )
        self.n_steps = math.ceil(len(slices) / training.batch_size)
        self.parameters = [p for policy in policies for p in policy.parameters()]
        self.eager = EagerGradients(self._backward, self.parameters)
        self.graphs: dict[torch.Size, GraphedGradients] = {}

    @property
    def n_reconstructions(self) -> int:
        """Candidates scored in one pass, repeated draws counted each time."""
        training, setting = self.configs[0].training, self.configs[0].acquisition
        per_slice = 1 + setting.horizon * training.n_trajectories
        return len(self.policies) * len(self.slices) * per_slice

    def pass_over_slices(self, epoch: int, on_step: OnStep) -> list[float]:
        """Train for one epoch; return each policy's mean SSIM at the end of its acquisitions."""
        slices, training = self.slices, self.configs[0].training
        for optimizer, config in zip(self.optimizers, self.configs, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate_at(config.training, epoch)
        made = [draw_epoch(config, len(slices), epoch) for config in self.configs]
        draws = [Draws(*(x.to(slices.device, non_blocking=True) for x in own)) for own in made]
        total = torch.zeros(len(self.policies), device=slices.device)
        for policy in self.policies:
            policy.train()
        for step in range(self.n_steps):
            begin = step * training.batch_size
            total += self._step(draws, step, slice(begin, begin + training.batch_size))
            on_step(Progress(epoch, training.n_epochs, step + 1, self.n_steps))
        # Scores that are not numbers draw columns on CUDA all the same; weights show them later.
        if not torch.stack([p.isfinite().all() for p in self.parameters]).all():
            raise RunError(
                f"the weights of epoch {epoch} are not finite; lower the learning rate, or see "
                "that the policy's scores and their gradients are finite"
            )
        mean = sum_over_processes(total) / len(slices)
        return [float(value) for value in mean.cpu()]

    def choosing_policies(self) -> list[Policy]:
        """Return the policies as they are now, in the precision in which they chose columns."""
        self._refresh()
        pairs = zip(self.learned, self.policies, strict=True)
        return [a if isinstance(a, HalfPrecisionConvPolicy) else b for a, b in pairs]

    def _refresh(self) -> None:
        for policy in self.learned:
            if isinstance(policy, HalfPrecisionConvPolicy):
                policy.refresh()

    def _step(self, draws: Sequence[Draws], step: int, batch: slice) -> Float[Tensor, " policy"]:
        """Take one optimizer step; return summed final scores of this process's share."""
        whole = [own.order[batch] for own in draws]
        mine = [share(index) for index in whole]
        n_mine, n_whole = len(mine[0]), len(whole[0])
        scores = torch.zeros(len(draws), device=self.slices.device)
        if n_mine:
            uniforms = [own.uniforms[index] for own, index in zip(draws, mine, strict=True)]
            followed = torch.stack([own.followed[step] for own in draws], dim=-1)
            inputs = [torch.cat(mine), torch.cat(uniforms), followed]
            scores = self.gradients(inputs)(inputs) * n_mine
        else:
            for parameter in self.parameters:
                parameter.grad = None
        average_gradients(self.parameters, n_mine / n_whole)
        for optimizer in self.optimizers:
            optimizer.step()
        return scores

    def gradients(self, inputs: list[Tensor]) -> EagerGradients | GraphedGradients:
        """Return how to run such a batch: on CUDA as a graph, made when its size is first met."""
        if self.slices.device.type != "cuda":
            return self.eager
        if inputs[0].shape not in self.graphs:
            graph = GraphedGradients(self._backward, self.parameters, inputs)
            self.graphs[inputs[0].shape] = graph
        return self.graphs[inputs[0].shape]

    def _backward(self, inputs: Sequence[Tensor]) -> Float[Tensor, " policy"]:
        """Leave the gradients of a batch in the policies; return mean final scores."""
        n_policies = len(self.policies)
        if self.slices.device.type == "cuda":
            return self._estimate(slice(n_policies), inputs)
        # A CPU gains nothing by more images at once, and its caches hold what one policy needs.
        index, uniforms, followed = inputs
        parts = zip(
            index.chunk(n_policies), uniforms.chunk(n_policies), followed.split(1, -1), strict=True
        )
        scores = [self._estimate(slice(at, at + 1), part) for at, part in enumerate(parts)]
        return torch.cat(scores)

    def _estimate(self, own: slice, inputs: Sequence[Tensor]) -> Float[Tensor, " policy"]:
        """Do so for some of the policies and their part of the batch."""
        index, uniforms, followed = inputs
        training, setting = self.configs[0].training, self.configs[0].acquisition
        batch = self.slices.batch(index)
        self._refresh()
        simulator = Simulator(batch, self.reconstructor, protocol=training.protocol)
        if training.method == "greedy":
            return greedy_gradients(
                self.learned[own],
                simulator,
                n_initial=setting.n_initial,
                uniforms=uniforms,
                followed=followed,
            ).final_score
        return non_greedy_gradients(
            self.learned[own],
            simulator,
            n_initial=setting.n_initial,
            uniforms=uniforms,
            gammas=[config.training.gamma for config in self.configs[own]],
        ).final_score
