"""Scores and pictures of held-out slices, and the comparison with zero-filled images."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kscout.acquisition.loop import action_uniforms, rollout
from kscout.acquisition.plan import training_plan
from kscout.config import JointConfig, PolicyConfig, ReconstructorTraining
from kscout.core import Policy, Protocol, Reconstructor
from kscout.data.slices import SliceSet
from kscout.metrics import ssim
from kscout.names import metric_word
from kscout.physics.sampling import Initial, start_mask
from kscout.randomness import keyed_generator
from kscout.reconstruction import RECONSTRUCTORS, is_learnable
from kscout.reconstruction.zero_filled import ZeroFilled
from kscout.training.distributed import share, sum_over_processes

VALIDATION_BATCH = 64
_FINAL_BATCH = {"cpu": 16, "cuda": 256}
"""Slices that are acquired together."""
_AMPLIFIED = 4.0
"""Of the error."""
_STRIP = 16
"""The rows of the image for each row of the strip below it."""
_N_COMPARED = 16
"""Slices on which a reconstruction is compared with zero-filled images."""
_NEGLIGIBLE = 1e-5
"""Difference in SSIM by rounding."""


@torch.no_grad()
def validation_ssim(
    model: Reconstructor,
    slices: SliceSet,
    masks: Bool[Tensor, "slice col"],
    training: ReconstructorTraining,
) -> float:
    """Return the mean SSIM of reconstructions under fixed masks, by the run's protocol."""
    model.eval()
    total = torch.zeros((), device=slices.device)
    for index in torch.arange(len(slices)).split(VALIDATION_BATCH):
        mine = share(index)
        if not len(mine):
            continue
        batch = slices.batch(mine)
        mask = masks[mine].to(slices.device) & batch.selectable
        image = batch.unnormalized(model(batch.kspace, mask), training.protocol)
        total += ssim(image, batch.target, data_range=batch.data_range).sum()
    return float(sum_over_processes(total)) / len(slices)


@torch.no_grad()
def zero_filled_note(
    network: Reconstructor, slices: SliceSet, start: Initial, horizon: int, protocol: Protocol
) -> str | None:
    """Return a warning for a reconstruction with less SSIM than zero-filled images.

    Those of kscout without training get none.

    Both reconstruct up to 16 slices from the same columns: the start and random ones.
    """
    is_trained = is_learnable(network.original)
    if not is_trained and type(network.original) in RECONSTRUCTORS.values():
        return None
    some = slices.sample(_N_COMPARED)
    masks = start_mask(start, slices.selectable.shape)
    masks = masks[torch.arange(len(some)) * len(slices) // len(some)].clone()
    order = torch.rand(masks.shape, generator=keyed_generator(0, "zero-filled"))
    order[masks | ~some.selectable.cpu()] = -1
    masks.scatter_(1, order.topk(horizon).indices, True)
    training = ReconstructorTraining(protocol=protocol)
    own, plain = (
        validation_ssim(model, some, masks, training) for model in (network, ZeroFilled())
    )
    if own > plain - _NEGLIGIBLE:
        return None
    advice = "check its input, and the units of its output"
    if is_trained:
        advice = "train it for longer, or check that it was trained on such images"
    return (
        f"the reconstruction is worse than zero-filled images: SSIM {own:.4f} instead of "
        f"{plain:.4f} on {len(some)} of these slices with {int(masks[0].sum())} columns, {horizon} "
        f"of them random; {advice}"
    )


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


@torch.no_grad()
def final_scores(
    policy: Policy,
    reconstructor: Reconstructor,
    slices: SliceSet,
    config: PolicyConfig | JointConfig,
) -> dict[str, float]:
    """Return mean final scores of one trajectory per held-out slice, with fixed random numbers.

    The training's metric first, then SSIM.
    """
    plan, size = training_plan(config), _FINAL_BATCH[slices.device.type]
    draws = action_uniforms(len(slices), 1, plan.horizon, config.training.seed, "validation")
    index = torch.arange(len(slices), device=slices.index_device)
    total = torch.zeros(2, device=slices.device)
    for part, uniforms in zip(index.split(size), draws.to(slices.device).split(size), strict=True):
        simulator = plan.simulator(slices.batch(part), reconstructor)
        found = rollout(policy, simulator, plan, uniforms=uniforms)
        scores = (found.ssim if found.score is None else found.score, found.ssim)
        total += torch.stack([x[:, 0, -1].sum() for x in scores])
    names = (f"val_{metric_word(plan.metric)}", "val_ssim")
    return dict(zip(names, (total / len(slices)).tolist(), strict=True))
