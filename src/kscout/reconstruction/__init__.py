"""Reconstructions: from masked k-space to an image. A new one is a file and a line here."""

from kscout.core import Reconstructor
from kscout.reconstruction.unet import UNet
from kscout.reconstruction.zero_filled import ZeroFilled

RECONSTRUCTORS: dict[str, type[Reconstructor]] = {
    "zero-filled": ZeroFilled,
    "unet": UNet,
}

__all__ = ["RECONSTRUCTORS"]
