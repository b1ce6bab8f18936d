"""Importing volumes of any format into a store: finding, reading, cutting, sharing into splits."""

from typing import TYPE_CHECKING

from kscout.exports import on_first_use

if TYPE_CHECKING:
    from kscout.data.importing.folder import import_folder
    from kscout.data.importing.settings import ImportSettings

_PLACES = {
    "ImportSettings": "kscout.data.importing.settings",
    "import_folder": "kscout.data.importing.folder",
}

__getattr__, __dir__ = on_first_use(__name__, _PLACES)

__all__ = ["ImportSettings", "import_folder"]
