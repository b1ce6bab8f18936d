"""One self-contained HTML page without external resources, for mail, archives and print."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import final

from markupsafe import Markup

from kscout.apps.player.html import templates
from kscout.figures.blocks import Block, Drawing, Prose, Section, Widget
from kscout.figures.style import save_figure, to_inline_svg
from kscout.figures.tables import Table, to_html
from kscout.files import write_text


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
    shown = [section for section in sections if section.blocks]
    text = (
        templates("kscout.apps.report")
        .get_template("page.html.j2")
        .render(
            front=front,
            summary=[_emphasized(sentence) for sentence in front.summary],
            sections=[
                {
                    "name": section.name,
                    "title": section.title,
                    "body": Markup("\n".join(_block_html(block) for block in section.blocks)),
                }
                for section in shown
            ],
            provenance=provenance or {},
        )
    )
    write_text(path, text)
    return path


def drawings_of(sections: Sequence[Section]) -> list[Drawing]:
    """Return all figures of a page in order."""
    return [block for part in sections for block in part.blocks if isinstance(block, Drawing)]


def tables_of(sections: Sequence[Section]) -> list[Table]:
    """Return all tables of a page in order."""
    return [block for part in sections for block in part.blocks if isinstance(block, Table)]


def save_figures(sections: Sequence[Section], folder: Path) -> list[Path]:
    """Save all figures of a page as PNG, SVG and PDF."""
    return [
        path
        for drawing in drawings_of(sections)
        for path in save_figure(drawing.drawn, folder, drawing.name)
    ]


def _emphasized(text: str) -> Markup:
    return Markup(re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", escape(text)))


def _block_html(block: Block) -> str:
    if isinstance(block, Prose):
        return f"<p>{_emphasized(block.text)}</p>"
    if isinstance(block, Table):
        return to_html(block)
    if isinstance(block, Widget):
        caption = f'<p class="caption">{_emphasized(block.caption)}</p>' if block.caption else ""
        return f"{block.html}{caption}"
    svg = to_inline_svg(block.drawn, name=block.name, label=block.caption)
    kind = "drawing wide" if block.is_wide else "drawing"
    return (
        f'<figure class="{kind}" id="figure-{block.name}"><div class="canvas">{svg}</div>'
        f'<button type="button" class="zoom" aria-label="Enlarge: {escape(block.name)}">Enlarge'
        f"</button><figcaption>{_emphasized(block.caption)}</figcaption></figure>"
    )
