"""Reconstructions: masked k-space to an image. A new one is one file, and a line in `names`."""

from pathlib import Path

import torch

from kscout import names
from kscout.core import Reconstructor
from kscout.json_types import JsonObject
from kscout.reconstruction.checkpoints import is_learnable, load_reconstructor
from kscout.reconstruction.wrapped import wrap
from kscout.weights import save_component

RECONSTRUCTORS: dict[str, type[Reconstructor]] = {
    name: names.RECONSTRUCTORS.resolve(name) for name in names.RECONSTRUCTORS.entries
}
"""The reconstructions of kscout by name; `kscout.names.RECONSTRUCTORS` also finds others."""


def load(path: str | Path, *, device: torch.device | str = "cpu") -> Reconstructor:
    """Load a reconstruction, ready for use.

    Args:
        path: a run folder, a .safetensors file of kscout, a checkpoint of the paper's code, a
            checkpoint or state dict of fastMRI, the name of a reconstruction without training
            (`module:Class` for your own), or, if no such file or folder exists, the name of a zoo
            entry ("knee-unet"). If a folder has the name of a reconstruction without training,
            pass it as a `Path` or as "./name".
        device: device of the reconstructor.
    """
    return load_reconstructor(path, device=device)


def save(
    path: Path | str, reconstructor: Reconstructor, *, extra: JsonObject | None = None
) -> None:
    """Write a reconstructor to a .safetensors file that `load` reads.

    Args:
        path: the file, replaced atomically.
        reconstructor: of a class in `RECONSTRUCTORS`, or of your own at the top level of a module.
        extra: JSON values that describe its origin.
    """
    save_component(Path(path), reconstructor, kind="reconstructor", extra=extra)


__all__ = ["RECONSTRUCTORS", "is_learnable", "load", "save", "wrap"]
