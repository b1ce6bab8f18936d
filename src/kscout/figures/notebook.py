"""HTML of stores, runs and evaluations for notebooks, without external resources.

Colors are the page's CSS variables of reports, with those of light mode as default.
"""

import base64
import io
import re
from collections.abc import Mapping, Sequence
from html import escape

import numpy as np
from jaxtyping import Float32
from PIL import Image

from kscout.figures.curves import draw_curves
from kscout.figures.png import montage
from kscout.figures.series import Curve
from kscout.figures.style import COLORS, to_inline_svg

_STYLE = "background: var(--paper, {paper}); color: var(--ink, {ink}); padding: .6em; "
_STYLE += "width: {width}; max-width: 100%; box-sizing: border-box"
_ACROSS = 6
"""Largest number of pictures in a row."""


def card(html: str, *, width: str = "fit-content") -> str:
    """Return HTML with its own background, readable on any page."""
    style = _STYLE.format(paper=COLORS["--paper"], ink=COLORS["--ink"], width=width)
    colored = re.sub(
        r"var\((--[\w-]+)\)", lambda found: f"var({found[1]}, {COLORS[found[1]]})", html
    )
    return f'<div class="drawing" style="{style}">{colored}</div>'


def pictures_html(caption: str, pictures: Float32[np.ndarray, "slice row col"]) -> str:
    """Return pictures between 0 (black) and 1 (white) in a row, below a caption."""
    page = montage(pictures, n_across=min(_ACROSS, len(pictures)))
    levels = np.rint(page * 255).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(levels).save(buffer, format="WEBP", quality=80)
    data = base64.b64encode(buffer.getvalue()).decode()
    source = f"data:image/webp;base64,{data}"
    image = f'<img style="max-width: 100%" alt="{escape(caption)}" src="{source}">'
    return card(f"<p>{escape(caption)}</p>{image}")


def training_html(name: str, kind: str, metrics: Sequence[Mapping[str, object]]) -> str:
    """Return the learning curve of a run below a caption."""
    curves = [_curve(name, series, metrics) for series in ("train_ssim", "val_ssim")]
    if not len(curves[1].x):
        return card(f"<p>{escape(name)}: {kind}, no epoch yet</p>")
    best = int(np.argmax(curves[1].mean))
    caption = (
        f"{name}: {kind}, {len(metrics)} {'epoch' if len(metrics) == 1 else 'epochs'}, best "
        f"validation SSIM {curves[1].mean[best]:.4f} in epoch {curves[1].x[best]:.0f}"
    )
    figure = draw_curves(*([curve] if len(curve.x) else [] for curve in curves))
    svg = to_inline_svg(figure, name=f"{kind} {name}", label=caption)
    return card(f"<p>{escape(caption)}</p>{svg}", width="42em")


def _curve(name: str, series: str, metrics: Sequence[Mapping[str, object]]) -> Curve:
    points = [(line["epoch"], line[series]) for line in metrics if series in line]
    epochs, values = np.array(points, dtype=np.float64).reshape(-1, 2).T
    return Curve(name, epochs, values)
