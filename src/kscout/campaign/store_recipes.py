"""The stores of a campaign's file: given by path, made or imported."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, final

from kscout.campaign.values import (
    COUNTS,
    FLAG,
    NUMBER,
    TEXT,
    TEXT_OR_TEXTS,
    WHOLE,
    Kind,
    Table,
    check_values,
    one_of,
)
from kscout.errors import ConfigError
from kscout.names import IMPORT_PRESETS, PLANES, SOURCES

How = Literal["path", "make", "import"]

VARIANTS = tuple(dict.fromkeys(one for entry in SOURCES.values() for one in entry.variants))

_SETTINGS: dict[How, Mapping[str, Kind]] = {
    "path": {"path": TEXT, "hint": TEXT},
    "make": {
        "make": one_of(*SOURCES),
        "volumes": COUNTS,
        "slices": WHOLE,
        "size": WHOLE,
        "seed": WHOLE,
        "variant": one_of(*VARIANTS),
        "paper": FLAG,
        "source": TEXT_OR_TEXTS,
        "download": FLAG,
    },
    "import": {
        "import": TEXT,
        "preset": one_of(*IMPORT_PRESETS),
        "size": WHOLE,
        "pad": WHOLE,
        "center_volume": FLAG,
        "sample_rate": NUMBER,
        "acquisition": TEXT,
        "splits": TEXT,
        "held_out": NUMBER,
        "seed": WHOLE,
        "test_from_train": FLAG,
        "key": TEXT,
        "plane": one_of(*PLANES),
        "skip_bad": FLAG,
    },
}
_EXCLUSIVE = {"paper": ("volumes", "slices"), "splits": ("test_from_train", "held_out")}
"""Settings that decide what others would; the command refuses them together."""


@final
@dataclass(frozen=True)
class StoreRecipe:
    """A store of slices: one that is there, or how it is made."""

    name: str
    how: How
    settings: Table
    """`path` and `hint`, or the options of `data make` and `data import`."""


def parse_store(name: str, table: Any) -> StoreRecipe:  # noqa: ANN401 - any TOML value
    """Read a section [stores.NAME]."""
    where = f"stores.{name}"
    if not isinstance(table, dict):
        raise ConfigError(f"{where} is {table!r}; expected a section [{where}]")
    found = [how for how in _SETTINGS if how in table]
    if len(found) != 1:
        raise ConfigError(
            f"[{where}] says {' and '.join(found) or 'nothing'}; "
            f"say one of: path (a store), make ({', '.join(SOURCES)}), import (a folder)"
        )
    check_values(table, _SETTINGS[found[0]], where)
    for key, others in _EXCLUSIVE.items():
        both = [other for other in others if table.get(other, False) is not False]
        if table.get(key) and both:
            raise ConfigError(f"[{where}] sets {both[0]}, which {key} decides; drop one of them")
    settings = dict(table)
    if isinstance(table.get("volumes"), list):
        settings["volumes"] = ",".join(str(count) for count in table["volumes"])
    return StoreRecipe(name, found[0], settings)
