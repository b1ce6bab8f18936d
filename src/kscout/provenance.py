"""Provenance of a run: commit, versions, seed, device, command and inputs."""

import logging
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, final

from kscout.config import Config
from kscout.config.bounds import REST
from kscout.files import now
from kscout.json_types import JsonObject
from kscout.kernels import kernels_are_on

_PACKAGES = ("kscout", "torch", "numpy", "scipy", "h5py", "safetensors")


@final
@dataclass(frozen=True)
class Provenance:
    """All that is needed to repeat a run, without anything that identifies the machine."""

    date: str = ""
    command: str = ""
    seed: int | None = None
    device: str = "unknown"
    """Description of the device."""
    inputs: dict[str, str] = field(default_factory=dict)
    """Fingerprints of the run's inputs, by name."""
    commit: str | None = None
    """Commit of the checkout of kscout."""
    versions: dict[str, str] = field(default_factory=dict)
    hardware: JsonObject = field(default_factory=dict)
    system: str = ""
    kernels: str = "on"
    """Whether compiled code was allowed."""
    notes: Annotated[JsonObject, REST] = field(default_factory=dict)
    """Facts that the run added: `convolution`, the selected backend."""


def describe(
    config: Config, inputs: Mapping[str, str], device: str, command: Sequence[str]
) -> Provenance:
    """Return the provenance of a run that starts now."""
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
    """Log a warning if a run resumes with different rounding."""
    switch = f"kernels {provenance.kernels}"
    for there, here in ((provenance.device, device), (switch, f"kernels {_kernels()}")):
        if there != here:
            logging.getLogger(__name__).warning(
                "%s was started with %s and resumes with %s: its results differ in the last bits",
                *(path, there, here),
            )


def _kernels() -> str:
    return "on" if kernels_are_on() else "off"


def _versions() -> dict[str, str]:
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def commit() -> str | None:
    """Return the commit of the checkout that kscout runs from, marked where files differ."""
    here = Path(__file__).parent
    git = ["git", "-C", str(here)]
    try:
        # The repository around an environment with an installed package is not its code.
        subprocess.run([*git, "ls-files", "--error-unmatch", __file__], check=True, **_QUIET)
        head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, **_QUIET).stdout.strip()
        changed = subprocess.run([*git, "status", "--porcelain", "-uno", "."], **_QUIET).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{head} with local changes" if changed.strip() else head


_QUIET: JsonObject = {"capture_output": True, "text": True}
