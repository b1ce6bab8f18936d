"""How the trained U-Net compares with classical reconstructions on held-out knees."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from kscout import reconstruction
from kscout.core import Protocol, SliceBatch
from kscout.data.slices import SliceSet
from kscout.evaluation.statistics import bootstrap_interval
from kscout.metrics import nmse, psnr, ssim
from kscout.report.reconstructions import ReconstructionPictures, ReconstructionScores
from kscout.training.masks import MaskDistribution

UNET, CLASSICAL = "U-Net, trained here", "total variation"
_CENTER_FRACTION = 0.125
"""Columns always measured: the paper's at eightfold acceleration, and the policies' start."""


@final
@dataclass(frozen=True)
class Comparison:
    """Scores of all reconstructions at all accelerations, and one slice at each in pictures."""

    scores: list[ReconstructionScores]
    pictures: list[ReconstructionPictures]

    def ssim(self, name: str, acceleration: float) -> float:
        """Return the mean SSIM of a reconstruction."""
        return next(
            score.ssim
            for score in self.scores
            if (score.name, score.acceleration) == (name, acceleration)
        )


@torch.no_grad()
def compare_reconstructions(
    unet: Path, slices: SliceSet, accelerations: Sequence[float], *, protocol: Protocol = "paper"
) -> Comparison:
    """Reconstruct held-out slices under random masks, the same for every method.

    Args:
        unet: run folder of the trained network.
        slices: no slice of which was trained on.
        accelerations: columns over measured columns.
        protocol: how images are un-normalized before they are scored.
    """
    paths = {
        "zero-filled": "zero-filled",
        CLASSICAL: "total-variation",
        UNET: str(unet),
    }
    methods = {name: reconstruction.load(path) for name, path in paths.items()}
    batch = slices.batch(torch.arange(len(slices)))
    scores, pictures = [], []
    for acceleration in accelerations:
        masking = MaskDistribution(slices.n_cols, [acceleration], [_CENTER_FRACTION])
        masks = masking.of_volumes(slices.volumes) & slices.selectable
        images = {}
        for name, method in methods.items():
            found = method.eval()(batch.kspace, masks)
            images[name] = batch.unnormalized(found, protocol)
            scores.append(_score(name, acceleration, images[name], batch, slices.volumes))
        place = _typical(images[UNET], batch)
        title = f"{slices.volumes[place]}, slice {slices.slices[place]}, at {acceleration:g}×"
        pictures.append(_pictures(title, images, batch, place))
    return Comparison(scores, pictures)


def _score(
    name: str,
    acceleration: float,
    image: Float[Tensor, "batch row col"],
    batch: SliceBatch,
    volumes: Sequence[str],
) -> ReconstructionScores:
    similarity, noise, error = (
        metric(image, batch.target, data_range=batch.data_range).double().numpy()
        for metric in (ssim, psnr, nmse)
    )
    return ReconstructionScores(
        name,
        acceleration,
        ssim=float(similarity.mean()),
        psnr=float(noise.mean()),
        nmse=float(error.mean()),
        ssim_interval=bootstrap_interval(similarity, volumes),
    )


def _typical(image: Float[Tensor, "batch row col"], batch: SliceBatch) -> int:
    """Return the slice with the median score: neither the best nor the worst is shown."""
    scores = ssim(image, batch.target, data_range=batch.data_range)
    return int(scores.argsort()[len(scores) // 2])


def _pictures(
    title: str, images: dict[str, Tensor], batch: SliceBatch, place: int
) -> ReconstructionPictures:
    target, data_range = batch.target[place : place + 1], batch.data_range[place : place + 1]
    own = {name: image[place : place + 1] for name, image in images.items()}
    return ReconstructionPictures(
        title=title,
        target=np.asarray(target[0]),
        images={name: np.asarray(image[0]) for name, image in own.items()},
        ssim={
            name: float(ssim(image, target, data_range=data_range)) for name, image in own.items()
        },
    )
