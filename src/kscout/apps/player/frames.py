"""Recorded acquisitions as pictures: one step as PNG, all steps as GIF."""

import io
from functools import lru_cache
from itertools import chain
from pathlib import Path

import matplotlib as mpl
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from kscout.apps.player import limits_of
from kscout.evaluation.records.acquisitions import PolicySteps, SliceRecord
from kscout.figures.png import gray_picture, heat_picture, heat_table

_WIDTH = 256
"""Width of a panel in pixels; images are magnified by integers up to this width."""
_GAP, _LINE = 8, 18
_STRIP = 12
_PAPER, _INK, _QUIET = (255, 255, 255), (27, 31, 36), (92, 101, 112)
_OFF, _START, _OLD, _NEW = (223, 228, 233), (139, 149, 161), (0, 114, 178), (201, 79, 0)
"""The colors of the page in light mode."""
_STEP_MS, _END_MS = 150, 1500
_MOST_PIXELS = 2**26
"""Limit for the pixels of all frames; more frames are thinned out."""


def still_picture(acquisition: SliceRecord, frame: int) -> bytes:
    """Return one step as PNG: the target, and the images of every policy."""
    place = min(max(frame, 0), len(acquisition.steps) - 1)
    buffer = io.BytesIO()
    _frame(acquisition, place, limits_of(acquisition)).save(buffer, format="PNG")
    return buffer.getvalue()


def moving_picture(acquisition: SliceRecord) -> bytes:
    """Return all steps as an endless GIF that pauses at the last one."""
    limits = limits_of(acquisition)
    width, height = _frame(acquisition, 0, limits).size
    acquisition = acquisition.thinned(max(2, _MOST_PIXELS // (width * height)))
    frames = [
        _frame(acquisition, place, limits).quantize(palette=_palette(), dither=Image.Dither.NONE)
        for place in range(len(acquisition.steps))
    ]
    durations = [_STEP_MS] * (len(frames) - 1) + [_END_MS]
    buffer = io.BytesIO()
    frames[0].save(
        buffer, format="GIF", save_all=True, append_images=frames[1:], duration=durations, loop=0
    )
    return buffer.getvalue()


@lru_cache(maxsize=1)
def _palette() -> Image.Image:
    """Return the colors of all frames: those of error maps, those of columns, and grays."""
    named = bytes(chain(_PAPER, _INK, _QUIET, _OFF, _START, _OLD, _NEW))
    n_grays = 256 - (len(heat_table()) + len(named)) // 3
    grays = np.linspace(0, 255, n_grays).round().astype(np.uint8).repeat(3).tobytes()
    picture = Image.new("P", (1, 1))
    picture.putpalette(heat_table() + named + grays)
    return picture


def _frame(acquisition: SliceRecord, place: int, limits: tuple[float, float]) -> Image.Image:
    top, limit = limits
    n_rows, n_cols = acquisition.target.shape
    scale = max(1, _WIDTH // n_cols)
    width, height = n_cols * scale, n_rows * scale
    n_panels = 1 + len(acquisition.policies)
    head = 2 * _LINE + _STRIP + _GAP
    size = (_GAP + n_panels * (width + _GAP), head + 2 * (height + _GAP) + _GAP)
    page = Image.new("RGB", size, _PAPER)
    brush = ImageDraw.Draw(page)
    brush.font = _font()
    now = acquisition.steps[place]
    _write(brush, _GAP, "target", f"step {now} of {acquisition.steps[-1]}")
    page.paste(_large(gray_picture(acquisition.target, top), scale), (_GAP, head))
    for index, policy in enumerate(acquisition.policies, start=1):
        left = _GAP + index * (width + _GAP)
        _write(brush, left, policy.name, f"SSIM {policy.ssim[place]:.4f}")
        page.paste(_strip(acquisition, policy, place, scale), (left, 2 * _LINE + 2))
        image = policy.images[place]
        page.paste(_large(gray_picture(image, top), scale), (left, head))
        error = heat_picture(np.abs(image - acquisition.target), limit)
        page.paste(_large(error, scale), (left, head + height + _GAP))
    return page


def _large(picture: Image.Image, scale: int) -> Image.Image:
    width, height = picture.size
    size = (width * scale, height * scale)
    return picture.convert("RGB").resize(size, Image.Resampling.NEAREST)


def _strip(acquisition: SliceRecord, policy: PolicySteps, place: int, scale: int) -> Image.Image:
    row = np.full((1, acquisition.target.shape[1], 3), _OFF, np.uint8)
    now = acquisition.steps[place]
    before = acquisition.steps[place - 1] if place else 0
    row[0, list(acquisition.start_columns)] = _START
    row[0, list(policy.columns[:before])] = _OLD
    row[0, list(policy.columns[before:now])] = _NEW
    size = (row.shape[1] * scale, _STRIP)
    return Image.fromarray(row).resize(size, Image.Resampling.NEAREST)


@lru_cache(maxsize=1)
def _font() -> ImageFont.FreeTypeFont:
    # The font is part of matplotlib, and has the letters of most names.
    path = Path(mpl.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
    return ImageFont.truetype(path, 12)


def _write(brush: ImageDraw.ImageDraw, left: int, name: str, words: str) -> None:
    brush.text((left, 2), name[:30], fill=_INK)
    brush.text((left, 2 + _LINE), words, fill=_QUIET)
