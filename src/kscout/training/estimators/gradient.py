"""Estimators of a policy's gradient: draw numbers, run a batch, take an optimizer step.

Every draw of an epoch is made before it, keyed by seed, purpose, epoch and slice, and moves to the
device in one go. Each policy sees its own slices in its own order and makes its own draws, exactly
as it would alone. On CUDA all policies' images are reconstructed together, and a whole batch, from
the first column to the last, is one graph; on a CPU the policies take turns.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, partial
from typing import ClassVar, NamedTuple, final

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from kscout.acquisition.episode import Simulator
from kscout.acquisition.graphs import Pool
from kscout.config import (
    DenseTraining,
    GradientTraining,
    PolicyConfig,
    PolicyTraining,
    PosteriorTraining,
    learning_rate_at,
    warmed_rate,
)
from kscout.core import Policy, SliceBatch
from kscout.names import is_outside, metric_word
from kscout.policies.views import View
from kscout.randomness import keyed_generator
from kscout.training.distributed import average_gradients, n_processes, share, sum_over_processes
from kscout.training.estimators import EpochResult, Estimator
from kscout.training.gradients import Backward, EagerGradients, GraphedGradients

GeneratorFor = Callable[[str], torch.Generator]
"""From what numbers are for ("actions") to the generator that draws them."""


class Draws(NamedTuple):
    """Numbers that decide one policy's epoch, besides the order of its slices."""

    per_slice: Sequence[Shaped[Tensor, "slice *_"]]
    per_batch: Sequence[Shaped[Tensor, "batch *_"]] = ()

    def to(self, device: torch.device) -> "Draws":
        """Return the same numbers on another device."""
        return Draws(*([x.to(device, non_blocking=True) for x in part] for part in self))


class Drawn(NamedTuple):
    """All that decides one policy's epoch."""

    order: Int[Tensor, " slice"]
    """The slices, shuffled; batches are consecutive parts."""
    draws: Draws
    """Those of slices lie in that order, on the device."""


@final
@dataclass(frozen=True)
class Batch:
    """What the gradients of one batch are computed from."""

    policies: Sequence[View]
    """One, or several in lockstep: the slices are divided among them in equal parts."""
    configs: Sequence[PolicyConfig]
    """Of each policy."""
    simulator: Simulator
    per_slice: Sequence[Shaped[Tensor, "slice *_"]]
    """As drawn, for the slices of the simulator."""
    per_batch: Sequence[Shaped[Tensor, "*_ policy"]]
    """As drawn, with the policies last."""
    first: int = 0
    """Number of the first policy among the estimator's trainees."""


class GradientEstimator(Estimator, ABC):
    """Takes one optimizer step per batch of slices.

    A new one implements `draw` and `gradients`, mostly by a `Recording`.
    """

    settings: ClassVar[type[PolicyTraining]] = GradientTraining
    is_pure: ClassVar[bool] = False
    """Whether `gradients` changes nothing but the policies' gradients, never waits for the device
    and depends on nothing but the batch: on CUDA it then runs as one graph."""

    @abstractmethod
    def draw(
        self, config: PolicyConfig, n_slices: int, n_batches: int, generator: GeneratorFor
    ) -> Draws:
        """Draw the numbers that decide one policy's epoch, on the CPU."""

    @abstractmethod
    def gradients(self, batch: Batch) -> Float[Tensor, " policy"]:
        """Add the loss's gradients to the policies' own; return mean final SSIM of each policy."""

    def sized(self, batch: SliceBatch, step: int) -> SliceBatch:
        """Return the slices of a step, which may have another matrix than those that were read."""
        return batch

    def varied(self, batch: SliceBatch, per_slice: Sequence[Tensor]) -> SliceBatch:
        """Return the slices that are acquired, by numbers drawn per slice: those that were read."""
        return batch

    def n_tried(self, config: PolicyConfig) -> float:
        """Return how many columns are tried per slice and step, on average over the steps."""
        return n_draws(config)

    @property
    def share_acquired(self) -> float:
        """Return how much of its budget an acquisition uses, on average over the batches."""
        return 1.0

    def step_size(self, training: PolicyTraining, epoch: int, step: int) -> float:
        """Return the learning rate of an optimizer step, counted from 0 within its epoch."""
        return learning_rate_at(training, epoch)

    def averaged(self) -> None:
        """Do what gradients of a whole batch need before they are stepped along: nothing."""

    def step_taken(self, drawn: Sequence[Drawn], step: int) -> None:
        """Do what follows the optimizer step of a batch: nothing, where weights are all there is.

        Args:
            drawn: of each policy, for the whole epoch.
            step: number of the batch in its epoch.
        """

    @final
    @property
    def n_reconstructions(self) -> int:
        """Candidates scored in one epoch, repeated draws counted each time."""
        config = self.trainees[0].config
        per_slice = 1 + config.acquisition.n_steps * self.share_acquired * self.n_tried(config)
        return round(len(self.trainees) * len(self.slices) * per_slice)

    @final
    def chooser(self, number: int) -> Policy:
        """Return a policy as it chose columns while it learned, with its present weights."""
        view, trainee = self.views[number], self.trainees[number]
        if self.evaluated(number) is not trainee.module:
            return self.evaluated(number)
        view.refresh()
        return view.chooser

    @final
    def begin_epoch(self, epoch: int) -> None:
        """Make the draws of all policies."""
        self.drawn = [self.draws_of(trainee.config, epoch) for trainee in self.trainees]
        for trainee in self.trainees:
            trainee.begin(epoch)

    @final
    def take_step(self, epoch: int, step: int) -> None:
        """Take one optimizer step of each policy, on a batch of its own."""
        scores = self.batch_gradients(self.drawn, step)
        for number, trainee in enumerate(self.trainees):
            for group in trainee.optimizer.param_groups:
                group["lr"] = self.step_size(trainee.config.training, epoch, step)
            trainee.optimizer.step()
            self.add(number, score=scores[number])
        training, n_all = self.trainees[0].config.training, len(self.slices)
        n_slices = min(training.batch_size, n_all - step * training.batch_size)
        score = scores[0] * n_processes() / n_slices
        self.means = {metric_word(training.metric): score}
        self.step_taken(self.drawn, step)

    @final
    def end_epoch(self, epoch: int) -> list[EpochResult]:
        """Return the mean final score of each policy."""
        config, total = self.trainees[0].config, torch.stack([x["score"] for x in self.sums])
        means = (sum_over_processes(total) / len(self.slices)).tolist()
        n_decisions = round(len(self.slices) * config.acquisition.horizon * self.share_acquired)
        facts = {"n_reconstructions": self.n_reconstructions, "n_decisions": n_decisions}
        name = f"train_{metric_word(config.training.metric)}"
        return [EpochResult({name: mean}, facts) for mean in means]

    @final
    def draws_of(self, config: PolicyConfig, epoch: int) -> Drawn:
        """Make a policy's draws for an epoch."""
        generator = partial(_keyed, config.training.seed, epoch)
        n_slices = len(self.slices)
        order = torch.randperm(n_slices, generator=generator("order"))
        draws = self.draw(config, n_slices, self.n_steps, generator)
        in_order = Draws([x[order] for x in draws.per_slice], draws.per_batch)
        return Drawn(order.to(self.slices.index_device), in_order.to(self.device))

    @final
    def batch_gradients(self, drawn: Sequence[Drawn], step: int) -> Float[Tensor, " policy"]:
        """Leave the gradients of one batch in the policies, averaged over processes.

        Args:
            drawn: of each policy, for the whole epoch.
            step: number of the batch in its epoch.

        Returns:
            Final scores, summed over this process's share of the batch.
        """
        size = self.trainees[0].config.training.batch_size
        whole = slice(step * size, (step + 1) * size)
        n_whole, n_mine = len(drawn[0].order[whole]), len(share(drawn[0].order[whole]))
        scores = torch.zeros(len(drawn), device=self.device)
        if n_mine:
            found = [self._run(group, drawn[group], whole, step) for group in self.groups]
            scores = torch.cat(found) * n_mine
        else:
            for trainee in self.trainees:
                trainee.optimizer.zero_grad()
        average_gradients(self.parameters(slice(None)), n_mine / n_whole)
        self.averaged()
        return scores

    @final
    def parameters(self, group: slice) -> list[torch.nn.Parameter]:
        """Return the parameters of some of the policies."""
        return [p for trainee in self.trainees[group] for p in trainee.module.parameters()]

    @cached_property
    def graphs(self) -> dict[tuple[str, torch.Size], GraphedGradients]:
        """Batches as CUDA graphs, made when a size is first met."""
        return {}

    @cached_property
    def pool(self) -> Pool:
        """Memory of all graphs: one runs at a time, and images of each size need a graph."""
        return Pool(self.device)

    @cached_property
    def groups(self) -> list[slice]:
        """Return the policies whose images are reconstructed together."""
        n_policies = len(self.trainees)
        # A CPU gains nothing by more images at once, and its caches hold what one policy needs.
        n_together = 1 if self.device.type == "cpu" else n_policies
        return [slice(at, at + n_together) for at in range(0, n_policies, n_together)]

    def _run(
        self, group: slice, drawn: Sequence[Drawn], whole: slice, step: int
    ) -> Float[Tensor, " policy"]:
        """Leave a batch's gradients in some of the policies; return mean final scores."""
        # Outside of the graph, so that slices may be read from a file.
        batch = self.slices.batch(torch.cat([share(own.order[whole]) for own in drawn]))
        batch = self.sized(batch, step)
        per_slice = [
            torch.cat([share(x[whole]) for x in numbers])
            for numbers in zip(*(own.draws.per_slice for own in drawn), strict=True)
        ]
        per_batch = [
            torch.stack([x[step] for x in numbers], dim=-1)
            for numbers in zip(*(own.draws.per_batch for own in drawn), strict=True)
        ]
        inputs = [*batch.tensors(), *per_slice, *per_batch]
        backward = partial(self._backward, group, len(per_slice))
        return self.passed("batch", backward, group, inputs)

    @final
    def passed(
        self, what: str, backward: Backward, group: slice, inputs: Sequence[Tensor]
    ) -> Float[Tensor, " policy"]:
        """Leave gradients in some of the policies, on CUDA by a graph wherever one can hold them.

        Args:
            what: tells apart what is computed from inputs of one size.
            backward: adds the gradients.
            group: the policies.
            inputs: what they are computed from, k-space first.
        """
        config = self.trainees[0].config
        # A metric from outside may wait for the device, which no graph can; groups of columns have
        # no kernel whose work a graph would hold.
        is_plain = not self.is_pure or is_outside(config.training.metric)
        is_plain |= self.reconstructor.waits_for_device or config.acquisition.group > 1
        if is_plain or self.device.type != "cuda":
            return EagerGradients(backward, self.parameters(group))(inputs)
        key = (what, inputs[0].shape)
        if key not in self.graphs:
            parameters = self.parameters(group)
            self.graphs[key] = GraphedGradients(backward, parameters, inputs, self.pool)
        return self.graphs[key](inputs)

    def _backward(
        self, group: slice, n_per_slice: int, inputs: Sequence[Tensor]
    ) -> Float[Tensor, " policy"]:
        """Add the gradients of a batch that is given as plain tensors, as a graph needs it."""
        n_data = len(fields(SliceBatch))
        data, per_slice = inputs[:n_data], inputs[n_data : n_data + n_per_slice]
        configs = [trainee.config for trainee in self.trainees[group]]
        views = self.views[group]
        for view in views:
            view.refresh()
        training = configs[0].training
        simulator = Simulator(
            self.varied(SliceBatch(*data), per_slice),
            self.reconstructor,
            protocol=training.protocol,
            metric=training.metric,
        )
        rest = inputs[n_data + n_per_slice :]
        return self.gradients(Batch(views, configs, simulator, per_slice, rest, group.start))


class WarmedEstimator(GradientEstimator, ABC):
    """One whose step size rises over the first steps and falls to zero, with clipped gradients."""

    def step_size(self, training: PolicyTraining, epoch: int, step: int) -> float:
        """Rise over `training.n_warm` steps, then fall to zero."""
        assert isinstance(training, DenseTraining | PosteriorTraining)
        n_done, n_steps = (epoch - 1) * self.n_steps + step, training.n_epochs * self.n_steps
        return warmed_rate(learning_rate_at(training, epoch), n_done, n_steps, training.n_warm)

    def rate(self, number: int, epoch: int) -> float:
        """Return the step size at the end of an epoch."""
        return self.step_size(self.trainees[number].config.training, epoch, self.n_steps - 1)

    def averaged(self) -> None:
        """Clip the gradients, which are those of all processes by now."""
        for trainee in self.trainees:
            training = trainee.config.training
            assert isinstance(training, DenseTraining | PosteriorTraining)
            torch.nn.utils.clip_grad_norm_(trainee.module.parameters(), training.clip)


def n_draws(config: PolicyConfig) -> int:
    """Return q: columns drawn per state, or trajectories per slice."""
    assert isinstance(config.training, GradientTraining)
    return config.training.n_trajectories


def action_draws(
    config: PolicyConfig, n_slices: int, generator: GeneratorFor
) -> Float[Tensor, "slice step q *member"]:
    """Draw the numbers that decide every column; where a step takes several, one for each."""
    setting = config.acquisition
    members = () if setting.group == 1 else (setting.group,)
    shape = (n_slices, setting.n_steps, n_draws(config), *members)
    return torch.rand(*shape, generator=generator("actions"))


def _keyed(seed: int, epoch: int, purpose: str) -> torch.Generator:
    return keyed_generator(purpose, seed, epoch)
