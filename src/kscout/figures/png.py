"""Arrays as pictures: compact data URIs for a self-contained page, and montages."""

import base64
import io
import math
from functools import lru_cache
from pathlib import Path

import matplotlib as mpl
import numpy as np
from jaxtyping import Float, Float32, UInt8
from PIL import Image

from kscout.files import written_whole

_GAP = 2
"""Pixels between the images of a montage."""


def brightest_shown(target: Float[np.ndarray, "row col"]) -> float:
    """Return the white level, clipped because a few bright pixels of fat would darken the rest."""
    return float(np.quantile(target, 0.995)) or float(target.max())


def gray_uri(image: Float[np.ndarray, "row col"], limit: float, *, is_exact: bool = True) -> str:
    """Encode an image in 256 grays, black at 0 and white at `limit`.

    If it is not `is_exact`, it is lossy: a third of the bytes and hardly visible changes.
    """
    return _data_uri(gray_picture(image, limit), is_exact)


def heat_uri(image: Float[np.ndarray, "row col"], limit: float, *, is_exact: bool = True) -> str:
    """Encode an error map with a color table, black at 0 and pale yellow at `limit`."""
    return _data_uri(heat_picture(image, limit), is_exact)


def gray_picture(image: Float[np.ndarray, "row col"], limit: float) -> Image.Image:
    """Draw an image in 256 grays, black at 0 and white at `limit`."""
    return _picture(_levels(image, limit), "L")


def heat_picture(image: Float[np.ndarray, "row col"], limit: float) -> Image.Image:
    """Draw an error map with a color table, black at 0 and pale yellow at `limit`."""
    # 64 levels compress to half the size, without visible difference from 256.
    picture = _picture(_levels(image, limit) // 4, "P")
    picture.putpalette(heat_table())
    return picture


def _levels(image: Float[np.ndarray, "row col"], limit: float) -> UInt8[np.ndarray, "row col"]:
    scaled = np.nan_to_num(np.asarray(image, dtype=np.float64)) / (limit or 1.0)
    return np.rint(np.clip(scaled, 0, 1) * 255).astype(np.uint8)


def _picture(levels: UInt8[np.ndarray, "row col"], mode: str) -> Image.Image:
    return Image.frombytes(mode, levels.shape[::-1], levels.tobytes())


@lru_cache(maxsize=1)
def heat_table() -> bytes:
    """Return the 64 colors of error maps, as red, green and blue."""
    colors = mpl.colormaps["inferno"](np.linspace(0, 1, 64))[:, :3]
    return np.rint(colors * 255).astype(np.uint8).tobytes()


def _data_uri(picture: Image.Image, is_exact: bool) -> str:
    buffer = io.BytesIO()
    if is_exact:
        picture.save(buffer, format="PNG", optimize=True)
    else:
        picture.convert("RGB").save(buffer, format="WEBP", quality=90)
    kind = "png" if is_exact else "webp"
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def montage(
    images: Float32[np.ndarray, "slice row col"], n_across: int | None = None
) -> Float32[np.ndarray, "height width"]:
    """Arrange images in rows of `n_across`, with a thin bright gap; values are unchanged."""
    n_images, n_rows, n_cols = images.shape
    n_across = n_across or math.ceil(math.sqrt(n_images * 1.5))
    n_down = math.ceil(n_images / n_across)
    cell = n_rows + _GAP, n_cols + _GAP
    page = np.ones((n_down * cell[0] - _GAP, n_across * cell[1] - _GAP), dtype=np.float32)
    for number, image in enumerate(images):
        top, left = number // n_across * cell[0], number % n_across * cell[1]
        page[top : top + n_rows, left : left + n_cols] = image
    return page


def save_montage(
    path: Path, images: Float32[np.ndarray, "slice row col"], n_across: int | None = None
) -> None:
    """Write images between 0 (black) and 1 (white) as one PNG, pixel for pixel."""
    with written_whole(path) as aside:
        _picture(_levels(montage(images, n_across), 1.0), "L").save(aside, format="PNG")
