"""Reconstructions compared on held-out slices under the same random masks, and their section."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
from kscout.figures.blocks import Block, Drawing, Prose, Section
from kscout.figures.pictures import draw_reconstructions
from kscout.figures.tables import Cell, Column, Measured, Row, Table
from kscout.metrics import nmse, psnr, ssim
from kscout.training.masks import MaskDistribution


@final
@dataclass(frozen=True)
class ReconstructionScores:
    """What one reconstruction reached at one acceleration, mean over slices."""

    name: str
    acceleration: int | float
    ssim: float
    psnr: float
    nmse: float
    ssim_interval: tuple[float, float] | None = None


@final
@dataclass(frozen=True)
class ReconstructionPictures:
    """One slice under several reconstructions, in the target's units."""

    title: str
    target: Float[np.ndarray, "row col"]
    images: Mapping[str, Float[np.ndarray, "row col"]]
    ssim: Mapping[str, float] = field(default_factory=dict)


@final
@dataclass(frozen=True)
class ReconstructionComparison:
    """Scores of all reconstructions at all accelerations, and one slice at each in pictures."""

    scores: list[ReconstructionScores]
    pictures: list[ReconstructionPictures]
    protocol: Protocol = "paper"

    @property
    def names(self) -> list[str]:
        """The reconstructions in the order in which they were given."""
        return list(dict.fromkeys(score.name for score in self.scores))

    @property
    def accelerations(self) -> list[int | float]:
        """All accelerations, the smallest first."""
        return sorted({score.acceleration for score in self.scores})

    def score(self, name: str, acceleration: int | float) -> ReconstructionScores | None:
        """Return what a reconstruction reached, None where it was not tried."""
        wanted = (name, acceleration)
        return next((one for one in self.scores if (one.name, one.acceleration) == wanted), None)


@torch.no_grad()
def compare_reconstructions(
    methods: Mapping[str, Path | str],
    slices: SliceSet,
    accelerations: Sequence[float],
    *,
    center_fraction: float,
    protocol: Protocol = "paper",
) -> ReconstructionComparison:
    """Reconstruct slices under random masks, one per volume and the same for every method.

    Args:
        methods: what `kscout.reconstruction.load` takes, by the name in the table. Of each
            acceleration, the slice on which the last one's SSIM is the median is kept in pictures.
        slices: no slice of which was trained on.
        accelerations: columns over measured columns.
        center_fraction: of the columns that are always measured, around the center.
        protocol: how images are un-normalized before they are scored.
    """
    loaded = {name: reconstruction.load(path).eval() for name, path in methods.items()}
    batch = slices.batch(torch.arange(len(slices)))
    scores, pictures = [], []
    for acceleration in accelerations:
        masking = MaskDistribution(slices.n_cols, [acceleration], [center_fraction])
        masks = masking.of_volumes(slices.volumes) & slices.selectable
        images, found = {}, {}
        for name, method in loaded.items():
            images[name] = batch.unnormalized(method(batch.kspace, masks), protocol)
            found[name] = ssim(images[name], batch.target, data_range=batch.data_range)
            own = _scores(name, acceleration, images[name], found[name], batch, slices.volumes)
            scores.append(own)
        # The median of the last method: neither the best nor the worst slice is shown.
        place = int(found[name].argsort()[len(slices) // 2])
        title = f"{slices.volumes[place]}, slice {slices.slices[place]}, at {acceleration:g}×"
        shown = {name: np.asarray(image[place]) for name, image in images.items()}
        told = {name: float(values[place]) for name, values in found.items()}
        target = np.asarray(batch.target[place])
        pictures.append(ReconstructionPictures(title, target, shown, told))
    return ReconstructionComparison(scores, pictures, protocol)


def _scores(
    name: str,
    acceleration: float,
    image: Float[Tensor, "batch row col"],
    similarity: Float[Tensor, " batch"],
    batch: SliceBatch,
    volumes: Sequence[str],
) -> ReconstructionScores:
    noise, error = (
        metric(image, batch.target, data_range=batch.data_range).double() for metric in (psnr, nmse)
    )
    values = similarity.double().numpy()
    return ReconstructionScores(
        name,
        acceleration,
        ssim=float(values.mean()),
        psnr=float(noise.numpy().mean()),
        nmse=float(error.numpy().mean()),
        ssim_interval=bootstrap_interval(values, volumes),
    )


def reconstruction_table(compared: ReconstructionComparison, *, about: str = "") -> Table:
    """Return one row per reconstruction and three columns per acceleration.

    Args:
        compared: any number of reconstructions and accelerations.
        about: the data and masks, for the note.
    """
    columns = [Column("reconstruction")]
    for at in compared.accelerations:
        columns += [
            Column(f"SSIM at {at:g}×", best="max"),
            Column(f"PSNR at {at:g}× (dB)", digits=2, best="max"),
            Column(f"NMSE at {at:g}×", best="min"),
        ]
    rows = []
    for name in compared.names:
        cells: list[Cell] = [name]
        for at in compared.accelerations:
            one = compared.score(name, at)
            cells += (
                [None] * 3
                if one is None
                else [
                    Measured(one.ssim, None, one.ssim_interval),
                    *map(Measured, (one.psnr, one.nmse)),
                ]
            )
        rows.append(Row(tuple(cells)))
    note = (
        f"Means over slices, protocol {compared.protocol}. The best value of each column is marked."
    )
    note = f"{note} {about}".strip()
    return Table("Reconstructions", tuple(columns), tuple(rows), note, "reconstructions")


def reconstruction_section(
    compared: ReconstructionComparison, *, about: str = "", title: str = "Reconstructions"
) -> Section:
    """Return the table of reconstructions and, below, pictures side by side with their errors."""
    blocks: list[Block] = [Prose(_tell_best(compared)), reconstruction_table(compared, about=about)]
    blocks += [
        Drawing(
            draw_reconstructions(shown.target, shown.images, ssim=shown.ssim),
            f"reconstructions-{number}",
            f"{shown.title}. Above: images in the target's gray scale. Below: absolute errors on "
            "one scale.",
            is_wide=True,
        )
        for number, shown in enumerate(compared.pictures, start=1)
    ]
    return Section(title, tuple(blocks))


def _tell_best(compared: ReconstructionComparison) -> str:
    parts = []
    for at in compared.accelerations:
        own = [score for score in compared.scores if score.acceleration == at]
        best, *rest = sorted(own, key=lambda score: -score.ssim)
        told = f"at {at:g}× **{best.name}** is best with SSIM {best.ssim:.4f}"
        if rest:
            told += f", {best.ssim - rest[0].ssim:.4f} above {rest[0].name}"
        parts.append(told)
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}."
