"""The check that stored results have the same settings, before they are replaced."""

from pathlib import Path
from typing import Any

from kscout.config import differences, listed
from kscout.errors import RunError

Table = dict[str, Any]
"""Settings as they read back from JSON."""


def check_same(out: Path, product: str, there: Table | None, here: Table) -> None:
    """Raise an error if stored results have other settings."""
    if there == here:
        return
    found = "whose settings are not recorded"
    if there is not None:
        found = f"of other settings ({listed(differences(there, here), 3)})"
    raise RunError(
        f"{out} holds {product} {found}; name another --out, or replace them with --overwrite "
        "(in Python: overwrite=True)"
    )
