"""Reconstructions: from masked k-space to an image. A new one is a file and a line here."""

from pathlib import Path
from typing import Any

import torch

from kscout.core import Reconstructor
from kscout.reconstruction.checkpoints import (
    is_learnable,
    load_reconstructor,
    save_reconstructor,
)
from kscout.reconstruction.fastmri_unet import FastMRIUNet
from kscout.reconstruction.total_variation import TotalVariation
from kscout.reconstruction.unet import UNet
from kscout.reconstruction.zero_filled import ZeroFilled

RECONSTRUCTORS: dict[str, type[Reconstructor]] = {
    "zero-filled": ZeroFilled,
    "total-variation": TotalVariation,
    "unet": UNet,
    "fastmri-unet": FastMRIUNet,
}


def load(path: str | Path, *, device: torch.device | str = "cpu") -> Reconstructor:
    """Load a reconstruction, ready for use.

    Args:
        path: a run folder, a .safetensors file of kscout, a checkpoint of the paper's code, a
            checkpoint or state dict of fastMRI, the name of one that needs no training, or a
            name of the zoo ("knee-unet") where no file or folder is called so. A folder that is
            called like one that needs no training is given as a `Path` or as "./name".
        device: where it will run.
    """
    return load_reconstructor(path, table=RECONSTRUCTORS, device=device)


def save(
    path: Path | str, reconstructor: Reconstructor, *, extra: dict[str, Any] | None = None
) -> None:
    """Write a reconstructor to a .safetensors file that `load` reads.

    Args:
        path: the file, replaced whole.
        reconstructor: of a class in `RECONSTRUCTORS`.
        extra: JSON values that say where it comes from.
    """
    save_reconstructor(Path(path), reconstructor, table=RECONSTRUCTORS, extra=extra)


__all__ = ["RECONSTRUCTORS", "is_learnable", "load", "save"]
