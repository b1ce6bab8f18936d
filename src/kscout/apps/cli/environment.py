"""The environment of a command: its variables, and the number of threads on a shared machine.

The number of threads is set before torch reads it at import. It may change the last digits of a
result, so it only depends on the machine or the container, not on its load. The way in which
threads wait changes no digit.
"""

import logging
import os
import sys
from collections.abc import Iterable, MutableMapping
from importlib.util import find_spec
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
        if not _is_found(module):
            logging.getLogger(__name__).warning(
                f"KSCOUT_USE names the module {module}, which cannot be found from here; start in "
                "the folder that holds it, or correct the name"
            )


def check_file_names(given: Iterable[str], encoding: str = sys.getfilesystemencoding()) -> None:
    """Raise an error for names that the locale cannot read."""
    for name in [*given, str(Path.cwd())]:
        if encoding != "utf-8" and not name.isascii():
            raise ConfigError(
                f"the name {name!a} cannot be read in this locale, whose file names are "
                f"{encoding}; set PYTHONUTF8=1, or a locale with UTF-8"
            )


def _is_found(module: str) -> bool:
    first = module.partition(".")[0]
    here = Path.cwd()
    is_here = (here / first).is_dir() or (here / f"{first}.py").is_file()
    return is_here or first in sys.modules or find_spec(first) is not None


_NUMBER, _WAITING = "OMP_NUM_THREADS", "OMP_WAIT_POLICY"
_BUSY = 0.5
"""Fraction of busy cores from which a machine counts as shared."""


def share_the_machine(*, is_long: bool) -> None:
    """Set the threads of this process, unless the user has."""
    has_affinity = hasattr(os, "sched_getaffinity")
    n_cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    sentence = settle(os.environ, n_cores=n_cores, quota=cpu_quota(), load=os.getloadavg()[0])
    if sentence and is_long:
        logging.getLogger(__name__).warning(sentence)


def settle(
    environment: MutableMapping[str, str], *, n_cores: int, quota: float | None, load: float
) -> str | None:
    """Set the number of threads and their way of waiting in an environment; return a warning.

    `quota` is the number of processors that a container grants, None for all, and `load` the number
    of running processes. An environment with a number of threads is unchanged.
    """
    if _NUMBER in environment:
        return None
    n_threads = n_cores if quota is None else max(1, min(n_cores, int(quota)))
    if n_threads < n_cores:
        environment[_NUMBER] = str(n_threads)
    if n_threads == 1 or load < _BUSY * n_cores:
        return None
    # A thread that waits by spinning occupies the core of others.
    environment.setdefault(_WAITING, "PASSIVE")
    n_free = max(1, min(n_threads - 1, round(n_cores - load)))
    return (
        f"this machine is busy (load {load:.1f} on {n_cores} cores), and {n_threads} threads may "
        f"wait for each other; {_NUMBER}={n_free} before the command is often faster, and changes "
        "at most the last digits of results"
    )


def cpu_quota(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Return the processors that a container grants; None for no limit."""
    try:
        quota, period = (root / "cpu.max").read_text(encoding="ascii").split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None
