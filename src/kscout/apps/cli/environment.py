"""The environment of a command: its variables, and the number of threads in a container.

The number of threads is set before torch reads it at import. It may change the last digits of a
result, so it only depends on the machine and the container.
"""

import os
import sys
from collections.abc import Iterable, MutableMapping
from pathlib import Path

from kscout import names
from kscout.errors import ConfigError

_NUMBERS = {
    **dict.fromkeys(("WORLD_SIZE", "RANK", "LOCAL_RANK"), "torchrun sets it to a number"),
    "SOURCE_DATE_EPOCH": "the date of figures, in seconds since 1970",
}


def check_environment(environment: MutableMapping[str, str]) -> None:
    """Raise an error for variables without a meaning; choose a backend of figures for files."""
    for name, meaning in _NUMBERS.items():
        value = environment.get(name, "0")
        if not (value.isascii() and value.isdigit()):
            raise ConfigError(f"{name} is {value!r} ({meaning}); correct it or unset it")
    environment["MPLBACKEND"] = "agg"
    for module in filter(None, map(str.strip, environment.get("KSCOUT_USE", "").split(","))):
        names.use(module)


def check_file_names(given: Iterable[str], encoding: str = sys.getfilesystemencoding()) -> None:
    """Raise an error for names that the locale cannot read."""
    for name in [*given, str(Path.cwd())]:
        if encoding != "utf-8" and not name.isascii():
            raise ConfigError(
                f"the name {name!a} cannot be read in this locale, whose file names are "
                f"{encoding}; set PYTHONUTF8=1, or a locale with UTF-8"
            )


def limit_threads(environment: MutableMapping[str, str], quota: float | None) -> None:
    """Limit threads to the processors that a container grants, unless the user has set a number."""
    if quota is not None and quota < (os.cpu_count() or 1):
        environment.setdefault("OMP_NUM_THREADS", str(max(1, int(quota))))


def cpu_quota(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Return the processors that a container grants; None for no limit."""
    try:
        quota, period = (root / "cpu.max").read_text(encoding="ascii").split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None
