"""How slices that are learned from may be varied."""

from dataclasses import dataclass
from typing import Annotated

from kscout.config.bounds import Between


@dataclass(frozen=True)
class VariedSlices:
    """Settings of trainings that vary their slices; the training says how often they are drawn."""

    flips: bool = True
    """Whether half of the slices are mirrored left to right."""
    zoom: Annotated[float, Between(1, 4)] = 1.0
    """Half of the slices are magnified by a factor between this and its inverse."""
