"""Reconstructions: from masked k-space to an image. A new one is a file, and a line in `names`."""

from pathlib import Path
from typing import Any

import torch

from kscout import names
from kscout.core import Reconstructor
from kscout.reconstruction.checkpoints import is_learnable, load_reconstructor
from kscout.weights import save_component

RECONSTRUCTORS: dict[str, type[Reconstructor]] = {
    name: names.RECONSTRUCTORS.resolve(name) for name in names.RECONSTRUCTORS.entries
}
"""The reconstructions of kscout by name; `kscout.names.RECONSTRUCTORS` finds those from outside."""


def load(path: str | Path, *, device: torch.device | str = "cpu") -> Reconstructor:
    """Load a reconstruction, ready for use.

    Args:
        path: a run folder, a .safetensors file of kscout, a checkpoint of the paper's code, a
            checkpoint or state dict of fastMRI, the name of one that needs no training
            (`module:Class` for one of your own), or a name of the zoo ("knee-unet") where no file
            or folder is called so. A folder that is called like one that needs no training is
            given as a `Path` or as "./name".
        device: where it will run.
    """
    return load_reconstructor(path, device=device)


def save(
    path: Path | str, reconstructor: Reconstructor, *, extra: dict[str, Any] | None = None
) -> None:
    """Write a reconstructor to a .safetensors file that `load` reads.

    Args:
        path: the file, replaced whole.
        reconstructor: of a class in `RECONSTRUCTORS`, or of one of your own at the top of a module.
        extra: JSON values that say where it comes from.
    """
    save_component(Path(path), reconstructor, kind="reconstructor", extra=extra)


__all__ = ["RECONSTRUCTORS", "is_learnable", "load", "save"]
