"""What stands on a page, before it is written in one form or another."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, final

from kscout.figures.tables import Table


@final
@dataclass(frozen=True)
class Prose:
    """A paragraph; `**words**` are strong."""

    text: str


@final
@dataclass(frozen=True)
class Drawing:
    """A figure with its caption."""

    figure: Any
    """A `matplotlib.figure.Figure`, which only those who draw import, or a function that draws it:
    who writes tables alone need not wait for it."""
    name: str
    """For file names and links: small letters, digits and hyphens."""
    caption: str
    is_wide: bool = False

    @cached_property
    def drawn(self) -> Any:  # noqa: ANN401 - a matplotlib figure
        """The figure itself."""
        return self.figure() if callable(self.figure) else self.figure


@final
@dataclass(frozen=True)
class Widget:
    """HTML that is trusted as it stands, e.g. the player."""

    html: str
    caption: str = ""


Block = Prose | Table | Drawing | Widget


@final
@dataclass(frozen=True)
class Section:
    """A heading and what stands under it."""

    title: str
    blocks: tuple[Block, ...]

    @property
    def name(self) -> str:
        """The link to this section."""
        return link_name(self.title)


def link_name(text: str) -> str:
    """Return small letters, digits and hyphens of a text."""
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
    """Name figures and tables after their folder, where a page has several of a kind."""
    stem, found = link_name(label), []
    for block in blocks:
        if isinstance(block, Drawing):
            caption = f"{label}. {block.caption}"
            block = replace(block, name=f"{stem}-{block.name}", caption=caption)
        elif isinstance(block, Table):
            block = replace(block, name=f"{stem}-{block.name}", title=f"{block.title}: {label}")
        found.append(block)
    return found
