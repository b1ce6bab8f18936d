"""Readers of file formats, one file each; `kscout.names.FORMATS` is their table.

A reader takes a path, and the options that its entry names, and returns the images of one volume
[slice, row, col] in 32 bit and what the file calls its acquisition.
"""

import importlib
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32

from kscout.errors import DataError
from kscout.names import FORMATS

Stack = Float32[np.ndarray, "slice row col"]
"""Images of one volume."""


def require(name: str, path: Path) -> Any:  # noqa: ANN401 - a module
    """Import the package that reads a format, or say how to install it.

    Args:
        name: of the format.
        path: the file that is to be read.
    """
    entry = FORMATS[name]
    try:
        return importlib.import_module(entry.needs)
    except ImportError as error:
        raise DataError(
            f"{path} is {entry.summary}, which needs {entry.needs}: pip install 'kscout[formats]'"
        ) from error
