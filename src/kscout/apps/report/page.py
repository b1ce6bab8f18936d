"""One self-contained HTML page without external resources, for mail, archives and print."""

import re
import shlex
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import final

from markupsafe import Markup

from kscout.apps.player import templates
from kscout.figures.blocks import Block, Drawing, Prose, Section, Widget
from kscout.figures.style import save_figure, to_inline_svg
from kscout.figures.tables import Table, to_html
from kscout.files import write_text

_LINE_LENGTH = 84
_CODE_STYLE = (
    "overflow-x:auto;background:var(--panel);padding:.8rem 1rem;border-radius:8px;"
    "font-size:.82rem;line-height:1.5;margin:0 0 1rem"
)


def as_shell(words: Sequence[str]) -> str:
    """Return a command for a shell, wrapped to the page width; options stay with their value."""
    parts = re.split(" (?=--)", shlex.join(words))
    # Spaces inside a part are hidden from the wrapping.
    command = " ".join(part.replace(" ", "\0") for part in parts)
    lines = textwrap.wrap(command, _LINE_LENGTH, break_long_words=False, break_on_hyphens=False)
    return " \\\n    ".join(lines).replace("\0", " ")


def code_html(text: str) -> str:
    """Return lines of code for copying."""
    return f'<pre tabindex="0" style="{_CODE_STYLE}"><code>{escape(text)}</code></pre>'


@final
@dataclass(frozen=True)
class Front:
    """The part before the sections: the main result."""

    title: str
    summary: tuple[str, ...]
    """Sentences; the first is set large. `**words**` are bold."""
    subtitle: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    """Short facts by label: protocol, data, budget."""


def write_page(
    front: Front,
    sections: Sequence[Section],
    path: Path,
    *,
    provenance: Mapping[str, Mapping[str, str]] | None = None,
) -> Path:
    """Write the page and return its path."""
    page = templates("kscout.apps.report").get_template("page.html.j2")
    text = page.render(
        front=front,
        sections=[section for section in sections if section.blocks],
        provenance=provenance or {},
        emphasized=_emphasized,
        block_html=_block_html,
    )
    write_text(path, text)
    return path


def drawings_of(sections: Sequence[Section]) -> list[Drawing]:
    """Return all figures of a page in order."""
    return [block for part in sections for block in part.blocks if isinstance(block, Drawing)]


def save_figures(sections: Sequence[Section], folder: Path) -> list[Path]:
    """Save all figures of a page as PNG, SVG and PDF."""
    return [
        path
        for drawing in drawings_of(sections)
        for path in save_figure(drawing.drawn, folder, drawing.name)
    ]


def _emphasized(text: str) -> Markup:
    return Markup(re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", escape(text)))


def _block_html(block: Block) -> Markup:
    if isinstance(block, Prose):
        return Markup("<p>{}</p>").format(_emphasized(block.text))
    if isinstance(block, Table):
        return Markup(to_html(block))
    if isinstance(block, Widget):
        caption = Markup('<p class="caption">{}</p>').format(_emphasized(block.caption))
        return Markup(block.html) + (caption if block.caption else "")
    svg = to_inline_svg(block.drawn, name=block.name, label=block.caption)
    kind = "drawing wide" if block.is_wide else "drawing"
    return Markup(
        f'<figure class="{kind}" id="figure-{block.name}"><div class="canvas">{svg}</div>'
        f'<button type="button" class="zoom" aria-label="Enlarge: {escape(block.name)}">Enlarge'
        f"</button><figcaption>{_emphasized(block.caption)}</figcaption></figure>"
    )
