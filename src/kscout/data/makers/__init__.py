"""Images that need no license, drawn volume by volume; `kscout.names.SOURCES` is the table.

The numbers of an anatomy lie in TOML files beside the code that draws it.
"""

import tomllib
from pathlib import Path
from typing import Any


def load_table(name: str) -> dict[str, Any]:
    """Read the TOML file of that name in this folder."""
    return tomllib.loads((Path(__file__).parent / name).read_text(encoding="utf-8"))
