"""The section that compares reconstructions on held-out volumes: a table and pictures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

import numpy as np
from jaxtyping import Float

from kscout.figures.blocks import Block, Drawing, Prose, Section
from kscout.figures.pictures import draw_reconstructions
from kscout.figures.tables import Cell, Column, Measured, Row, Table


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


def reconstruction_table(
    scores: Sequence[ReconstructionScores], *, protocol: str, about: str = ""
) -> Table:
    """Return one row per reconstruction and three columns per acceleration.

    Args:
        scores: any number of reconstructions and accelerations.
        protocol: under which images were scored.
        about: the data and masks, for the note.
    """
    accelerations = sorted({score.acceleration for score in scores})
    columns = [Column("reconstruction")]
    for acceleration in accelerations:
        at = f" at {acceleration:g}×"
        columns += [
            Column(f"SSIM{at}", best="max"),
            Column(f"PSNR{at} (dB)", digits=2, best="max"),
            Column(f"NMSE{at}", best="min"),
        ]
    rows = []
    for name in dict.fromkeys(score.name for score in scores):
        cells: list[Cell] = [name]
        for acceleration in accelerations:
            cells += _cells(scores, name, acceleration)
        rows.append(Row(tuple(cells)))
    note = f"Means over slices, protocol {protocol}. The best value of each column is marked."
    note = f"{note} {about}".strip()
    return Table("Reconstructions", tuple(columns), tuple(rows), note, "reconstructions")


def _cells(
    scores: Sequence[ReconstructionScores], name: str, acceleration: int | float
) -> list[Cell]:
    for score in scores:
        if (score.name, score.acceleration) == (name, acceleration):
            return [
                Measured(score.ssim, interval=score.ssim_interval),
                Measured(score.psnr),
                Measured(score.nmse),
            ]
    return [None, None, None]


def reconstruction_section(
    scores: Sequence[ReconstructionScores],
    pictures: Sequence[ReconstructionPictures] = (),
    *,
    protocol: str,
    about: str = "",
    title: str = "Reconstructions",
) -> Section:
    """Return the table of reconstructions and, below, pictures side by side with their errors."""
    blocks: list[Block] = [Prose(_tell_best(scores))] if scores else []
    blocks.append(reconstruction_table(scores, protocol=protocol, about=about))
    blocks += [
        Drawing(
            draw_reconstructions(shown.target, shown.images, ssim=shown.ssim),
            f"reconstructions-{number}",
            f"{shown.title}. Above: images in the target's gray scale. Below: absolute errors on "
            "one scale.",
            is_wide=True,
        )
        for number, shown in enumerate(pictures, start=1)
    ]
    return Section(title, tuple(blocks))


def _tell_best(scores: Sequence[ReconstructionScores]) -> str:
    parts = []
    for acceleration in sorted({score.acceleration for score in scores}):
        ranked = sorted(
            (score for score in scores if score.acceleration == acceleration),
            key=lambda score: -score.ssim,
        )
        told = f"at {acceleration:g}× **{ranked[0].name}** is best with SSIM {ranked[0].ssim:.4f}"
        if len(ranked) > 1:
            told += f", {ranked[0].ssim - ranked[1].ssim:.4f} above {ranked[1].name}"
        parts.append(told)
    text = "; ".join(parts)
    return text[0].upper() + text[1:] + "."


__all__ = [
    "ReconstructionPictures",
    "ReconstructionScores",
    "reconstruction_section",
    "reconstruction_table",
]
