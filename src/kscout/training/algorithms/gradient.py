"""Estimators of a policy's gradient: one optimizer step for each batch of slices.

All random numbers of an epoch are drawn before it, with seeds for purpose, epoch and slice, and
are transferred to the device together. On CUDA a whole batch, from the first column to the last,
is one graph.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import ClassVar, final

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from kscout.acquisition.episode import Simulator
from kscout.acquisition.plan import training_plan
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
from kscout.kernels.graphs import BatchGradients, GraphPool
from kscout.names import is_outside, metric_word
from kscout.randomness import keyed_generator
from kscout.training.algorithm import EpochResult, Estimator, optimizer_step

GeneratorFor = Callable[[str], torch.Generator]
"""Maps the purpose of random numbers ("actions") to their generator."""
Tensors = Mapping[str, Tensor]
"""Tensors by name."""
MOST_NORM = 1.0
"""Largest norm of the gradient of a batch, where gradients are clipped."""


@final
@dataclass(frozen=True)
class Draws:
    """Random numbers of one epoch by name, besides the order of the slices."""

    per_slice: Mapping[str, Shaped[Tensor, "slice *_"]]
    per_batch: Mapping[str, Shaped[Tensor, "batch *_"]] = field(default_factory=dict)


@final
@dataclass(frozen=True)
class EpochDraws:
    """All random numbers of one epoch, on the device."""

    order: Int[Tensor, " slice"]
    """The shuffled slices; batches are consecutive parts."""
    per_slice: Tensors
    """In that order."""
    per_batch: Tensors


@final
@dataclass(frozen=True)
class Batch:
    """The input of an update: slices, and the random numbers for them by name."""

    slices: SliceBatch
    draws: Tensors

    def tensors(self) -> list[Tensor]:
        """Return all tensors in a fixed order, as a CUDA graph needs them."""
        return [*self.slices.tensors(), *self.draws.values()]

    def with_tensors(self, tensors: Sequence[Tensor]) -> "Batch":
        """Return a batch with other tensors in the same order."""
        n = len(fields(SliceBatch))
        return Batch(SliceBatch(*tensors[:n]), dict(zip(self.draws, tensors[n:], strict=True)))


class GradientEstimator(Estimator, ABC):
    """Takes one optimizer step per batch of slices.

    A subclass implements `draw` and `update`, usually with a `Recording`.
    """

    settings: ClassVar[type[PolicyTraining]] = GradientTraining
    is_pure: ClassVar[bool] = False
    """Whether `update` changes nothing but the policy's gradients, never waits for the device and
    depends only on the batch: on CUDA it then runs as one graph."""

    @abstractmethod
    def draw(self, n_slices: int, n_batches: int, generator: GeneratorFor) -> Draws:
        """Draw the random numbers of an epoch, on the CPU."""

    @abstractmethod
    def update(self, batch: Batch) -> Float[Tensor, ""]:
        """Add the gradients of the loss to the policy's own; return the mean final score."""

    def augmented(self, batch: SliceBatch, draws: Tensors) -> SliceBatch:
        """Return the slices that are acquired; the random numbers decide their augmentation."""
        return batch

    @property
    def n_tried(self) -> float:
        """Columns tried per slice and step, on average over the steps."""
        return self.training.n_tried

    def step_size(self, epoch: int, step: int) -> float:
        """Return the learning rate of an optimizer step, counted from 0 within its epoch."""
        return learning_rate_at(self.training, epoch)

    def limit_gradients(self) -> None:
        """Change the gradients of a batch before the optimizer step: not at all."""

    def after_step(self, drawn: EpochDraws, step: int) -> None:
        """Continue after the optimizer step of a batch: nothing if weights are all that changes."""

    @final
    @property
    def n_reconstructions(self) -> int:
        """Candidates scored in one epoch, repeated draws counted each time."""
        per_slice = 1 + self.config.acquisition.horizon * self.n_tried
        return round(len(self.slices) * per_slice)

    @final
    def chooser(self) -> Policy:
        """Return the policy that chose columns in training, with its present weights."""
        if self.evaluated() is not self.learner.module:
            return self.evaluated()
        self.view.refresh()
        return self.view.chooser

    @final
    def simulator(self, slices: SliceBatch) -> Simulator:
        """Return a simulator of slices with the reconstruction, protocol and metric of the run."""
        return training_plan(self.config).simulator(slices, self.reconstructor)

    @final
    def begin_epoch(self, epoch: int) -> None:
        """Draw the random numbers of the epoch."""
        self.drawn = self.draws_of(epoch)
        self.learner.begin(epoch)

    @final
    def take_step(self, epoch: int, step: int) -> None:
        """Take one optimizer step, on one batch of slices."""
        score = self.batch_gradients(self.drawn, step)
        optimizer_step(self.learner.optimizer, self.step_size(epoch, step))
        self.add(score=score * len(self.batch_order(self.drawn, step)))
        self.means = {metric_word(self.training.metric): score}
        self.after_step(self.drawn, step)

    @final
    def end_epoch(self, epoch: int) -> EpochResult:
        """Return the mean final score over the slices."""
        n_slices, config = len(self.slices), self.config
        n_decisions = n_slices * config.acquisition.horizon
        facts = {"n_reconstructions": self.n_reconstructions, "n_decisions": n_decisions}
        name = f"train_{metric_word(config.training.metric)}"
        return EpochResult({name: float(self.sums["score"] / n_slices)}, facts)

    @final
    def draws_of(self, epoch: int) -> EpochDraws:
        """Draw the random numbers of an epoch and transfer them to the device."""

        def generator(purpose: str) -> torch.Generator:
            return keyed_generator(purpose, self.training.seed, epoch)

        n_slices = len(self.slices)
        order = torch.randperm(n_slices, generator=generator("order"))
        draws = self.draw(n_slices, self.n_steps, generator)

        def on_device(x: Tensor) -> Tensor:
            return x.to(self.device, non_blocking=True)

        return EpochDraws(
            order.to(self.slices.index_device),
            {name: on_device(x[order]) for name, x in draws.per_slice.items()},
            {name: on_device(x) for name, x in draws.per_batch.items()},
        )

    @final
    def batch_order(self, drawn: EpochDraws, step: int) -> Int[Tensor, " slice"]:
        """Return the slices of a batch."""
        return drawn.order[self._part(step)]

    @final
    def batch_gradients(self, drawn: EpochDraws, step: int) -> Float[Tensor, ""]:
        """Leave the gradients of one batch in the policy; return the mean final score."""
        # Outside of the graph, so that slices may be read from a file.
        slices = self.slices.batch(self.batch_order(drawn, step))
        draws = {name: x[self._part(step)] for name, x in drawn.per_slice.items()}
        draws |= {name: x[step] for name, x in drawn.per_batch.items()}

        def updated(batch: Batch) -> Float[Tensor, ""]:
            return self.update(replace(batch, slices=self.augmented(batch.slices, batch.draws)))

        score = self.run_update("batch", updated, Batch(slices, draws))
        self.limit_gradients()
        return score

    @cached_property
    def graphs(self) -> dict[tuple[str, torch.Size], BatchGradients]:
        """CUDA graphs by what they compute and the shape of the slices."""
        return {}

    @cached_property
    def pool(self) -> GraphPool:
        """Memory of all graphs, of which one runs at a time."""
        return GraphPool(self.device)

    @final
    def run_update(
        self, what: str, update: Callable[[Batch], Float[Tensor, ""]], batch: Batch
    ) -> Float[Tensor, ""]:
        """Leave the gradients of an update in the policy, on CUDA by a graph where possible."""
        parameters = list(self.learner.module.parameters())

        def backward(tensors: Sequence[Tensor]) -> Float[Tensor, ""]:
            self.view.refresh()
            return update(batch.with_tensors(tensors))

        # A metric from outside may wait for the device, which no graph can.
        is_plain = not self.is_pure or is_outside(self.training.metric)
        is_plain |= self.reconstructor.waits_for_device
        if is_plain or self.device.type != "cuda":
            return BatchGradients(backward, parameters)(batch.tensors())
        key = (what, batch.slices.kspace.shape)
        if key not in self.graphs:
            self.graphs[key] = BatchGradients(backward, parameters, batch.tensors(), self.pool)
        return self.graphs[key](batch.tensors())

    def _part(self, step: int) -> slice:
        size = self.training.batch_size
        return slice(step * size, (step + 1) * size)


class WarmedEstimator(GradientEstimator, ABC):
    """Takes steps whose size rises at first and falls to zero, along clipped gradients."""

    training: DenseTraining | PosteriorTraining

    def step_size(self, epoch: int, step: int) -> float:
        """Return a learning rate that rises over `training.n_warm` steps, then falls to zero."""
        training = self.training
        n_done, n_steps = (epoch - 1) * self.n_steps + step, training.n_epochs * self.n_steps
        return warmed_rate(learning_rate_at(training, epoch), n_done, n_steps, training.n_warm)

    def rate(self, epoch: int) -> float:
        """Return the learning rate at the end of an epoch."""
        return self.step_size(epoch, self.n_steps - 1)

    def limit_gradients(self) -> None:
        torch.nn.utils.clip_grad_norm_(self.learner.module.parameters(), MOST_NORM)


def n_draws(config: PolicyConfig) -> int:
    """Return q: columns drawn per state, or trajectories per slice."""
    assert isinstance(config.training, GradientTraining)
    return config.training.n_trajectories


def action_draws(
    config: PolicyConfig, n_slices: int, generator: GeneratorFor
) -> Float[Tensor, "slice step q"]:
    """Draw the numbers that decide every column."""
    shape = (n_slices, config.acquisition.horizon, n_draws(config))
    return torch.rand(*shape, generator=generator("actions"))
