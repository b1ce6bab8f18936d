"""Style and file output of figures.

A figure is drawn in fixed colors, which become CSS variables in the page, so that one drawing
supports light and dark mode.
"""

import base64
import io
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from importlib import import_module
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from kscout.figures.series import GRID, INK, PAPER, QUIET, SERIES
from kscout.files import write_text, written_whole

COLORS = {"--ink": INK, "--quiet": QUIET, "--grid": GRID, "--paper": PAPER}
COLORS |= {f"--series-{index}": color for index, color in enumerate(SERIES, start=1)}
"""Colors of drawings, by the page's variables."""
_BACKENDS = {"png": "agg", "pdf": "pdf", "svg": "svg"}
_LARGE_PICTURE = 3_000
"""Size in bytes above which a picture inside a figure is compressed again for a page."""
_RC = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.5,
    "axes.titlesize": 10,
    "axes.labelsize": 9.5,
    "axes.labelcolor": INK,
    "axes.facecolor": "none",
    "axes.edgecolor": QUIET,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "text.color": INK,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.8,
    "lines.markersize": 4.5,
    "image.interpolation": "none",
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    "savefig.dpi": 200,
}


@contextmanager
def house_style() -> Iterator[None]:
    """Draw with the settings of kscout, and restore the caller's afterwards."""
    with mpl.rc_context(_RC):
        yield


def new_axes(
    n_rows: int = 1,
    n_cols: int = 1,
    *,
    width: float = 5.6,
    height: float = 4.2,
    share_y: bool = False,
    height_ratios: Sequence[float] | None = None,
) -> tuple[Figure, list[Axes]]:
    """Return a figure (inches) outside pyplot's global state, and its axes row by row."""
    figure = Figure(figsize=(width, height), layout="constrained")
    grid = figure.subplots(
        n_rows, n_cols, squeeze=False, sharey=share_y, height_ratios=height_ratios
    )
    return figure, list(grid.flat)


def to_svg(figure: Figure, *, name: str = "figure", background: str = "white") -> str:
    """Return the figure as SVG text, which is deterministic."""
    buffer = io.BytesIO()
    with house_style(), mpl.rc_context({"svg.hashsalt": name}):
        _write(figure, buffer, "svg", {"Date": None}, background)
    return buffer.getvalue().decode()


def _write(
    figure: Figure,
    file: Path | io.BytesIO,
    kind: str,
    metadata: Mapping[str, None],
    background: str,
) -> None:
    """Write the output of `Figure.savefig`, which draws a figure twice."""
    dpi, color, canvas = figure.dpi, figure.get_facecolor(), figure.canvas
    # Imported here, because that of PDF loads a library for fonts.
    backend = import_module(f"matplotlib.backends.backend_{_BACKENDS[kind]}")
    try:
        figure.set_facecolor(background)
        figure.set_dpi(mpl.rcParams["savefig.dpi"])
        getattr(backend.FigureCanvas(figure), f"print_{kind}")(file, metadata=metadata)
    finally:
        figure.set_facecolor(color)
        figure.set_dpi(dpi)
        figure.set_canvas(canvas)


def to_inline_svg(figure: Figure, *, name: str, label: str) -> str:
    """Return SVG to embed in a page, with the page's font and colors, and unique ids."""
    text = to_svg(figure, name=name, background="none")
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"data:image/png;base64,([A-Za-z0-9+/=\s]+)", _smaller_picture, text)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    text = _shortened(text)
    unique = f"{zlib.crc32(name.encode()):08x}"
    text = re.sub(r'\bid="([^"]+)"', rf'id="{unique}-\1"', text)
    text = re.sub(r'href="#([^"]+)"', rf'href="#{unique}-\1"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{unique}-\1)", text)
    text = re.sub(r"font-family: [^;\"]+;? ?", "", text)
    text = re.sub(r"font: ([\d.]+px) [^;\"]+", r"font-size: \1", text)
    for variable, color in COLORS.items():
        text = text.replace(color, f"var({variable})")
    return text.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1)


def _shortened(text: str) -> str:
    """Remove what a page does not need: unused names, blanks, digits beyond .01 pt."""
    named = set(re.findall(r'href="#([^"]+)"', text)) | set(re.findall(r"url\(#([^)]+)\)", text))
    text = re.sub(r' id="([^"]+)"', lambda one: one[0] if one[1] in named else "", text)
    text = re.sub(r' (?:d|x|y|width|height|transform)="[^"]*"', _rounded, text)
    text = re.sub(r">\s+<", "><", text)
    return re.sub(r"<g([^>]*)>((?:<use [^>]*/>)+)</g>", _styled_once, text)


def _styled_once(group: re.Match[str]) -> str:
    """Move the common style of a curve's markers to their group."""
    styles = set(re.findall(r' style="[^"]*"', group[2]))
    if len(styles) != 1 or "style=" in group[1]:
        return group[0]
    (style,) = styles
    return f"<g{group[1]}{style}>{group[2].replace(style, '')}</g>"


def _rounded(attribute: re.Match[str]) -> str:
    numbers = re.sub(r"-?\d+\.\d+", lambda one: f"{float(one[0]):.2f}", attribute[0])
    return re.sub(r"\s*\n", "", numbers)


def _smaller_picture(found: re.Match[str]) -> str:
    """Compress a large picture again, with hardly visible loss, to limit the size of a page."""
    data = base64.b64decode(found.group(1))
    if len(data) < _LARGE_PICTURE:
        return found.group(0)
    picture, buffer = Image.open(io.BytesIO(data)), io.BytesIO()
    picture.convert("RGBA").save(buffer, format="WEBP", quality=90)
    return f"data:image/webp;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def save_figure(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Save as PNG, SVG and PDF on white; return the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.{kind}" for kind in ("png", "pdf")]
    with house_style():
        for path, metadata in zip(paths, ({}, {"CreationDate": None}), strict=True):
            with written_whole(path) as aside:
                _write(figure, aside, path.suffix[1:], metadata, "white")
    svg = folder / f"{name}.svg"
    write_text(svg, to_svg(figure, name=name))
    return [*paths, svg]
