"""A picture of a held-out slice, as trainings show it after every epoch."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kscout.acquisition.plan import training_plan
from kscout.acquisition.rollout import action_uniforms, rollout
from kscout.config import JointConfig, PolicyConfig
from kscout.core import Policy, Reconstructor
from kscout.data.slices import SliceSet
from kscout.physics.sampling import start_mask

_AMPLIFIED = 4.0
"""Of the error."""
_STRIP = 16
"""The rows of the image for each row of the strip below it."""


def panel(
    target: Float[Tensor, "row col"], image: Float[Tensor, "row col"], mask: Bool[Tensor, " col"]
) -> Float[Tensor, "new_row new_col"]:
    """Return target, image and four times the error side by side, above the measured columns."""
    error = _AMPLIFIED * (image - target).abs()
    shown = (torch.cat([target, image, error], dim=-1) / target.max()).clamp(0, 1)
    n_rows = max(1, len(target) // _STRIP)
    strip = mask.to(shown).expand(n_rows, -1).repeat(1, 3)
    return torch.cat([shown, strip]).float()


@torch.no_grad()
def final_picture(
    policy: Policy,
    reconstructor: Reconstructor,
    slices: SliceSet,
    config: PolicyConfig | JointConfig,
) -> Float[Tensor, "new_row new_col"]:
    """Return the first held-out slice at the end of its trajectory in `final_scores`."""
    plan = training_plan(config)
    draws = action_uniforms(len(slices), 1, plan.horizon, config.training.seed, "validation")
    batch = slices.batch(torch.tensor([0], device=slices.index_device))
    simulator, uniforms = plan.simulator(batch, reconstructor), draws[:1].to(slices.device)
    found = rollout(policy, simulator, plan, uniforms=uniforms, keep_images=True)
    assert found.images is not None
    start = start_mask(plan.start, batch.selectable.shape, slices.device)
    mask = start.scatter(-1, found.columns[:, 0], True)
    return panel(batch.target[0], found.images[-1, 0, 0], mask[0])
