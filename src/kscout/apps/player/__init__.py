"""Recorded acquisitions and the widget that plays them; reads and writes files, without models."""

from kscout.apps.player.html import acquisition_player
from kscout.evaluation.records.acquisitions import (
    PolicySteps,
    SliceRecord,
    load_acquisition,
    save_acquisition,
)
