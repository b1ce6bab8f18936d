"""The blocks of a page, independent of the output format."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

from kscout.exports import lazily
from kscout.figures.tables import Table

with lazily():
    from matplotlib.figure import Figure


@final
@dataclass(frozen=True)
class Prose:
    """A paragraph; `**words**` are bold."""

    text: str


@final
@dataclass(frozen=True)
class Drawing:
    """A figure with its caption."""

    figure: Figure | Callable[[], Figure]
    """A function draws it on request, so that writing only tables needs no matplotlib."""
    name: str
    """Name in file names and links: lowercase letters, digits and hyphens."""
    caption: str
    is_wide: bool = False

    @cached_property
    def drawn(self) -> Figure:
        return self.figure() if callable(self.figure) else self.figure


@final
@dataclass(frozen=True)
class Widget:
    """Trusted HTML, e.g. the player."""

    html: str
    caption: str = ""


Block = Prose | Table | Drawing | Widget


@final
@dataclass(frozen=True)
class Section:
    """A heading and its blocks."""

    title: str
    blocks: tuple[Block, ...]

    @property
    def name(self) -> str:
        return link_name(self.title)


def link_name(text: str) -> str:
    """Return a text reduced to lowercase letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "part"


def under_protocol(blocks: Sequence[Block], protocol: str | None) -> list[Block]:
    """State the protocol of scores in notes and captions; None leaves them as they are."""
    found: list[Block] = []
    for block in blocks:
        text = block.note if isinstance(block, Table) else getattr(block, "caption", "")
        if protocol is not None and "rotocol" not in text:
            stated = f"{text} Protocol {protocol}."
            if isinstance(block, Table):
                block = replace(block, note=stated.lstrip())
            elif isinstance(block, Drawing) or (isinstance(block, Widget) and text):
                block = replace(block, caption=stated)
        found.append(block)
    return found


def labeled(blocks: Sequence[Block], label: str) -> list[Block]:
    """Prefix names of figures and tables with the folder's label."""
    stem, named = link_name(label), []
    for block in blocks:
        if isinstance(block, Drawing):
            caption = f"{label}. {block.caption}"
            block = replace(block, name=f"{stem}-{block.name}", caption=caption)
        elif isinstance(block, Table):
            block = replace(block, name=f"{stem}-{block.name}", title=f"{block.title}: {label}")
        named.append(block)
    return named
