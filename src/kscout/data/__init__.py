"""Slices: stores on disk, sets that are handed out in batches, importers and procedural phantoms.

Public names load on first use: importing and drawing volumes need libraries that reading does not.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kscout.data.generate import MakeSettings, make_store, paper_settings
    from kscout.data.importing import ImportSettings, import_folder
    from kscout.data.info import describe
    from kscout.data.kinds import KINDS, Kind
    from kscout.data.montage import save_montage
    from kscout.data.slices import SliceSet
    from kscout.data.store import Store
    from kscout.data.store_writer import StoreWriter

_PLACES = {
    "KINDS": "kinds",
    "ImportSettings": "importing",
    "Kind": "kinds",
    "MakeSettings": "generate",
    "SliceSet": "slices",
    "Store": "store",
    "StoreWriter": "store_writer",
    "describe": "info",
    "import_folder": "importing",
    "make_store": "generate",
    "paper_settings": "generate",
    "save_montage": "montage",
}

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


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the public name stands for
    if name in _PLACES:
        return getattr(import_module(f"kscout.data.{_PLACES[name]}"), name)
    raise AttributeError(f"module 'kscout.data' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
