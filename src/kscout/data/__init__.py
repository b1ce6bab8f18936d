"""Slices: stores on disk, sets that are handed out in batches, importers and procedural phantoms.

Public names load on first use: importing and drawing volumes need libraries that reading does not.
"""

from typing import TYPE_CHECKING

from kscout.exports import on_first_use

if TYPE_CHECKING:
    from kscout.data.generate import make_store
    from kscout.data.importing import ImportSettings, import_folder
    from kscout.data.info import describe
    from kscout.data.kinds import KINDS, Kind
    from kscout.data.making import MakeSettings, paper_settings
    from kscout.data.montage import save_montage
    from kscout.data.slices import SliceSet
    from kscout.data.store import Store
    from kscout.data.store_writer import StoreWriter

_MODULES = {
    "kscout.data.kinds": "KINDS Kind",
    "kscout.data.importing": "ImportSettings import_folder",
    "kscout.data.making": "MakeSettings paper_settings",
    "kscout.data.generate": "make_store",
    "kscout.data.slices": "SliceSet",
    "kscout.data.store": "Store",
    "kscout.data.store_writer": "StoreWriter",
    "kscout.data.info": "describe",
    "kscout.data.montage": "save_montage",
}

__getattr__, __dir__ = on_first_use(__name__, _MODULES)

__all__ = [
    "KINDS",
    "ImportSettings",
    "Kind",
    "MakeSettings",
    "SliceSet",
    "Store",
    "StoreWriter",
    "describe",
    "import_folder",
    "make_store",
    "paper_settings",
    "save_montage",
]
