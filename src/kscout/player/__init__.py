"""Recorded acquisitions and the widget that plays them; reads and writes files, never models."""

from kscout.player.html import acquisition_player
from kscout.player.records import Acquisition, PolicySteps, load_acquisition, save_acquisition

__all__ = [
    "Acquisition",
    "PolicySteps",
    "acquisition_player",
    "load_acquisition",
    "save_acquisition",
]
