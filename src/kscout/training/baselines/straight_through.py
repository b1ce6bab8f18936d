"""Straight-through gradients: a policy learns as if each draw were its probability.

In a step a column is drawn, y = onehot(argmax(s + g)) with scores s and Gumbel noise g, so that a
column has the chance that the policy gives it. Gradients are those of softmax(s + g) in its place.
Masks add up to an exact budget, images depend on masks through `F^-1 M y`, and the loss is minus
the metric: a column is scored by all images after it. Scores also depend on the images before it:
gradients flow through the images that the policy saw to the choices that led to them, as in the
papers (arXiv 2105.06460, 2203.16392). The mask and the zero-filled image are inputs without
gradients. A reconstruction that masks k-space itself passes gradients to sampled columns only.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kscout.acquisition.choose import MEASURED_LOGIT
from kscout.acquisition.state import shown_to
from kscout.config import JointConfig, JointTraining, LearnedSampling, warmed_rate
from kscout.core import Measurement, Policy, Reconstruction, Reconstructor, SliceBatch
from kscout.data.slices import SliceSet
from kscout.errors import ConfigError
from kscout.kernels.graphs import BatchGradients
from kscout.metrics import checked_scores
from kscout.names import METRICS, is_outside
from kscout.physics.fourier import ifft2c
from kscout.physics.sampling import start_mask
from kscout.randomness import keyed_generator, slices_of_round
from kscout.training.algorithm import optimizer_step
from kscout.training.algorithms.gradient import MOST_NORM
from kscout.training.augmentation import mirrored
from kscout.training.baselines.settings import LoupeSampling, StraightThroughSampling
from kscout.training.joint.sampler import Material, Sampler, without_image

_N_NUMBERS = 19
"""Random numbers of a slice, of which one is used: version 0.2 sampled this number, and a seed has
the same effect."""


def drawn_through(
    scores: Float[Tensor, "slice col"],
    blocked: Bool[Tensor, "slice col"],
    noise: Float[Tensor, "slice col"],
) -> Float[Tensor, "slice col"]:
    """Draw a column for each slice, as exact zeros and a one, whose gradients are the softmax's."""
    noisy = (scores + noise).masked_fill(blocked, MEASURED_LOGIT)
    soft = noisy.softmax(dim=-1)
    hard = torch.nn.functional.one_hot(noisy.argmax(dim=-1), noisy.shape[-1])
    return hard + (soft - soft.detach())


def measured_through(batch: SliceBatch, mask: Float[Tensor, "slice col"]) -> Measurement:
    """Measure the columns of a mask of zeros and ones, to which gradients flow."""
    return Measurement(ifft2c(batch.kspace * mask[:, None, None, :]), mask.detach() > 0)


@final
class Scorer:
    """Scores reconstructions of a batch so that gradients flow."""

    def __init__(
        self,
        batch: SliceBatch,
        reconstructor: Reconstructor,
        start: Bool[Tensor, "slice col"],
        training: JointTraining,
    ) -> None:
        self.batch, self.reconstructor, self.protocol = batch, reconstructor, training.protocol
        self.metric = METRICS.resolve(training.metric)
        with torch.no_grad():
            self.maps = reconstructor.calibrate(Measurement.of(batch.kspace, start))

    def reconstruct(
        self, mask: Float[Tensor, "slice col"]
    ) -> tuple[Measurement, Reconstruction, Float[Tensor, " slice"]]:
        """Measure and reconstruct; return the measurement, the image and its score."""
        measured = replace(measured_through(self.batch, mask), maps=self.maps)
        found = self.reconstructor.reconstruct(measured)
        image = self.batch.unnormalized(found, self.protocol)
        return measured, found, differentiable_scores(self.metric, image, self.batch)


def differentiable_scores(
    metric: Callable[..., Tensor], image: Float[Tensor, "slice row col"], batch: SliceBatch
) -> Float[Tensor, " slice"]:
    """Score images by a metric; one without gradients is an error."""
    found = metric(image, batch.target, data_range=batch.data_range)
    score = checked_scores(found, len(image))
    if image.requires_grad and not score.requires_grad:
        raise ConfigError(
            "no gradient flows through training.metric, and the sampler learns by that; "
            "compute it with torch alone, without detach, or use --method dense or fixed"
        )
    return score


def scores_on_the_way(
    policy: Policy,
    scorer: Scorer,
    start: Bool[Tensor, "slice col"],
    noise: Float[Tensor, "slice step col"],
) -> tuple[Float[Tensor, "slice step"], Float[Tensor, "slice moment col"]]:
    """Acquire by an adaptive policy; return scores after each column, and all masks."""
    masks, scores = [start.float()], []
    measured, found, _ = scorer.reconstruct(masks[0])
    for step in range(noise.shape[1]):
        given = Reconstruction(*(x.detach() for x in (found.image, found.mean, found.std)))
        left = noise.shape[1] - step
        zero_filled = measured.zero_filled.detach()
        seen = shown_to(policy, given, zero_filled, measured.mask, step=step, n_left=left)
        seen = replace(seen, image=found.image)
        blocked = measured.mask | ~scorer.batch.selectable
        drawn = drawn_through(policy(seen).float(), blocked, noise[:, step])
        masks.append(masks[-1] + drawn)
        measured, found, score = scorer.reconstruct(masks[-1])
        scores.append(score)
    return torch.stack(scores, dim=1), torch.stack(masks, dim=1)


class GradientSampler(Sampler):
    """Learns by gradients through its draws, on batches of its own.

    On CUDA the passes of a batch, from its first draw to its gradients, are one graph.
    """

    training: LearnedSampling

    def __init__(self, policy: Policy, material: Material) -> None:
        super().__init__(policy, material)
        self.gradients: BatchGradients | None = None
        """Made at the first update."""
        if is_outside(self.training.metric):
            # Before the first part of the training, which uses random columns.
            slices = material.slices
            first = torch.arange(min(2, len(slices)), device=slices.index_device)
            batch = slices.batch(first)
            image = batch.target.clone().requires_grad_()
            differentiable_scores(METRICS.resolve(self.training.metric), image, batch)

    @classmethod
    def n_bytes(cls, config: JointConfig, slices: SliceSet, n_image: int) -> int:
        """Count the images of an update, all of which are kept until their gradients come."""
        training = config.training
        assert isinstance(training, LearnedSampling)
        n_moments = config.acquisition.horizon + 1 if cls.looks else 1
        return min(training.sampler_batch, len(slices)) * n_moments * n_image

    def renew(self, epoch: int, *, is_first: bool) -> None:
        """Do nothing: the sampler is updated by gradients only."""

    def is_due(self, number: int) -> bool:
        return self.training.is_due(number)

    @abstractmethod
    def scores(
        self,
        scorer: Scorer,
        start: Bool[Tensor, "slice col"],
        noise: Float[Tensor, "slice step col"],
        moment: Int[Tensor, " slice"],
    ) -> Float[Tensor, "*_"]:
        """Acquire a batch; return its scores, to which gradients flow.

        Gumbel noise decides the draws; a moment is one after the start, for each slice.
        """

    def update(self, number: int) -> Float[Tensor, ""]:
        training, optimizer = self.training, self.material.optimizer
        inputs = self._inputs(number)
        self.learner.train()
        optimizer.zero_grad()
        if self.gradients is None:
            config, parameters = self.material.config, list(self.learner.parameters())
            # Components of other packages may wait for the device, which no graph can.
            is_plain = any(map(is_outside, (config.training.metric, config.policy.name)))
            is_plain |= self.material.snapshot.waits_for_device
            is_plain |= self.material.slices.device.type != "cuda"
            example = None if is_plain else inputs
            self.gradients = BatchGradients(self._backward, parameters, example)
        # A graph writes over what it returned.
        score = self.gradients(inputs).clone()
        torch.nn.utils.clip_grad_norm_(self.learner.parameters(), MOST_NORM)
        rate = warmed_rate(
            training.sampler_rate, number, training.n_sampler_updates, training.n_warm
        )
        optimizer_step(optimizer, rate)
        optimizer.zero_grad()
        return score

    def _inputs(self, number: int) -> list[Tensor]:
        training, slices = self.training, self.material.slices
        setting = self.material.config.acquisition
        n = min(training.sampler_batch, len(slices))
        index = slices_of_round(
            training.seed, number + 1, n, n_slices=len(slices), purpose="sampler"
        )
        generator = keyed_generator("sampler noise", training.seed, number)
        shape = (n, setting.horizon, slices.n_cols)
        uniforms = torch.rand(shape, generator=generator).clamp(min=1e-30)
        noise = -(-uniforms.log()).clamp(min=1e-30).log()
        moment = torch.randint(1, setting.horizon + 1, (n,), generator=generator)
        is_mirrored = torch.rand((n, _N_NUMBERS), generator=generator)[:, 0] < 0.5
        # Slices are read outside of the graph, as they may be in a file.
        batch = slices.batch(index.to(slices.index_device))
        if training.flips:
            batch = mirrored(batch, is_mirrored.to(slices.device))
        start = start_mask(setting.start, batch.selectable.shape, slices.device)
        return [*batch.tensors(), start, noise.to(slices.device), moment.to(slices.device)]

    def _backward(self, inputs: Sequence[Tensor]) -> Float[Tensor, ""]:
        *tensors, start, noise, moment = inputs
        scorer = Scorer(SliceBatch(*tensors), self.material.snapshot, start, self.training)
        score = self.scores(scorer, start, noise, moment).mean()
        torch.autograd.backward(-score)
        return score.detach()


@final
class StraightThrough(GradientSampler):
    """Trains an adaptive policy; scores of all moments after the start have equal weight."""

    settings = StraightThroughSampling

    def scores(
        self,
        scorer: Scorer,
        start: Bool[Tensor, "slice col"],
        noise: Float[Tensor, "slice step col"],
        moment: Int[Tensor, " slice"],
    ) -> Float[Tensor, "slice step"]:
        return scores_on_the_way(self.learner, scorer, start, noise)[0]


@final
class Loupe(GradientSampler):
    """Trains one density for all slices; each slice is scored at one moment, drawn at random."""

    settings, looks = LoupeSampling, False

    def scores(
        self,
        scorer: Scorer,
        start: Bool[Tensor, "slice col"],
        noise: Float[Tensor, "slice step col"],
        moment: Int[Tensor, " slice"],
    ) -> Float[Tensor, " slice"]:
        masks = masks_drawn_blindly(self.learner, start, scorer.batch.selectable, noise)
        rows = torch.arange(len(masks), device=masks.device)
        return scorer.reconstruct(masks[rows, moment])[2]


def masks_drawn_blindly(
    policy: Policy,
    start: Bool[Tensor, "slice col"],
    selectable: Bool[Tensor, "slice col"],
    noise: Float[Tensor, "slice step col"],
) -> Float[Tensor, "slice moment col"]:
    """Sample columns by a policy without images; return all masks, to which gradients flow."""
    masks = [start.float()]
    for step in range(noise.shape[1]):
        mask = masks[-1].detach() > 0
        logits = policy(without_image(mask, step))
        drawn = drawn_through(logits, mask | ~selectable, noise[:, step])
        masks.append(masks[-1] + drawn)
    return torch.stack(masks, dim=1)
