"""The reference of Python: a page for each public room, from docstrings."""

from importlib import import_module
from types import ModuleType

import kscout

ROOMS = (
    "kscout",
    *(f"kscout.{name}" for name in kscout.__all__ if isinstance(getattr(kscout, name), ModuleType)),
    *("kscout.gym_env", "kscout.physics.coils", "kscout.reconstruction.sense"),
)
"""All that documents may import from."""


def api_pages() -> dict[str, str]:
    """Return the pages by their place in the site."""
    return {f"reference/api/{room}.md": _page(room) for room in ROOMS}


def members_of(room: str) -> list[str]:
    """Return the public names of a room that are no rooms themselves."""
    names = import_module(room).__all__
    return [name for name in names if f"{room}.{name}" not in ROOMS and not name.startswith("_")]


def _page(room: str) -> str:
    members = "".join(f"        - {name}\n" for name in members_of(room))
    return f"# {room}\n\n::: {room}\n    options:\n      members:\n{members}"


def missing_members(room: str, html: str) -> list[str]:
    """Return the public names that a built page does not show."""
    return [name for name in members_of(room) if f'id="{room}.{name}"' not in html]
