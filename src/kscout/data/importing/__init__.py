"""Importing volumes of any format into a store: finding, reading, cropping, assigning splits."""

from typing import TYPE_CHECKING

from kscout.exports import on_first_use

if TYPE_CHECKING:
    from kscout.data.importing.folder import import_folder as import_folder
    from kscout.data.importing.settings import ImportSettings as ImportSettings

_MODULES = {
    "kscout.data.importing.settings": "ImportSettings",
    "kscout.data.importing.folder": "import_folder",
}

__getattr__, __dir__, __all__ = on_first_use(__name__, _MODULES)
