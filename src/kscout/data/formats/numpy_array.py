"""NumPy's `.npy` and `.npz` files."""

import zipfile
import zlib
from pathlib import Path

import numpy as np

from kscout.data.formats import Stack
from kscout.errors import DataError

# What numpy and zipfile raise on a damaged `.npy` or `.npz`; an unknown compression is the last.
_UNREADABLE = (
    *(OSError, EOFError, ValueError, KeyError),
    *(zipfile.BadZipFile, zlib.error, NotImplementedError),
)


def read_numpy(path: Path, key: str | None = None) -> tuple[Stack, str]:
    """Return a stack of real images and an empty acquisition.

    Args:
        path: a `.npy` file of one image or a stack, or a `.npz` file.
        key: name of the array in a `.npz` file that holds several.
    """
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.lib.npyio.NpzFile):
            with loaded:
                # A member that is no array comes out as bytes.
                stack = np.asarray(loaded[_only_key(path, key, loaded.files)])
        else:
            stack = loaded
    except _UNREADABLE as error:
        raise DataError(
            f"{path} cannot be read as NumPy arrays ({error}); save it again with numpy.save"
        ) from error
    if np.iscomplexobj(stack) or stack.ndim not in (2, 3) or stack.dtype.kind not in "fiub":
        raise DataError(
            f"{path} holds {stack.dtype} of shape {stack.shape} instead of real images slice x "
            "row x column; save magnitudes"
        )
    images = stack.astype(np.float32)
    return images if images.ndim == 3 else images[None], ""


def _only_key(path: Path, key: str | None, keys: list[str]) -> str:
    if key is None and len(keys) == 1:
        return keys[0]
    if key not in keys:
        raise DataError(f"{path} holds the arrays {', '.join(keys)}; name one of them with --key")
    return key
