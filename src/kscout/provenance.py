"""Where a run comes from: commit, versions, seed, device, command and what it reads."""

import logging
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, final

from kscout.config import Config
from kscout.config.bounds import REST
from kscout.files import now
from kscout.kernels import kernels_are_on

_PACKAGES = ("kscout", "torch", "numpy", "scipy", "h5py", "safetensors")


@final
@dataclass(frozen=True)
class Provenance:
    """Where a run comes from: all that is needed to redo it; nothing in it names the machine."""

    date: str = ""
    command: str = ""
    seed: int | None = None
    device: str = "unknown"
    """In words."""
    inputs: dict[str, str] = field(default_factory=dict)
    """Fingerprints by name of what the run reads."""
    commit: str | None = None
    """Of the checkout that kscout ran from."""
    versions: dict[str, str] = field(default_factory=dict)
    hardware: dict[str, Any] = field(default_factory=dict)
    system: str = ""
    kernels: str = "on"
    """Whether compiled code might run."""
    notes: Annotated[dict[str, Any], REST] = field(default_factory=dict)
    """What the run told of itself: `convolution`, the backend that was chosen."""


def describe(
    config: Config, inputs: Mapping[str, str], device: str, command: Sequence[str]
) -> Provenance:
    """Return the provenance of a run that begins now."""
    return Provenance(
        date=now(),
        command=" ".join([Path(command[0]).name, *command[1:]]),
        seed=config.training.seed,
        device=device,
        inputs=dict(inputs),
        commit=commit(),
        versions={"python": platform.python_version(), **_versions()},
        hardware={"machine": platform.machine(), "n_cores": os.cpu_count()},
        system=platform.system(),
        kernels=_kernels(),
    )


def warn_of_other_bits(path: Path, provenance: Provenance, device: str) -> None:
    """Tell where a run goes on with what rounds otherwise."""
    switch = f"kernels {provenance.kernels}"
    for there, here in ((provenance.device, device), (switch, f"kernels {_kernels()}")):
        if there != here:
            logging.getLogger(__name__).warning(
                "%s was begun with %s and goes on with %s: the last bits of its result differ",
                *(path, there, here),
            )


def _kernels() -> str:
    return "on" if kernels_are_on() else "off"


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def commit() -> str | None:
    """Return the commit of the checkout that kscout runs from, marked where files differ."""
    here = Path(__file__).parent
    git = ["git", "-C", str(here)]
    try:
        # A package installed into an environment inside some other repository is not its code.
        subprocess.run([*git, "ls-files", "--error-unmatch", __file__], check=True, **_QUIET)
        head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, **_QUIET).stdout.strip()
        changed = subprocess.run([*git, "status", "--porcelain", "-uno", "."], **_QUIET).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{head} with local changes" if changed.strip() else head


_QUIET: dict[str, Any] = {"capture_output": True, "text": True}
