"""Arrays as compact PNG data URIs, to put pictures into a page without files."""

import base64
import io
from functools import lru_cache

import matplotlib as mpl
import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image


def brightest_shown(target: Float[np.ndarray, "row col"]) -> float:
    """Return what is drawn white: a few bright pixels of fat would leave the rest in the dark."""
    return float(np.quantile(target, 0.995)) or float(target.max())


def gray_uri(image: Float[np.ndarray, "row col"], limit: float) -> str:
    """Encode an image in 256 grays, black at 0 and white at `limit`."""
    return _data_uri(_picture(_levels(image, limit), "L"))


def heat_uri(image: Float[np.ndarray, "row col"], limit: float) -> str:
    """Encode an error map with a color table, black at 0 and pale yellow at `limit`."""
    # 64 levels compress to half the size, and no eye tells them from 256.
    picture = _picture(_levels(image, limit) // 4, "P")
    picture.putpalette(_heat_table())
    return _data_uri(picture)


def _levels(image: Float[np.ndarray, "row col"], limit: float) -> UInt8[np.ndarray, "row col"]:
    scaled = np.nan_to_num(np.asarray(image, dtype=np.float64)) / (limit or 1.0)
    return np.rint(np.clip(scaled, 0, 1) * 255).astype(np.uint8)


def _picture(levels: UInt8[np.ndarray, "row col"], mode: str) -> Image.Image:
    return Image.frombytes(mode, levels.shape[::-1], levels.tobytes())


@lru_cache(maxsize=1)
def _heat_table() -> bytes:
    colors = mpl.colormaps["inferno"](np.linspace(0, 1, 64))[:, :3]
    return np.rint(colors * 255).astype(np.uint8).tobytes()


def _data_uri(picture: Image.Image) -> str:
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


__all__ = ["brightest_shown", "gray_uri", "heat_uri"]
