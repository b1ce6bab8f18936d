"""Procedural and freely available images, generated volume by volume (table: `names.SOURCES`).

The parameters of an anatomy are in a TOML file next to its code.
"""

import tomllib
from pathlib import Path
from typing import Any


def load_table(name: str) -> dict[str, Any]:
    """Read the TOML file of that name in this folder."""
    return tomllib.loads((Path(__file__).parent / name).read_text(encoding="utf-8"))
