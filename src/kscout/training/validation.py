"""Validation of reconstructions, and the comparison with zero-filled images."""

import torch
from jaxtyping import Bool
from torch import Tensor

from kscout.config import JointTraining, ReconstructorTraining
from kscout.core import Protocol, Reconstructor
from kscout.data.slices import SliceSet
from kscout.metrics import ssim
from kscout.physics.sampling import Initial, start_mask
from kscout.randomness import keyed_generator
from kscout.reconstruction import RECONSTRUCTORS, is_learnable
from kscout.reconstruction.zero_filled import ZeroFilled
from kscout.training.augmentation import coarser
from kscout.training.distributed import share, sum_over_processes

VALIDATION_BATCH = 64
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
    """Return the mean SSIM of reconstructions under fixed masks, by the run's protocol.

    Slices are made coarser where the masks have fewer columns.
    """
    model.eval()
    total = torch.zeros((), device=slices.device)
    for index in torch.arange(len(slices)).split(VALIDATION_BATCH):
        mine = share(index)
        if not len(mine):
            continue
        batch = coarser(slices.batch(mine), masks.shape[1])
        mask = masks[mine].to(slices.device) & batch.selectable
        with arithmetic(training, slices.device):
            found = model(batch.kspace, mask)
        image = batch.unnormalized(found, training.protocol)
        total += ssim(image, batch.target, data_range=batch.data_range).sum()
    return float(sum_over_processes(total)) / len(slices)


@torch.no_grad()
def zero_filled_note(
    network: Reconstructor, slices: SliceSet, start: Initial, horizon: int, protocol: Protocol
) -> str | None:
    """Return a warning for a reconstruction with less SSIM than zero-filled images.

    Those of kscout without training get none.

    Both reconstruct up to 16 slices from the same columns: the start and random ones.

    Args:
        network: the reconstruction.
        slices: the slices to compare on.
        start: columns measured at the start.
        horizon: number of random columns in addition.
        protocol: protocol of the scores.
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


def arithmetic(
    training: ReconstructorTraining | JointTraining, device: torch.device
) -> torch.autocast:
    """Return the context of the forward passes of a training."""
    return torch.autocast(device.type, torch.bfloat16, enabled=training.precision == "bf16")
