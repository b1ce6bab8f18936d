"""Procedural and freely available images, generated volume by volume (table: `names.SOURCES`).

The parameters of an anatomy are in a TOML file next to its code.
"""

import tomllib
from pathlib import Path

from kscout.json_types import JsonObject


def load_table(name: str) -> JsonObject:
    """Read the TOML file of that name in this folder."""
    return tomllib.loads((Path(__file__).parent / name).read_text(encoding="utf-8"))
