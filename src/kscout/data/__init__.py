"""Slices: datasets on disk (`Store`), sets read in batches, importers and procedural phantoms.

Public names load on first use: importing and generating volumes need more libraries than reading.
"""

from typing import TYPE_CHECKING

from kscout.exports import on_first_use

if TYPE_CHECKING:
    from kscout.data.generate import make_store as make_store
    from kscout.data.importing.folder import import_folder as import_folder
    from kscout.data.importing.settings import ImportSettings as ImportSettings
    from kscout.data.info import describe as describe
    from kscout.data.kinds import KINDS as KINDS
    from kscout.data.kinds import Kind as Kind
    from kscout.data.making import MakeSettings as MakeSettings
    from kscout.data.making import paper_settings as paper_settings
    from kscout.data.montage import save_montage as save_montage
    from kscout.data.slices import SliceSet as SliceSet
    from kscout.data.store import Store as Store
    from kscout.data.store_writer import StoreWriter as StoreWriter

_MODULES = {
    "kscout.data.kinds": "KINDS Kind",
    "kscout.data.importing.folder": "import_folder",
    "kscout.data.importing.settings": "ImportSettings",
    "kscout.data.making": "MakeSettings paper_settings",
    "kscout.data.generate": "make_store",
    "kscout.data.slices": "SliceSet",
    "kscout.data.store": "Store",
    "kscout.data.store_writer": "StoreWriter",
    "kscout.data.info": "describe",
    "kscout.data.montage": "save_montage",
}

__getattr__, __dir__, __all__ = on_first_use(__name__, _MODULES)
