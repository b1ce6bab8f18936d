"""LOUPE (arXiv 1901.01960): one learned density of columns for all slices, with an exact budget.

Gradients go through the draws as in `straight_through`, which also says how scores depend on masks.
"""

from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kscout.core import Policy
from kscout.training.baselines.settings import LoupeSampling
from kscout.training.baselines.straight_through import GradientSampler, Scorer, drawn_through
from kscout.training.joint.sampler import without_image


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
        selectable, temperature = scorer.batch.selectable, self.training.temperature
        masks = masks_drawn_blindly(self.learner, start, selectable, noise, temperature)
        rows = torch.arange(len(masks), device=masks.device)
        return scorer.reconstruct(masks[rows, moment])[2]


def masks_drawn_blindly(
    policy: Policy,
    start: Bool[Tensor, "slice col"],
    selectable: Bool[Tensor, "slice col"],
    noise: Float[Tensor, "slice step col"],
    temperature: float,
) -> Float[Tensor, "slice moment col"]:
    """Draw columns by a policy that does not look; return all masks, to which gradients flow."""
    masks = [start.float()]
    for step in range(noise.shape[1]):
        mask = masks[-1].detach() > 0
        logits = policy(without_image(mask, step))
        drawn = drawn_through(logits, mask | ~selectable, noise[:, step], temperature)
        masks.append(masks[-1] + drawn)
    return torch.stack(masks, dim=1)
